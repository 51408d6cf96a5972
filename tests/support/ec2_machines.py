"""EC2 instances on this machine: see tests/support/machines.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from spotrun.clock import ScaledClock
from spotrun.clouds.local.metadata import MetadataService
from spotrun.instance import Instance
from tests.support.machines import Machine

NO_STORE = "#!/bin/bash\nexec sleep 3600\n"
"""In place of `aws`, where nothing is to be fetched."""


class Identity(NamedTuple):
    """The role that an instance has, and the credentials that it gets for it."""

    role: str
    key_id: str
    secret: str


class RoleMetadata(MetadataService):
    """
    The metadata service of an instance that has a role.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
    """

    def __init__(self, instance: Instance, identity: Identity, clock: ScaledClock) -> None:
        super().__init__(instance, clock)
        credentials = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": identity.key_id,
            "SecretAccessKey": identity.secret,
            "Token": "",
            "Expiration": f"{datetime.now(UTC) + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
        }
        self._answers[f"/latest/meta-data/iam/security-credentials/{identity.role}"] = json.dumps(credentials)


class Ec2Machine(Machine):
    """An instance with a role. Its calls are told from those of others by an id that the SDKs send."""

    def __init__(
        self, disk: Path, instance: Instance, identity: Identity, clock: ScaledClock, ended: Callable[[], None]
    ) -> None:
        self.metadata = RoleMetadata(instance, identity, clock)
        self._role = identity.role
        endpoint = self.metadata.endpoint.rstrip("/")
        found_by = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint}
        super().__init__(disk, clock, ended, urlsplit(endpoint).port or 80, found_by=found_by)

    def start(self, script: bytes, image: Mapping[str, str], tools: Mapping[str, str]) -> None:
        self.metadata.start()
        super().start(script, {**image, "AWS_SDK_UA_APP_ID": self._role}, tools)
