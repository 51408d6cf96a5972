"""
Gets logins for Amazon's image registries, using the current AWS credentials. On an instance, these are the credentials
of its role.

A login lasts for 12 hours and has the rights of the role or user whose credentials made it:
https://docs.aws.amazon.com/AmazonECR/latest/userguide/registry_auth.html
"""

from __future__ import annotations

import base64
from typing import Any

import boto3
from botocore import exceptions as sdk
from botocore.config import Config

from spotrun.container import hosts
from spotrun.container.hosts import AWS, ECR_PUBLIC, RIGHTS
from spotrun.container.registry import KEY, Credentials, NotForThisUser, RegistryUnavailable

PUBLIC_REGION = "us-east-1"
"""The only region that issues tokens for the public registry."""
_PASSING = (sdk.HTTPClientError, sdk.ConnectionError, sdk.CredentialRetrievalError, sdk.MetadataRetrievalError)
_CONFIG = Config(
    connect_timeout=5.0,
    read_timeout=10.0,
    retries={"mode": "standard", "total_max_attempts": 3},
    user_agent_extra="spotrun",
)


def login(host: str) -> Credentials | None:
    """
    Get a login for `host`. If `host` is the public registry and AWS issues no token, return None, because the public
    registry can be used without a login.

    Raises:
        NotForThisUser: there are no credentials, or they do not allow a login.
        RegistryUnavailable: AWS does not answer now.
    """
    try:
        token = _token(host)
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        if host == ECR_PUBLIC:
            return None
        what = f"AWS gives no login to {host}: {error}"
        if _passes(error):
            raise RegistryUnavailable(what) from error
        raise NotForThisUser(what, hint=_advice(error), key=KEY) from error
    username, _, password = base64.b64decode(token).decode().partition(":")
    return Credentials(username, password, AWS)


def _token(host: str) -> str:
    session = boto3.Session()
    if host == ECR_PUBLIC:
        client: Any = session.client("ecr-public", region_name=PUBLIC_REGION, config=_CONFIG)
        public: str = client.get_authorization_token()["authorizationData"]["authorizationToken"]
        return public
    client = session.client("ecr", region_name=hosts.region_of(host), config=_CONFIG)
    token: str = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    return token


def _passes(error: sdk.ClientError | sdk.BotoCoreError) -> bool:
    if isinstance(error, sdk.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or "Throttl" in error.response.get("Error", {}).get("Code", "")
    return isinstance(error, _PASSING)


def _advice(error: sdk.ClientError | sdk.BotoCoreError) -> str:
    return RIGHTS[AWS] if isinstance(error, sdk.ClientError) else "log in by `aws sso login` or `aws configure`"
