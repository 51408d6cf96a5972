"""What tests of the EC2 driver ask of an account on this machine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType
from tests.support import ec2_server
from tests.support.ec2_server import Ec2Account
from tests.support.launch_requests import requested

CONFIG = AwsConfig(
    regions=(ec2_server.REGION,),
    instance_types=tuple(ec2_server.TYPES),
    image_parameter=ec2_server.IMAGE_PARAMETER,
)


class Login:
    """The credentials file of a person, who logs in now and then."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "credentials"
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self._file))

    def __call__(self, key: str, secret: str = "secret") -> None:
        self._file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")


def request(
    cloud: AwsDriver,
    capacity_type: CapacityType = CapacityType.SPOT,
    uri: str = "s3://b/r",
    token: str = "0123456789-7",
    must_see: Collection[str] | None = None,
) -> LaunchRequest:
    offering = next(each for each in cloud.offerings(must_see) if each.capacity_type is capacity_type)
    return requested(offering, 7, token=token, run_uri=uri)


def launches(account: Ec2Account) -> list[dict[str, str]]:
    return [asked for action, asked in account.calls if action == "RunInstances"]


def count(account: Ec2Account, action: str) -> int:
    return [asked for asked, _ in account.calls].count(action)
