"""
A sandbox on an account of AWS that is on this machine: EC2 with instances that execute their user-data, and a bucket.

    with aws_sandbox(folder, monkeypatch, s3) as sandbox: ...
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from spotrun import address
from spotrun.clock import ScaledClock
from spotrun.folder.ledger import key_of
from tests.support import ec2_server
from tests.support.aws_templates import Template
from tests.support.fault_proxy import FaultProxy
from tests.support.guarded_account import GuardedAccount
from tests.support.object_stores import RunningServer
from tests.support.sandbox import Sandbox

SCALE = 30
BIN = Path(sys.executable).parent
SECRET = "cNry7vB2mK9pL4-of-the-rehearsal"


@contextlib.contextmanager
def aws_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch, s3: RunningServer) -> Iterator[Aws]:
    """An account of its own, and what it needs before the bucket. Nothing of it is left running."""
    with GuardedAccount(ScaledClock(datetime.now(UTC), SCALE)) as account, FaultProxy(s3.endpoint) as gate:
        sandbox = Aws(folder, monkeypatch, account, s3, gate)
        try:
            yield sandbox
        finally:
            sandbox.close()


class Aws(Sandbox):
    """An account with a bucket, and a shell to call spotrun from."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        account: GuardedAccount,
        s3: RunningServer,
        gate: FaultProxy,
    ) -> None:
        """`gate` is before `s3`: there instances may do what their role may, and the other side asks nobody."""
        super().__init__(folder, monkeypatch, s3.new_prefix())
        self.account, self.gate = account, gate
        self.machines = account.disks
        clock = account.clock.environment()
        for name, text in {**account.environment, **s3.environment, **clock, "AWS_ENDPOINT_URL": account.url}.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
        place = address.parse(self.uri)
        assert isinstance(place, address.BucketAddress)
        account.template = Template("account", BucketName=place.bucket, RunsPrefix=place.prefix)
        account.furnish()
        account.deploy_region()
        account.credentials = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
        account.tools = {"aws": f'#!/bin/bash\nexec "{sys.executable}" -m awscli "$@"\n'}
        gate.fate = account.before_store
        account.image = {
            "AWS_ENDPOINT_URL": account.url,
            "AWS_ENDPOINT_URL_S3": gate.url,
            "PATH": f"{BIN}:{os.defpath}",
            "AWS_METADATA_SERVICE_TIMEOUT": "20",  # SDKs wait 1 s for credentials, which a busy machine may take
            "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3",
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder / "home"),
        }
        (folder / "home").mkdir()
        with account.as_administrator():
            boto3.client("ssm").put_parameter(Name="/spotrun/WORD", Value=SECRET, Type="SecureString")

    def job_on_aws(self, name: str, arguments: str, *, program: str = "quick.py", extra: str = "") -> Path:
        rest = (
            "resources: {cloud: aws}\n"
            "setup: date +%s%N > $VIRTUAL_ENV/made-at\nsecrets: [WORD]\n"
            f"aws: {{instance_types: {list(ec2_server.TYPES)}, image_parameter: {ec2_server.IMAGE_PARAMETER}, "
            "launch_template: spotrun-node}\n"
            "policy: {on_demand_after: 20s, return_to_spot: true, return_cooldown: 60s}\n"
        )
        return self.job_file(name, rest + extra, arguments, program)

    def may_read(self, name: str, of: str) -> bool:
        """Whether what is on an instance of one run may read the ledger of another."""
        role = f"spotrun-run-{self.run(name).created.uid}"
        place = address.parse(self.run(of).uri)
        assert isinstance(place, address.BucketAddress)
        key = f"{place.prefix}/{key_of(0)}"
        # of a new session: boto3's own remembers the credentials of whatever was tested before
        s3 = boto3.Session().client("s3", endpoint_url=self.gate.url, config=Config(user_agent_appid=role))
        try:
            s3.get_object(Bucket=place.bucket, Key=key)
        except s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "AccessDenied":
                raise
            self.account.denied = [each for each in self.account.denied if not each.resource.endswith(key)]
            return False
        return True

    def aws(self, *words: str) -> str:
        """What a client says that is not ours."""
        return subprocess.run(
            [sys.executable, "-m", "awscli", *words, "--output", "text"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
