"""
A whole run in a bucket of Google's, whose instances have nothing but what is granted to the run's service account, and
whose runner has nothing but its roles: through a notice and a SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.folder_grants import CHANGED
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.run.events import Cause
from spotrun.store.opening import open_store
from tests.support.eventually import eventually
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_project import RUNNER
from tests.support.google_login import write_login
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer
from tests.support.process_signals import send_signal
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox

NOTICE = "{when: epoch 2 at 40%, then: interrupt, notice: 120s}"
ARGS = "--epochs, '4', --step-s, '0.05'"
ENVIRONMENTS = "environments/"
"""Only after a fault is anything overwritten there."""
SETUP = "setup: echo ready > set-up.txt\n"


@pytest.fixture
def google(
    servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GoogleServer]:
    with GoogleServer(ManualClock(), servers("gs").endpoint) as google:
        google.reach(monkeypatch, tmp_path)
        monkeypatch.setenv("INSTANCE_LOGIN", str(tmp_path / "instance.json"))
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "instance_login"))
        yield google


@pytest.mark.nightly
def test_a_run_needs_no_more_than_its_account_was_granted(
    google: GoogleServer, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri = f"{servers('gs').new_prefix()}/runs"
    sandbox = Sandbox(tmp_path, monkeypatch, uri)
    try:
        job = sandbox.job("far", args=ARGS, scale=60, script=NOTICE, program="filed.py", extra=SETUP)
        launch = sandbox.start("launch", job, "-y")
        folder = eventually(lambda: run_in(uri))
        make_account(google, f"{uri}/{folder}", tmp_path / "instance.json")
        eventually(lambda: sandbox.last_step() >= 6, within_s=60)
        send_signal(sandbox, "trainer")
        output, _ = launch.communicate(timeout=150)
        assert launch.returncode == 0, output
        state = sandbox.state("far")
        assert [attempt.end.cause for attempt in state.attempts.values() if attempt.end is not None] == [
            Cause.INTERRUPTED,
            Cause.DONE,
        ]
    finally:
        sandbox.close()

    account = member_of(folder)
    assert google.denied == []
    assert {each.who for each in google.asked} == {RUNNER, account}
    changed = {name.partition(f"/{folder}/")[2] for member, name in google.changed if member == account}
    assert {next(filter(key.startswith, CHANGED), key) for key in changed} == {*CHANGED} - {ENVIRONMENTS}
    asked = {each.name.partition(f"/{folder}/")[2] for each in google.asked if each.who == account}
    assert any(key.startswith(ENVIRONMENTS) for key in asked)


def run_in(uri: str) -> str:
    """The folder of the one run in a store; "" until there is one."""
    return next((name for name in open_store(uri).folders() if name.startswith("far-")), "")


def make_account(google: GoogleServer, uri: str, login: Path) -> None:
    uid, clock = uri.rpartition("-")[2], ManualClock()
    RunAccounts(Google(clock), clock).make(uid, uri)
    write_login(login, google.token_of(f"spotrun-{uid}@{PROJECT}.iam.gserviceaccount.com"))


def member_of(folder: str) -> str:
    return f"serviceAccount:spotrun-{folder.rpartition('-')[2]}@{PROJECT}.iam.gserviceaccount.com"
