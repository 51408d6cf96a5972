"""Reads SecureStrings from AWS Parameter Store, with the role of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import boto3
from botocore import exceptions as sdk
from botocore.config import Config
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from spotrun.errors import StoreUnavailable
from spotrun.secrets.reference import PARAMETERS, SECURE, SecretUnreadable, encrypt_command, put_command

BATCH = 10
"""Maximum parameters in one GetParameters call."""
ASK_AGAIN_FOR_S, ASK_AGAIN_EVERY_S = 30.0, 2.0
"""
Maximum seconds of retries after AWS has denied access, and seconds between two tries. The role of a run is created
together with the run, and it takes a while until all AWS servers know the rights of a new role.
"""
_DENIALS = ("AccessDeniedException", "UnrecognizedClientException")
_CONFIG = Config(
    connect_timeout=5.0,
    read_timeout=10.0,
    retries={"mode": "standard", "total_max_attempts": 8},  # reads are safe to repeat; all tries take at most a minute
    user_agent_extra="spotrun",
)
_HASTY = _CONFIG.merge(
    Config(connect_timeout=2.0, read_timeout=2.0, retries={"mode": "standard", "total_max_attempts": 2})
)


class _Denied(SecretUnreadable):
    pass


def read_parameters(paths: Sequence[str], rights_are_new: bool = True) -> dict[str, str]:
    """
    Return the parameters' values, keyed by path. If `rights_are_new`, retry for a while after a denial; otherwise a
    denial is final.

    Raises:
        SecretUnreadable: a parameter is missing, is not encrypted, or AWS denies reading it.
        StoreUnavailable: AWS does not answer now; a later call may succeed.
    """
    again = Retrying(
        retry=retry_if_exception_type(_Denied),
        wait=wait_fixed(ASK_AGAIN_EVERY_S),
        stop=stop_after_delay(ASK_AGAIN_FOR_S if rights_are_new else 0.0),
        reraise=True,
    )
    return again(_read, paths, None, _CONFIG)


def read_at_once(paths: Sequence[str], region: str | None = None) -> dict[str, str]:
    """
    Read parameters with only a few retries, and with none after a denial. Do not use this on a new instance: there, a
    retry after a denial can help, because AWS may not know the instance's role everywhere yet.

    Raises:
        SecretUnreadable: a parameter is missing, or is not encrypted.
        ClientError, BotoCoreError: any other failure. The caller adds its own advice.
    """
    return _asked(paths, region, _HASTY)


def _read(paths: Sequence[str], region: str | None, config: Config) -> dict[str, str]:
    try:
        return _asked(paths, region, config)
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        what = f"the Parameter Store did not give {', '.join(paths)}: {error}"
        if _passes(error):
            raise StoreUnavailable(what) from error
        hint = (
            f"a run's role (infra/aws) is allowed to read those parameters below {PARAMETERS} that its job names; "
            "if they are encrypted with a key of yours, the key must allow kms:Decrypt"
        )
        raise (_Denied if _code(error) in _DENIALS else SecretUnreadable)(what, hint=hint) from error


def _asked(paths: Sequence[str], region: str | None, config: Config) -> dict[str, str]:
    found: dict[str, str] = {}
    client = _client(region, config)
    for start in range(0, len(paths), BATCH):
        batch = list(paths[start : start + BATCH])
        found |= _checked(client.get_parameters(Names=batch, WithDecryption=True), client.meta.region_name)
    return found


def _code(error: sdk.ClientError | sdk.BotoCoreError) -> str:
    code: str = error.response.get("Error", {}).get("Code", "") if isinstance(error, sdk.ClientError) else ""
    return code


def _passes(error: sdk.ClientError | sdk.BotoCoreError) -> bool:
    if not isinstance(error, sdk.ClientError):
        return True
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or "Throttl" in _code(error)


def _client(region: str | None, config: Config) -> Any:
    return boto3.Session().client("ssm", region_name=region, config=config)


def _checked(answer: dict[str, Any], region: str) -> dict[str, str]:
    if missing := answer["InvalidParameters"]:
        what = f"there is no parameter {', '.join(missing)} in {region}"
        raise SecretUnreadable(what, hint=put_command(missing[0], region))
    clear = [row["Name"] for row in answer["Parameters"] if row["Type"] != SECURE]
    if clear:
        what = f"{', '.join(clear)} in {region} is not encrypted"
        raise SecretUnreadable(what, hint=f"make it a {SECURE}: {encrypt_command(clear[0], region)}")
    return {row["Name"]: row["Value"] for row in answer["Parameters"]}
