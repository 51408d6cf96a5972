"""People count attempts from 1, in each place that shows one; the ledger and its files name them by their entries."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotrun.account.summary import summarise
from spotrun.cli.app import app
from spotrun.report import machine_readable, terminal
from spotrun.run.events import Cause, SetUp
from spotrun.store.local import LocalStore
from tests.support.decisions import spec
from tests.support.histories import History


@pytest.fixture
def history() -> History:
    """Two attempts, of which the second failed, and an instance that never took over."""
    history = History(spec=spec().to_dict())
    first = history.running(setup=SetUp(seconds=4, how="run"))
    history.after(9).gone(first, ended_at=history.now - timedelta(seconds=1))
    history.running(setup=SetUp(seconds=2, how="unpacked"))
    history.launch()
    history.ended(Cause.USER_ERROR)
    return history


@pytest.fixture
def store(history: History, tmp_path: Path) -> Path:
    """One with that run, and what each of its instances printed."""
    run = LocalStore(tmp_path / f"demo-{history.uid}")
    history.put_into(run)
    for launch in history.state.launches:
        run.put(f"logs/{launch}/000000.log", f"launch {launch} be".encode())
        run.put(f"logs/{launch}/000001.log", b"gins\n")
    for beside in ("logs/x/y", "logs/1/2/3", f"logs/{'9' * 40}/000000.log"):
        run.put(beside, b"nothing that an agent writes\n")
    return tmp_path


def said(store: Path, *words: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert found.exit_code == code, found.output
    return found.output


def test_each_attempts_log_has_a_header_and_is_found_by_its_number(history: History, store: Path) -> None:
    first, second, third = history.state.launches
    assert said(store, "logs", "demo").splitlines() == [
        "==> attempt 1: spot in local-a (sim-gpu) <==",
        f"launch {first} begins",
        "==> attempt 2: spot in local-a (sim-gpu) <==",
        f"launch {second} begins",
        "==> no attempt yet: spot in local-a (sim-gpu) <==",
        f"launch {third} begins",
    ]
    assert said(store, "logs", "demo", "--attempt", "2").splitlines()[1:] == [f"launch {second} begins"]


def test_an_attempt_that_there_is_not_is_refused(history: History, store: Path) -> None:
    for number in (0, 3, max(history.state.attempts)):
        found = CliRunner().invoke(app, ["logs", "demo", "--attempt", str(number), "--store", str(store)])
        assert f"has no attempt {number}" in str(found.exception)
        assert "from 1 to 2" in str(found.exception)


def test_events_and_decisions_number_attempts_alike(store: Path) -> None:
    told = said(store, "events", "demo")
    assert [line.partition("attempt ")[2] for line in told.splitlines() if "attempt " in line] == [
        "1 started on i-1",
        "2 started on i-7",
        "2 ended (user_error)",
    ]
    assert "attempt 2 ended (user_error)" in said(store, "why", "demo")


def test_the_report_numbers_them_too_and_names_their_entries_for_programs(history: History) -> None:
    summary = summarise(history.state, history.now)
    assert terminal.setups(summary) == "Setup: attempt 1 run in 4.0s, attempt 2 unpacked in 2.0s."
    numbers = list(history.state.attempts)
    assert [each["attempt"] for each in machine_readable.report(summary)["setups"]] == numbers != [1, 2]
