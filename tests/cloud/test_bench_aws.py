"""`spotrun bench` of two types at once on an account of AWS on this machine: whatever ends it, nothing stays."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from spotrun.clouds.aws.request import TIME_TO_LIVE
from spotrun.runs.open_run import runs_in
from tests.support import ec2_server
from tests.support.aws_launches import launches
from tests.support.aws_sandbox import Aws, aws_sandbox
from tests.support.eventually import eventually
from tests.support.object_stores import RunningServer

ALIVE = "Name=instance-state-name,Values=pending,running,stopping,shutting-down,stopped"


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], RunningServer]) -> Iterator[Aws]:
    with aws_sandbox(tmp_path, monkeypatch, servers("s3")) as sandbox:
        yield sandbox


def of_two_types(sandbox: Aws, within: str) -> subprocess.Popen[str]:
    """A bench, as soon as it has rented both types."""
    job = sandbox.job_on_aws("pair", "--epochs, '40', --step-s, '0.1'")
    bench = sandbox.start("bench", job, "--types", "T4:1,A10G:1", "--trial-timeout", within, "--budget", 8, "--yes")
    eventually(lambda: len(sandbox.account.lives()) == 2 or bench.poll() is not None, within_s=240)
    assert bench.poll() is None, bench.communicate()[0]
    return bench


def tag(asked: Mapping[str, str], key: str) -> str:
    place = next(name for name, text in asked.items() if text == key)
    return asked[f"{place.removesuffix('Key')}Value"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_instances_of_a_killed_bench_end_by_their_own_timers(sandbox: Aws) -> None:
    """Its runners are gone, and nobody types anything. A second lasts a thirtieth here."""
    of_two_types(sandbox, "6m").kill()
    assert {life.instance_type for life in sandbox.account.lives()} == set(ec2_server.TYPES)
    lives_s = [int(tag(asked, TIME_TO_LIVE)) for asked in launches(sandbox.account)]
    assert max(lives_s) <= 9 * 60, "six minutes, and three for its last word"
    eventually(lambda: all(life.until is not None for life in sandbox.account.lives()), within_s=240)
    assert "Client.InstanceInitiatedShutdown" in {life.reason for life in sandbox.account.lives()}


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_signal_ends_both_types_and_what_belongs_to_them(sandbox: Aws) -> None:
    bench = of_two_types(sandbox, "30m")
    bench.send_signal(signal.SIGTERM)
    output, _ = bench.communicate(timeout=240)
    assert bench.returncode == 128 + signal.SIGTERM, output
    assert output.count("all of its instances have ended") == 2
    sandbox.account.policies = None
    assert sandbox.aws("ec2", "describe-instances", "--filters", ALIVE).strip() == ""
    assert sandbox.aws("scheduler", "list-schedules", "--group-name", "spotrun").strip() == ""
    roles = sandbox.aws("iam", "list-roles") + sandbox.aws("iam", "list-instance-profiles")
    runs = runs_in(sandbox.uri)
    assert len(runs) == 2
    assert [run.id for run in runs if run.created.uid in roles] == []
