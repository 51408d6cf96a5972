"""Signals to a runner: what becomes of its run, and what is said. The signals are real, and come to this process."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from spotrun.errors import SpecInvalid, SpotrunError, StoreUnavailable
from spotrun.folder.attendance import UNATTENDED_AFTER
from spotrun.folder.heartbeats import Heartbeats
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status, write_status
from spotrun.runs import interrupts
from spotrun.runs.asking import confirm
from spotrun.runs.background import _opened
from spotrun.runs.interrupts import Interrupts, told
from spotrun.runs.open_run import OpenRun, open_run
from spotrun.runs.signals import Signalled, heeding, undisturbed
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.stored_runs import store_run

INIT = 1
"""A process of this machine that always lives."""
pytestmark = pytest.mark.timeout(60, method="thread")  # the other method takes the timer of this process


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    with heeding():
        yield


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """A run that trains on instance i-1."""
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    history = History(spec=spec().to_dict())
    history.running()
    store_run(tmp_path / "runs", history)
    run = open_run("demo", str(tmp_path / "runs"))
    run.ledger.refresh()
    return run


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> list[OpenRun]:
    """The runs that a background runner would have taken over."""
    found: list[OpenRun] = []
    monkeypatch.setattr(interrupts, "leave_behind", found.append)
    return found


def receive(number: signal.Signals) -> Signalled | KeyboardInterrupt:
    try:
        os.kill(os.getpid(), number)
        signal.pause()
    except (Signalled, KeyboardInterrupt) as caught:
        return caught
    raise AssertionError


def type_at_the_prompt(monkeypatch: pytest.MonkeyPatch, *answers: str | BaseException) -> None:
    """A person at a terminal, who gives these answers or does something else."""
    left = iter(answers)

    def answer(_: str) -> str:
        given = next(left)
        if isinstance(given, BaseException):
            raise given
        return given

    monkeypatch.setattr("builtins.input", answer)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def stopped(run: OpenRun) -> bool:
    return run.ledger.refresh().stop_requested


def test_sigterm_stops_the_run_and_a_second_signal_says_what_goes_on(
    run: OpenRun, left_behind: list[OpenRun], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = Interrupts(run, background=False)
    assert answers.answer(receive(signal.SIGTERM))
    assert stopped(run)
    assert f"SIGTERM: stopping {run.id}" in capsys.readouterr().err
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= interrupts.STOP_WITHIN_S
    for second in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        with pytest.raises(Signalled) as left:
            answers.answer(receive(second))
        assert left.value.code == 128 + signal.SIGTERM
        said = capsys.readouterr().err
        assert f"{run.id} has a stop request, but no runner that stops it" in said
        assert "i-1 (" in said
        assert f"`spotrun down {run.id}` ends it now" in said
    answers.done()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert left_behind == []


def beside(run: OpenRun, pid: int, host: str, age: timedelta = timedelta()) -> None:
    """Another runner gives a sign of life."""
    status = RunnerStatus(at=run.clock.now() - age, pid=pid, host=host, sequence=1)
    write_status(run.store, RUNNER_KEY, status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_second_runner_that_gets_a_signal_leaves_the_run_to_the_first(
    run: OpenRun,
    left_behind: list[OpenRun],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    host: str,
) -> None:
    type_at_the_prompt(monkeypatch)  # and nobody is asked
    beside(run, INIT, host)
    with pytest.raises((Signalled, KeyboardInterrupt)):
        Interrupts(run, background=False).answer(receive(number))
    with pytest.raises((Signalled, KeyboardInterrupt)), told(run):
        raise receive(number)
    assert not stopped(run)
    assert left_behind == []
    said = capsys.readouterr().err
    assert said.count(f"the runner in process {INIT} on {host} takes care of it") == 2
    assert said.count(f"`spotrun stop {run.id}` ends it") == 2
    assert "no runner" not in said


@pytest.mark.parametrize(
    ("pid", "host", "age"),
    [
        (os.getpid(), socket.gethostname(), timedelta()),
        (2**22 + 1, socket.gethostname(), timedelta()),
        (INIT, "elsewhere", UNATTENDED_AFTER),
    ],
    ids=["itself", "dead", "silent"],
)
def test_only_living_runner_stops_the_run_at_a_signal(
    run: OpenRun, left_behind: list[OpenRun], pid: int, host: str, age: timedelta
) -> None:
    beside(run, pid, host, age)
    answers = Interrupts(run, background=False)
    assert answers.answer(receive(signal.SIGTERM))
    answers.done()
    assert stopped(run)


def test_stop_request_names_the_runner_that_attends_to_it(run: OpenRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert interrupts.request_stop(run)
    beside(run, INIT, "elsewhere")
    with pytest.raises(Signalled), told(run):
        raise receive(signal.SIGTERM)
    said = capsys.readouterr().err
    assert f"has a stop request, and the runner in process {INIT} on elsewhere is stopping it" in said


def test_the_heartbeat_is_that_of_one_runner_until_it_has_died(run: OpenRun) -> None:
    clock = ManualClock()
    ours, store = Heartbeats(run.store, clock), run.store

    def look() -> str:
        ours.silent()
        clock.advance(15)
        found = read_status(store, RUNNER_KEY, RunnerStatus)
        assert found is not None
        return found.host

    for _ in range(20):
        write_status(store, RUNNER_KEY, RunnerStatus(at=clock.now(), pid=INIT, host="elsewhere", sequence=1))
        assert look() == "elsewhere"
        assert ours.open_for > timedelta() or _ == 0, "its writes get through, so ours would"
    assert [look() for _ in range(5)] == ["elsewhere"] * 3 + [socket.gethostname()] * 2
    write_status(
        store, RUNNER_KEY, RunnerStatus(at=clock.now(), pid=os.getppid(), host=socket.gethostname(), sequence=9)
    )
    ours.silent()
    taken_over = read_status(store, RUNNER_KEY, RunnerStatus)
    assert taken_over is not None
    assert taken_over.pid == os.getpid(), "who starts a runner in the background hands over to it"


def test_stop_prints_what_it_will_do(run: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = History(spec={"train": {"run": "make"}})
    launch = plain.launch()
    command: Any = SimpleNamespace(store=run.store, ledger=plain)
    assert interrupts.last_act(command) == "spotrun has no instance that trains it now"
    plain.record(launch)
    plain.start(launch)
    plain.resume()
    assert interrupts.last_act(command) == "spotrun asks its command to end, stores its files"
    monkeypatch.setattr(interrupts, "shortage", lambda *_: "the disk is full")
    assert interrupts.last_act(command) == "spotrun can store no files now (the disk is full)"
    assert interrupts.last_act(run) == "spotrun can store no checkpoint now (the disk is full)"


def test_sighup_leaves_the_run_to_a_background_runner_and_writes_it_down(
    run: OpenRun, left_behind: list[OpenRun], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not Interrupts(run, background=False).answer(receive(signal.SIGHUP))
    assert left_behind == [run]
    assert not stopped(run)
    line = "SIGHUP: the terminal is gone; a runner in the background takes over"
    assert line in capsys.readouterr().err
    assert line in Path(run.uri, "runner.log").read_text()


def test_a_background_runner_that_cannot_begin_leaves_word_of_what_goes_on(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: OpenRun) -> None:
        raise SpotrunError("the background runner ended immediately")

    monkeypatch.setattr(interrupts, "leave_behind", fail)
    with pytest.raises(SpotrunError):
        Interrupts(run, background=False).answer(receive(signal.SIGHUP))
    log = Path(run.uri, "runner.log").read_text()
    assert f"ended immediately. {run.id} has not ended, and no runner takes care of it. Still running" in log
    assert f"`spotrun resume {run.id}` continues it" in log


def test_a_background_runner_goes_on_after_sighup_and_stops_at_sigterm(
    run: OpenRun, left_behind: list[OpenRun]
) -> None:
    answers = Interrupts(run, background=True)
    assert answers.answer(receive(signal.SIGHUP))
    assert not stopped(run)
    assert answers.answer(receive(signal.SIGTERM))
    assert stopped(run)
    answers.done()
    assert left_behind == []


@pytest.mark.parametrize(
    ("typed", "detached"),
    [
        (["", "x", "stop it", "d"], True),
        (["Detach"], True),
        (["S"], False),
        (["?", "stop"], False),
        ([KeyboardInterrupt()], False),
        ([Signalled(signal.SIGTERM)], False),
        ([Signalled(signal.SIGHUP)], True),
        ([EOFError()], True),
    ],
)
def test_ctrl_c_asks_until_it_has_an_answer(
    run: OpenRun,
    left_behind: list[OpenRun],
    monkeypatch: pytest.MonkeyPatch,
    typed: list[str | BaseException],
    detached: bool,
) -> None:
    type_at_the_prompt(monkeypatch, *typed)
    answers = Interrupts(run, background=False)
    assert answers.answer(receive(signal.SIGINT)) is not detached
    answers.done()
    assert stopped(run) is not detached
    assert (left_behind == [run]) is detached


def test_run_goes_on_attended_without_an_answer(
    run: OpenRun,
    left_behind: list[OpenRun],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_at_the_prompt(monkeypatch)
    monkeypatch.setattr("builtins.input", lambda _: signal.pause())
    monkeypatch.setattr(interrupts, "ANSWER_WITHIN_S", 0.01)
    assert Interrupts(run, background=False).answer(receive(signal.SIGINT))
    assert "no answer within 0 s, so the run continues as before" in capsys.readouterr().err
    assert not stopped(run)
    assert left_behind == []
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_without_a_terminal_ctrl_c_stops_the_run(run: OpenRun, left_behind: list[OpenRun]) -> None:
    assert Interrupts(run, background=False).answer(receive(signal.SIGINT))
    assert stopped(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_that_the_store_refuses_is_reported(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def refuse(_: OpenRun) -> None:
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(interrupts, "request_stop", refuse)
    answers = Interrupts(run, background=False)
    if number is signal.SIGINT:
        assert answers.answer(receive(number))
        assert "try Ctrl-C again" in capsys.readouterr().err
    else:
        with pytest.raises(Signalled):
            answers.answer(receive(number))
        said = capsys.readouterr().err
        assert "the stop could not be written (the disk is gone)" in said
        assert "no runner takes care of it. Still running" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_verb_that_looks_once_says_what_is_left(
    run: OpenRun, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    with pytest.raises((Signalled, KeyboardInterrupt)), told(run):
        raise receive(number)
    assert f"{run.id} has not ended, and no runner takes care of it. Still running" in capsys.readouterr().err


def test_a_signal_that_the_parent_ignores_stays_ignored_and_others_are_dropped_where_they_would_disturb() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with heeding(), undisturbed():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert receive(signal.SIGTERM).args == (128 + signal.SIGTERM,)


# -- yes or no -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "default", "agreed"),
    [
        ([""], True, True),
        ([""], False, False),
        (["Y"], False, True),
        (["n"], True, False),
        (["huh", "yes"], False, True),
        (["yesterday", "no"], True, False),
    ],
)
def test_enter_means_the_default_and_a_typo_repeats_the_question(
    monkeypatch: pytest.MonkeyPatch, typed: list[str | BaseException], default: bool, agreed: bool
) -> None:
    type_at_the_prompt(monkeypatch, *typed)
    if agreed:
        confirm(False, "Launch?", default=default, declined="nothing was launched")
    else:
        with pytest.raises(typer.Exit) as ended:
            confirm(False, "Launch?", default=default, declined="nothing was launched")
        assert ended.value.exit_code == 1


def test_no_answer_is_an_error_that_says_which_flag_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpecInvalid) as without:
        confirm(False, "Launch?", default=True, declined="")
    type_at_the_prompt(monkeypatch, EOFError())
    with pytest.raises(SpecInvalid) as ended:
        confirm(False, "Launch?", default=True, declined="nothing was launched")
    assert without.value.hint == ended.value.hint == "add -y"
    assert "nothing was launched" in ended.value.message
    type_at_the_prompt(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        confirm(False, "Launch?", default=True, declined="nothing was launched")
    assert "nothing was launched" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_the_log_of_a_background_runner_is_a_file_and_nothing_that_leads_elsewhere(kind: str, tmp_path: Path) -> None:
    """Whoever shares the folder of a store may put something there first."""
    log, elsewhere = tmp_path / "runner.log", tmp_path / ".profile"
    elsewhere.write_text("as it was\n")
    if kind == "a link":
        log.symlink_to(elsewhere)
    else:
        os.mkfifo(log)
    with pytest.raises(SpotrunError, match=r"cannot write .*runner\.log"), _opened(log) as output:
        output.write(b"$(a command)\n")
    assert elsewhere.read_text() == "as it was\n"
    log.unlink()
    for _ in range(2):
        with _opened(log) as output:
            output.write(b"a line\n")
    assert log.read_text() == "a line\na line\n"
    assert log.stat().st_mode & 0o777 == 0o600
