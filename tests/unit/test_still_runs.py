"""How often a cloud that rations its calls is asked for a run's instances: seldom while nothing happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotrun.instance import EndedBy, InstanceState
from spotrun.policy.idle_polling import is_still
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.decisions import instance, trains
from tests.support.histories import History
from tests.support.plain_aws import refusal
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.played_run import PlayedRun

PASS_S = 2.0
LOOK = "describe_instances"


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    """A run whose instance has trained for a minute."""
    run = PlainAwsRun(monkeypatch)
    assert run.trains_within(60)
    run.goes_on(60, PASS_S)
    return run


def asks(run: PlainAwsRun, seconds: float) -> int:
    before = run.is_asked(LOOK)
    run.goes_on(seconds, PASS_S)
    return run.is_asked(LOOK) - before


@pytest.mark.exhaustive
def test_a_quiet_hour_costs_240_looks_at_most(still: PlainAwsRun) -> None:
    assert 200 < asks(still, 3600) <= 240
    assert len(still.state.commits) > 50


MOTIONS: dict[str, Callable[[PlainAwsRun], object]] = {
    "a notice": lambda run: run.training.is_told_to_go(),  # type: ignore[union-attr]
    "a stop": lambda run: run.is_told_to_stop(),
    "a completion": lambda run: run.completes(),
}


@pytest.mark.parametrize("motion", MOTIONS)
def test_an_entry_about_the_instance_makes_the_next_pass_look(still: PlainAwsRun, motion: str) -> None:
    for _ in range(20):  # until a pass that would not have looked
        if asks(still, PASS_S) > 0 and asks(still, PASS_S) == 0:
            break
    MOTIONS[motion](still)
    assert asks(still, PASS_S) > 0


@pytest.mark.parametrize("seconds", range(0, 16, 3))
def test_an_end_without_a_word_is_seen_when_the_agent_misses_its_times_to_write(
    still: PlainAwsRun, seconds: int
) -> None:
    still.goes_on(seconds, PASS_S)
    still.is_interrupted()
    still.goes_on(6, PASS_S)
    (ended,) = [launch for launch in still.state.launches.values() if launch.gone is not None]
    assert ended.gone is not None
    assert ended.gone.ended_by is EndedBy.CLOUD


def test_runner_without_heartbeats_lists_instances_at_each_pass(still: PlainAwsRun) -> None:
    still.is_hung = True
    still.goes_on(6, PASS_S)
    assert asks(still, 30) == 30 / PASS_S


def refusal_of(run: PlainAwsRun, *operations: str, code: str = "RequestLimitExceeded") -> None:
    def refuse(operation: str) -> None:
        if operation in operations:
            raise refusal(code, 503)

    run.aws.fault = refuse


def test_throttled_account_is_polled_less_while_its_instance_trains(still: PlainAwsRun) -> None:
    refusal_of(still, LOOK)
    assert asks(still, 600) <= 40
    tick = still.ticks[-1]
    assert tick.blind is None
    assert tick.remark is not None
    assert tick.remark.startswith("using the last known list of instances: ")
    assert "RequestLimitExceeded" in tick.remark
    still.aws.fault = lambda _: None
    still.goes_on(60, PASS_S)
    assert still.ticks[-1].remark is None


def test_throttled_runner_keeps_polling_while_something_happens(still: PlainAwsRun) -> None:
    refusal_of(still, LOOK)
    still.goes_on(30, PASS_S)
    still.is_interrupted()
    assert asks(still, 30) > 10
    assert still.ticks[-1].blind
    still.aws.fault = lambda _: None
    assert still.trains_within(60)


def test_while_there_is_no_capacity_each_refusal_is_looked_after_and_nothing_else(still: PlainAwsRun) -> None:
    refusal_of(still, "run_instances", code="InsufficientInstanceCapacity")
    still.is_interrupted()
    still.goes_on(60, PASS_S)
    launches = still.is_asked("run_instances")
    looks = asks(still, 600)
    assert looks <= 40 + 2 * (still.is_asked("run_instances") - launches)
    still.aws.fault = lambda _: None
    assert still.trains_within(120)


def test_cloud_with_free_calls_is_polled_at_each_pass() -> None:
    asked: list[str] = []
    played = PlayedRun(steps=6000)
    runner = played.runner(before=asked.append)
    for _ in range(12):
        played.turn()
        runner.tick()
    asked.clear()
    for _ in range(10):
        played.clock.advance(PASS_S)
        runner.tick()
    assert asked.count("instances") == 10


# -- what is still ---------------------------------------------------------------------------------------------------


def no_motion(history: History) -> None:
    """What an agent writes while all is well."""
    history.commit()
    history.epoch(0)
    history.stored()
    history.not_carried("module.held")


def a_standby(history: History) -> None:
    history.launch()


def a_closed_launch(history: History) -> None:
    history.close(history.launch(), Cause.EXTERNAL)


def a_drain(history: History) -> None:
    history.write(ev.DrainRequested(attempt=history.attempt, reason="told"))


def a_condemnation(history: History) -> None:
    launch = history.state.attempts[history.attempt].launch
    history.write(ev.InstanceCondemned(launch=launch, cause=Cause.HANG, detail="silent"))


def the_end_of_the_attempt(history: History) -> None:
    history.ended()


@pytest.mark.parametrize(
    ("move", "still"),
    [
        (no_motion, True),
        (a_standby, False),
        (a_closed_launch, False),
        (a_drain, False),
        (a_condemnation, False),
        (the_end_of_the_attempt, False),
        (History.notice, False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_is_still_while_its_agent_trains_and_nothing_else_happens(
    move: Callable[[History], None], still: bool
) -> None:
    history = History()
    here = trains(history)
    assert is_still(history.state, [here])
    move(history)
    assert is_still(history.state, [here]) == still


def test_a_run_is_not_still_while_the_cloud_shows_anything_but_its_running_instance() -> None:
    history = History()
    here = trains(history)
    other = instance(history, 77)
    old = instance(history, 77, InstanceState.TERMINATED, ended_at=history.now, ended_by=EndedBy.USER)
    stopping = instance(history, here.launch, InstanceState.STOPPING)
    assert is_still(history.state, [here, old])
    assert not any(is_still(history.state, shown) for shown in ([], [here, other], [stopping], [other]))


def test_a_run_is_still_while_nothing_is_rented_and_not_while_an_instance_boots() -> None:
    history = History()
    assert is_still(history.state, [])
    launch = history.launch()
    assert not is_still(history.state, [])
    history.record(launch)
    assert not is_still(history.state, [instance(history, launch)])
    history.gone(launch)
    assert is_still(history.state, [])
    assert not is_still(history.state, [instance(history, 77)])
    history.write(ev.StopRequested(by="me"))
    assert not is_still(history.state, [])
