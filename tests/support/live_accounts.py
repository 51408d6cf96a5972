"""Accounts on this machine for the battery `live`: set up as infra/ does it, with the store that it makes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto.ssm.models import ssm_backends

from spotrun.spec.model import DEEP_LEARNING_AMI
from tests.batteries.live import Account
from tests.support import ec2_server
from tests.support.aws_sandbox import aws_sandbox
from tests.support.ec2_server import ACCOUNT, IMAGE_PARAMETER, REGION
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_account import GcpAccount
from tests.support.gcp_project import RUNNER
from tests.support.gcp_sandbox import gcp_sandbox
from tests.support.object_stores import FakeGcs, RunningServer, SeaweedFS, running

CPU_TYPE = "c7i.large"
"""What the day rents on AWS. Its prices here are of its usual size."""


@contextlib.contextmanager
def account_of_tests(cloud: str) -> Iterator[Account]:
    """An account whose instances are processes of this machine. Nothing of it is left."""
    of_cloud = {"aws": _aws, "gcp": _gcp}[cloud]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", f"{folder}/home")
        with of_cloud(Path(folder), patch) as calls:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            patch.delenv("SPOTRUN_STORE")
            yield Account({**os.environ, "PATH": path}, True, calls)


@contextlib.contextmanager
def _aws(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[[], Counter[str]]]:
    patch.setitem(ec2_server.TYPES, CPU_TYPE, "0.08925")
    with running(SeaweedFS()) as server:
        _let_its_store_be(server, f"spotrun-{ACCOUNT}-{REGION}", "/runs")
        with aws_sandbox(folder, patch, server) as sandbox:
            prices = sandbox.account.prices
            prices.rows = [row._replace(usd="0.0357") if row.instance_type == CPU_TYPE else row for row in prices.rows]
            parameters = ssm_backends[ACCOUNT][REGION]._parameters
            parameters[DEEP_LEARNING_AMI] = parameters[IMAGE_PARAMETER]  # no call may put one below /aws/
            yield lambda: Counter(action or "of other services than EC2 and IAM" for action, _ in sandbox.account.calls)


@contextlib.contextmanager
def _gcp(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[[], Counter[str]]]:
    with running(FakeGcs()) as server:
        _let_its_store_be(server, f"spotrun-{PROJECT}", "")
        with gcp_sandbox(folder, patch, server, GcpAccount) as sandbox:
            google = sandbox.google
            google.iam.bucket_name = server.bucket
            google.permits = lambda asked, permission: (
                asked.who == RUNNER or google.iam.may(asked, permission)  # the page's user is an Owner, too
            )
            yield lambda: Counter(asked.method for asked in google.asked)


def _let_its_store_be(server: RunningServer, bucket: str, prefix: str) -> None:
    server.server.make_bucket(bucket)
    server.bucket = bucket
    server.new_prefix = lambda: f"{server.server.scheme}://{bucket}{prefix}"  # type: ignore[method-assign]
