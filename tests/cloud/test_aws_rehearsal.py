"""
The dress rehearsal: a run on EC2 from its launch to its bill, against servers that speak the protocol of AWS.

EC2 is moto with instances that execute their user-data (tests/support/ec2_server.py); S3 is SeaweedFS. Everything
between them is what a real account would get: this very wheel out of the run's folder, the bootstrap, the agent, the
notices.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from spotrun import address
from spotrun.clock import ScaledClock
from spotrun.folder.ledger import key_of
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from tests.support import ec2_prices, ec2_server
from tests.support.aws_launches import launches
from tests.support.aws_templates import Template
from tests.support.ec2_server import Life
from tests.support.eventually import eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.guarded_account import GuardedAccount
from tests.support.object_stores import RunningServer
from tests.support.repository import JOBS
from tests.support.sandbox import WITHIN_S, Sandbox, environment_of, final_tensors, processes_now

SCALE = 30
EPOCHS = 40
"""Enough that a machine that has to install everything is there before the end."""
BIN = Path(sys.executable).parent
SECRET = "cNry7vB2mK9pL4-of-the-rehearsal"


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

    def job_on_aws(self, name: str, arguments: str) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"name: {name}\nworkdir: {JOBS}\ntrain: {{script: quick.py, args: [{arguments}]}}\n"
            f"envs: {{TRACE: '{self.trace}'}}\n"
            f"checkpoint: {{uri: '{self.uri}', every: 30s}}\n"
            "resources: {cloud: aws}\n"
            "setup: date +%s%N > $VIRTUAL_ENV/made-at\nsecrets: [WORD]\n"
            f"aws: {{instance_types: {list(ec2_server.TYPES)}, image_parameter: {ec2_server.IMAGE_PARAMETER}, "
            "launch_template: spotrun-node}\n"
            "policy: {on_demand_after: 20s, return_to_spot: true, return_cooldown: 60s}\n"
        )
        return path

    def trains_on(self, runner: subprocess.Popen[str], before: str = "") -> str:
        """The instance that trains, once that is another one than `before` and has done some steps."""

        def elsewhere() -> bool:
            state = self.state("stormy")
            current = state.current
            return current is not None and current.instance_id != before and bool(current.trainers)

        eventually(lambda: self.last_step() >= 0 or runner.poll() is not None, within_s=WITHIN_S)
        eventually(lambda: elsewhere() or runner.poll() is not None, within_s=WITHIN_S)
        step = self.last_step()
        eventually(lambda: self.last_step() >= step + 20 or runner.poll() is not None, within_s=WITHIN_S)
        assert runner.poll() is None, runner.communicate()[0]
        current = self.state("stormy").current
        assert current is not None
        return current.instance_id

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


def dollars(life: Life) -> Fraction:
    """By the second, 60 s at least; free when taken in the first hour, but for 100 GiB of disk and the address."""
    assert life.until is not None
    seconds = max(Fraction(60), Fraction((life.until - life.since).total_seconds()))
    attached = Fraction("0.08") * 100 / 720 + Fraction("0.005")
    hourly = Fraction(ec2_prices.SPOT_SHARE if life.spot else ec2_server.TYPES[life.instance_type])
    free = life.spot and life.taken and seconds < 3600
    return seconds / 3600 * (attached + (0 if free else hourly))


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], RunningServer]) -> Iterator[Aws]:
    s3 = servers("s3")
    with GuardedAccount(ScaledClock(datetime.now(UTC), SCALE)) as account, FaultProxy(s3.endpoint) as gate:
        sandbox = Aws(tmp_path, monkeypatch, account, s3, gate)
        yield sandbox
        sandbox.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_run_on_ec2_loses_its_machines_and_ends_as_if_nothing_had_happened(sandbox: Aws) -> None:
    sandbox.call("launch", sandbox.job("calm", args=f"--epochs, '{EPOCHS}', --step-s, '0'"), "-y")
    sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))
    runner = sandbox.start("launch", sandbox.job_on_aws("stormy", f"--epochs, '{EPOCHS}', --step-s, '0.1'"), "-y")

    first = sandbox.trains_on(runner)
    assert SECRET in {environment_of(process).get("WORD") for process in processes_now()}
    assert sandbox.may_read("stormy", of="stormy")
    assert not sandbox.may_read("stormy", of="calm")
    sandbox.account.interrupt(first)
    second = sandbox.trains_on(runner, before=first)
    sandbox.account.spot_is_gone = True
    sandbox.account.interrupt(second, notice=None)
    sandbox.trains_on(runner, before=second)
    sandbox.account.spot_is_gone = False
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    attempts = list(state.attempts.values())
    capacity = [state.launch_of(attempt).intent.offering.capacity_type for attempt in attempts]
    assert all(state.launch_of(attempt).intent.offering.launch_template.endswith(":1") for attempt in attempts)
    causes = [attempt.end.cause for attempt in attempts if attempt.end is not None]
    assert causes[:2] == [Cause.INTERRUPTED] * 2
    assert attempts[0].rebalance
    assert attempts[0].notice is not None
    assert CapacityType.ON_DEMAND in capacity
    assert capacity[0] is capacity[-1] is CapacityType.SPOT

    ready: set[str] = set()
    for attempt in attempts:
        accelerators = state.launch_of(attempt).intent.offering.accelerators
        assert attempt.setup is not None
        assert attempt.setup.how == ("unpacked" if accelerators in ready else "run")
        ready.add(accelerators)
    assert len(attempts) > len(ready), "set-up was paid once, and used again"
    store, uid = sandbox.run("stormy").store, sandbox.run("stormy").created.uid
    assert [each.key for each in store.list("") if SECRET.encode() in store.get(each.key)] == []
    assert SECRET not in output

    quiet = dict(line.split(" ", 1) for line in sandbox.trace.with_suffix(".calm").read_text().splitlines())
    assert {str(step): lines for step, lines in sandbox.trace_by_step().items()} == {
        step: {f"{step} {rest}"} for step, rest in quiet.items()
    }
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))

    lives = sandbox.account.lives()
    assert all(life.until is not None for life in lives)
    assert lives[0].taken, f"it was to be left for EC2 to take, which makes its first hour free: {lives[0]}"
    bill = sandbox.call_json("report", "stormy")
    charged = Decimal(bill["total"]["spot_usd"]) + Decimal(bill["total"]["on_demand_usd"])
    assert abs(sum(map(dollars, lives)) - Fraction(charged)) < Fraction(1, 10**6)
    parts = [*bill["epochs"], bill["unfinished"]]
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0

    assert sandbox.account.denied == [], "the policy that we ship allows all that a run asks for"
    sandbox.account.policies = None
    alive = "Name=instance-state-name,Values=pending,running,stopping,shutting-down,stopped"
    assert sandbox.aws("ec2", "describe-instances", "--filters", alive).strip() == ""
    assert sandbox.aws("ec2", "describe-volumes").strip() == ""
    assert sandbox.aws("scheduler", "list-schedules", "--group-name", "spotrun").strip() == ""
    assert {asked["IamInstanceProfile.Name"] for asked in launches(sandbox.account)} == {f"spotrun-run-{uid}"}
    assert uid not in sandbox.aws("iam", "list-roles") + sandbox.aws("iam", "list-instance-profiles")
    bucket = sandbox.uri.split("/")[2]
    assert "Uploads" not in sandbox.aws("s3api", "list-multipart-uploads", "--bucket", bucket)
