"""What becomes of a command that keeps its state in files: who gets SIGTERM, where the next begins, what was kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spotrun.account.outcome import is_plain, status_word
from spotrun.account.summary import summarise
from spotrun.account.timeline import Activity
from spotrun.agent.decisions import (
    StateChoice,
    beginning_after,
    failures_in_a_row,
    is_restless,
    leaving_s,
    why_give_up_command,
)
from spotrun.agent.grace_period import GracePeriod, StateTimes
from spotrun.agent.inbox import NoticeHeard
from spotrun.agent.machine.sigterm import Process, Targets, targets_of
from spotrun.intervals import expected_rework
from spotrun.market.world import World
from spotrun.policy import workload
from spotrun.policy.facts import Facts
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.decisions import spec
from tests.support.histories import FREE_STORAGE, History
from tests.support.manual_clock import ManualClock


def processes(*rows: tuple[int, int, str]) -> dict[int, Process]:
    """(pid, parent, what): `shell`, `catches`, `shell that catches`, or any other program."""
    return {pid: Process(pid, parent, "shell" in what, "catches" in what) for pid, parent, what in rows}


@pytest.mark.parametrize(
    ("tree", "targets"),
    [
        ([(1, 0, "catches")], Targets((), (1,), (1,))),
        ([(1, 0, "program")], Targets((), (1,), ())),
        ([(1, 0, "catches"), (2, 1, "worker that catches")], Targets((), (1,), (1,))),
        ([(1, 0, "shell"), (2, 1, "catches"), (3, 2, "worker")], Targets((1,), (2,), (2,))),
        ([(1, 0, "shell"), (2, 1, "catches"), (3, 1, "tee")], Targets((1,), (2,), (2,))),
        ([(1, 0, "shell"), (2, 1, "shell"), (3, 2, "catches")], Targets((1, 2), (3,), (3,))),
        ([(1, 0, "shell"), (2, 1, "program"), (3, 1, "program")], Targets((1,), (2, 3), ())),
        ([(1, 0, "shell that catches"), (2, 1, "sleep")], Targets((), (1, 2), (1,))),
        ([(1, 0, "shell")], Targets((), (1,), ())),
        ([], Targets((), (), ())),
    ],
)
def test_sigterm_goes_to_the_program_that_catches_it(tree: list[tuple[int, int, str]], targets: Targets) -> None:
    assert targets_of(1, processes(*tree)) == targets


# -- failures -----------------------------------------------------------------------------------------------------


def files(size_bytes: int = 100) -> ev.CommittedFiles:
    return ev.CommittedFiles(
        key="outputs/1/list-x.json",
        blake3="x",
        files=2,
        size_bytes=size_bytes,
        objects=2,
        sent_bytes=60,
        stored_bytes=60,
    )


class CommandHistory(History):
    """Of a command whose state is kept."""

    def __init__(self) -> None:
        super().__init__(FREE_STORAGE, spec={"train": {"run": "./simulate", "state": ["out/"]}})

    def state_commit(self, **fields: Any) -> int:
        return self.commit(files=files(), size_bytes=0, step=0, **fields)

    def fails(self, cause: Cause = Cause.USER_ERROR) -> ev.TrainerExited:
        self.exited(cause)
        exited = self.state.attempts[self.attempt].trainers[-1].exited
        assert exited is not None
        return exited


def begun(history: CommandHistory) -> CommandHistory:
    launch = history.launch()
    history.after(10).record(launch)
    booted_at = history.after(50).now
    history.after(25).start(launch, booted_at)
    history.resume()
    return history


def test_two_failures_without_a_checkpoint_between_them_are_at_the_same_step() -> None:
    history = begun(CommandHistory())
    history.state_commit()
    first = history.fails()
    assert beginning_after(first, failures_in_a_row(history.state), alone=True) is StateChoice.AS_IT_STANDS
    assert why_give_up_command(history.state, first, 9) is None
    history.resume()
    history.state_commit()
    again = history.fails()
    assert failures_in_a_row(history.state) == 1, "a checkpoint was made in between"
    history.resume()
    second = history.fails()
    assert beginning_after(second, failures_in_a_row(history.state), alone=True) is StateChoice.NEWEST
    history.resume()
    third = history.fails()
    assert beginning_after(third, failures_in_a_row(history.state), alone=True) is StateChoice.ONE_BEFORE
    assert why_give_up_command(history.state, third, 9) is None
    history.resume(walk_back=1)
    fourth = history.fails()
    assert why_give_up_command(history.state, fourth, 9) is not None
    assert why_give_up_command(history.state, again, 1) is not None


def test_a_failed_command_of_a_gang_begins_with_the_files_of_a_commit() -> None:
    """Its members have files of their own as they stand."""
    history = begun(CommandHistory())
    history.state_commit()
    failed = history.fails()
    assert beginning_after(failed, failures_in_a_row(history.state), alone=False) is StateChoice.NEWEST


def test_a_command_without_a_checkpoint_fails_twice() -> None:
    history = begun(CommandHistory())
    first = history.fails()
    assert why_give_up_command(history.state, first, 9) is None
    history.resume()
    second = history.fails()
    assert "2 times without a checkpoint" in str(why_give_up_command(history.state, second, 9))


def test_files_of_a_killed_command_are_not_used_by_the_next_attempt() -> None:
    history = begun(CommandHistory())
    history.state_commit()
    for _ in range(5):
        killed = history.fails(Cause.OUT_OF_MEMORY)
        assert beginning_after(killed, failures_in_a_row(history.state), alone=True) is StateChoice.NEWEST
        assert why_give_up_command(history.state, killed, 9) is None
        history.resume()


# -- the notice ---------------------------------------------------------------------------------------------------


def test_sigterm_comes_as_late_as_the_measured_saves_allow() -> None:
    history = begun(CommandHistory())
    assert leaving_s(history.state, None) is None
    history.after(100).state_commit(taken_s_ago=4)
    assert leaving_s(history.state, None) is None, "no command has answered SIGTERM yet"
    history.after(100).state_commit(taken_s_ago=6, stall_s=10, final=True)
    assert leaving_s(history.state, None) == 16
    assert leaving_s(history.state, 2.0) == 12

    clock = ManualClock()
    drain = GracePeriod(clock)
    drain.notice(NoticeHeard("termination", None, clock.monotonic() + 120))
    assert drain.until_next_s(StateTimes(None)) == pytest.approx(60, abs=2), "half of the window"
    assert drain.until_next_s(StateTimes(16.0)) == pytest.approx(120 - 24 - 5, abs=2)


def test_restless_state_is_reported_after_three_intervals() -> None:
    assert not is_restless(89.0, 30.0)
    assert is_restless(90.0, 30.0)


# -- the account --------------------------------------------------------------------------------------------------


def times(history: History) -> dict[str, float]:
    spent = summarise(history.state, history.now).total.times
    return {str(kind): time.total_seconds() for kind, time in spent.items() if time and kind is not Activity.WAIT}


def test_work_after_the_resumed_freeze_is_rework() -> None:
    history = begun(CommandHistory())
    before = times(history)
    history.after(100).state_commit()
    history.after(40)
    assert times(history) == {**before, "productive": 140}
    assert is_plain(history.state)
    assert status_word(history.state) == "training"
    history.ended(Cause.INTERRUPTED)
    assert times(history)["rework"] == 40
    assert times(history)["productive"] == 100
    summary = summarise(history.state, history.now)
    assert summary.plain
    assert summary.total.usd_per_productive_hour == summary.total.cost_usd * 36


def test_without_a_checkpoint_all_of_it_is_rework() -> None:
    history = begun(CommandHistory())
    history.after(100).ended(Cause.INTERRUPTED)
    assert times(history)["rework"] == 100
    assert "productive" not in times(history)


def test_command_resumed_in_place_has_lost_nothing() -> None:
    history = begun(CommandHistory())
    commit = history.after(100).state_commit()
    history.after(40).exited()
    history.write(ev.ResumedFrom(attempt=history.attempt, incarnation=1, commit=commit, epoch=0, step=0, in_place=True))
    history.after(60)
    assert "rework" not in times(history)
    assert times(history)["productive"] == 200


def test_a_command_that_runs_counts_from_its_begin() -> None:
    history = begun(CommandHistory())
    began_at = history.now
    history.after(60)
    history.write(ev.TrainingStarted(attempt=history.attempt, incarnation=0, step=0, began_at=began_at))
    assert times(history)["productive"] == 60
    assert is_plain(history.state)
    history.training()
    assert not is_plain(history.state), "it has done a step after all"
    assert not history.state.voids


def test_work_that_keeps_nothing_is_repeated_the_more_the_longer_it_is() -> None:
    hour = timedelta(hours=1)
    assert expected_rework(hour, hour) == pytest.approx(0.718 * hour, rel=0.01)
    assert expected_rework(4 * hour, hour) == pytest.approx(49.6 * hour, rel=0.01)
    assert expected_rework(100 * hour, hour) is None


def test_a_deadline_counts_the_time_that_a_command_has_kept() -> None:
    history = begun(CommandHistory())
    history.after(100).state_commit(stall_s=20, final=True)
    history.after(40)
    facts = Facts(history.state, spec(), World(offerings=(), instances=()), history.now)
    assert workload._trained_s(facts) == times(history)["productive"]
    assert workload.commit_interval_s(facts) < 100, "its end after SIGTERM is no stall of each checkpoint"
