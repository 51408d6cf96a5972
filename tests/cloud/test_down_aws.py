"""What `spotrun down` and `spotrun stop` say of a run on AWS that cannot be ended just now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotrun.errors import CloudError
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, write_status
from spotrun.runs import termination
from spotrun.runs.open_run import OpenRun, open_run
from tests.support.called_spotrun import Spotrun
from tests.support.called_spotrun import spotrun as spotrun
from tests.support.decisions import spec
from tests.support.guarded_account import GuardedAccount
from tests.support.histories import AWS_RULE, History
from tests.support.stored_runs import store_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """It trains on instance i-1, as far as its ledger knows."""
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    wanted = spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"})
    history = History(spec=wanted.to_dict(), billing=AWS_RULE)
    history.running()
    store_run(tmp_path / "runs", history)
    return open_run("demo", str(tmp_path / "runs"))


@pytest.mark.parametrize("code", ["RequestExpired", "AuthFailure"])
def test_down_reports_a_refused_login_at_once_with_the_instances_still_running(
    account: GuardedAccount, run: OpenRun, spotrun: Spotrun, code: str
) -> None:
    account.refuse("DescribeInstances", code, 400, times=50)
    said = spotrun("down", "demo", "-y")
    assert said.code == CloudError.exit_code
    left = "has a stop request, but no runner that stops it. Still running, as far as is known: i-1 ("
    assert f"{run.id} {left}" in said.err
    assert f"`spotrun down {run.id}` ends it now" in said.err
    assert said.err.index("Still running") < said.err.index("error: ") < said.err.index(code) < said.err.index("try: ")
    assert len(account.calls) <= 2, "nobody is waited for"


def test_down_says_once_what_it_waits_for_and_repeats_it_in_its_error(
    account: GuardedAccount, run: OpenRun, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "LOOK_AGAIN_S", 0.0)
    looks = iter((0.0, 1.0, 2.0, termination.DOWN_WITHIN_S))
    monkeypatch.setattr(termination, "system_s", lambda: next(looks))
    monkeypatch.setattr("spotrun.clouds.patience.ATTEMPTS_MAX", 1)
    account.refuse("DescribeInstances", "Unavailable", 503, times=50)
    said = spotrun("down", "demo", "-y")
    assert said.code == CloudError.exit_code
    assert said.err.count(f"{run.id} is not down yet: AWS refused to answer describe_instances") == 1
    assert f"error: {run.id} is not down after 60 s: AWS refused to answer describe_instances" in said.err
    assert "Still running, as far as is known: i-1 (" in said.err


def test_a_stop_says_who_sees_to_it_and_what_keeps_them(run: OpenRun, spotrun: Spotrun) -> None:
    message = "RequestExpired; try: log in"
    status = RunnerStatus(at=datetime.now(UTC), pid=1, host="elsewhere", sequence=1, message=message)
    write_status(run.store, RUNNER_KEY, status)
    assert spotrun("stop", "demo").out.splitlines() == [
        f"{run.id} has a request to stop; its runner will end the run; `spotrun down {run.id}` ends the run now",
        "last message of its runner: RequestExpired; try: log in",
    ]


def test_stop_without_a_runner_says_so(run: OpenRun, spotrun: Spotrun) -> None:
    said = spotrun("stop", "demo").out
    left = "has a stop request, but no runner that stops it. Still running, as far as is known: i-1 ("
    assert f"{run.id} {left}" in said
