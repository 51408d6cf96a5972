"""
The dress rehearsal: a run on EC2 from its launch to its bill, against servers that speak the protocol of AWS.

EC2 is moto with instances that execute their user-data (tests/support/ec2_server.py); S3 is SeaweedFS. Everything
between them is what a real account would get: this very wheel out of the run's folder, the bootstrap, the agent, the
notices.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import boto3
import pytest

from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from tests.support import ec2_prices, ec2_server
from tests.support.aws_launches import launches
from tests.support.aws_sandbox import SECRET, Aws, aws_sandbox
from tests.support.ec2_server import Life
from tests.support.object_stores import RunningServer
from tests.support.sandbox import environment_of, final_tensors, processes_now

EPOCHS = 40
"""Enough that a machine that has to install everything is there before the end."""
FEW_EPOCHS = 20


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
    with aws_sandbox(tmp_path, monkeypatch, servers("s3")) as sandbox:
        yield sandbox


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_run_on_ec2_loses_a_machine_and_ends_as_if_nothing_had_happened(sandbox: Aws) -> None:
    runner = launched(sandbox, FEW_EPOCHS)
    first = sandbox.trains_on(runner, steps=5)
    its_rights_and_secret_are_there(sandbox)
    sandbox.account.interrupt(first)
    sandbox.trains_on(runner, before=first, steps=1)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    attempts = list(state.attempts.values())
    assert all(state.launch_of(attempt).intent.offering.launch_template.endswith(":1") for attempt in attempts)
    assert [attempt.end.cause for attempt in attempts if attempt.end is not None] == [Cause.INTERRUPTED, Cause.DONE]
    assert attempts[0].rebalance
    assert attempts[0].notice is not None
    its_set_up_was_paid_once(sandbox)
    its_secret_is_nowhere_else(sandbox, output)
    it_ended_as_the_calm_one(sandbox)
    its_bill_is_what_ec2_charges(sandbox)
    nothing_of_it_is_left(sandbox)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_run_on_ec2_loses_its_machines_and_ends_as_if_nothing_had_happened(sandbox: Aws) -> None:
    runner = launched(sandbox, EPOCHS)
    first = sandbox.trains_on(runner)
    its_rights_and_secret_are_there(sandbox)
    sandbox.account.interrupt(first)
    second = sandbox.trains_on(runner, before=first)
    sandbox.account.spot_is_gone = True
    sandbox.account.interrupt(second, notice=None)
    third = sandbox.trains_on(runner, before=second)
    sandbox.account.spot_is_gone = False
    sandbox.trains_on(runner, before=third)
    sandbox.hurry()
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

    assert len(attempts) > its_set_up_was_paid_once(sandbox), "and used again"
    its_secret_is_nowhere_else(sandbox, output)
    it_ended_as_the_calm_one(sandbox)
    its_bill_is_what_ec2_charges(sandbox)
    nothing_of_it_is_left(sandbox)


def launched(sandbox: Aws, epochs: int) -> subprocess.Popen[str]:
    """The runner of the run, after the same run without an interruption on the local cloud."""
    sandbox.call("launch", sandbox.job("calm", args=f"--epochs, '{epochs}', --step-s, '0'"), "-y")
    sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))
    return sandbox.start("launch", sandbox.job_on_aws("stormy", f"--epochs, '{epochs}', --step-s, '0.4'"), "-y")


def its_rights_and_secret_are_there(sandbox: Aws) -> None:
    assert SECRET in {environment_of(process).get("WORD") for process in processes_now()}
    assert sandbox.may_read("stormy", of="stormy")
    assert not sandbox.may_read("stormy", of="calm")


def its_set_up_was_paid_once(sandbox: Aws) -> int:
    """For each kind of accelerator, of which there were so many."""
    state, ready = sandbox.state("stormy"), set[str]()
    for attempt in state.attempts.values():
        accelerators = state.launch_of(attempt).intent.offering.accelerators
        assert attempt.setup is not None
        assert attempt.setup.how == ("unpacked" if accelerators in ready else "run")
        ready.add(accelerators)
    return len(ready)


def its_secret_is_nowhere_else(sandbox: Aws, output: str) -> None:
    store = sandbox.run("stormy").store
    assert [each.key for each in store.list("") if SECRET.encode() in store.get(each.key)] == []
    assert SECRET not in output


def it_ended_as_the_calm_one(sandbox: Aws) -> None:
    quiet = dict(line.split(" ", 1) for line in sandbox.trace.with_suffix(".calm").read_text().splitlines())
    assert {str(step): lines for step, lines in sandbox.trace_by_step().items()} == {
        step: {f"{step} {rest}"} for step, rest in quiet.items()
    }
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))


def its_bill_is_what_ec2_charges(sandbox: Aws) -> None:
    lives = sandbox.account.lives()
    assert all(life.until is not None for life in lives)
    assert lives[0].taken, f"it was to be left for EC2 to take, which makes its first hour free: {lives[0]}"
    bill = sandbox.call_json("report", "stormy")
    charged = Decimal(bill["total"]["spot_usd"]) + Decimal(bill["total"]["on_demand_usd"])
    assert abs(sum(map(dollars, lives)) - Fraction(charged)) < Fraction(1, 10**6)
    parts = [*bill["epochs"], bill["unfinished"]]
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0


def nothing_of_it_is_left(sandbox: Aws) -> None:
    """By a client that is not ours."""
    uid = sandbox.run("stormy").created.uid
    assert sandbox.account.denied == [], "the policy that we ship allows all that a run asks for"
    sandbox.account.policies = None
    alive = ["pending", "running", "stopping", "shutting-down", "stopped"]
    ec2 = boto3.client("ec2")
    assert ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": alive}])["Reservations"] == []
    assert ec2.describe_volumes()["Volumes"] == []
    assert boto3.client("scheduler").list_schedules(GroupName="spotrun")["Schedules"] == []
    assert {asked["IamInstanceProfile.Name"] for asked in launches(sandbox.account)} == {f"spotrun-run-{uid}"}
    iam = boto3.client("iam")
    assert uid not in str([*iam.list_roles()["Roles"], *iam.list_instance_profiles()["InstanceProfiles"]])
    bucket = sandbox.uri.split("/")[2]
    assert "Uploads" not in boto3.Session().client("s3").list_multipart_uploads(Bucket=bucket)
