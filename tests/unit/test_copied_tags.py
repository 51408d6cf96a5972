"""
Somebody launches another instance "like this" in their cloud's console, which copies the tags and what starts the
agent: the copy is not the run's instance, whatever it says.
"""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.inbox import PowerOff
from spotrun.folder.ledger import Decide
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.policy import Terminate
from spotrun.run import events as ev
from spotrun.run.state import RunState
from tests.support.decisions import decided, events_of, instance
from tests.support.histories import History


@pytest.fixture
def history() -> History:
    """One launch, recorded."""
    history = History()
    history.record(history.launch())
    return history


@pytest.fixture
def real(history: History) -> Instance:
    return instance(history, next(iter(history.state.launches)))


def copy_of(real: Instance) -> Instance:
    return replace(real, instance_id="i-copy", launched_at=real.launched_at + timedelta(minutes=10))


@pytest.mark.parametrize("copy_first", [True, False])
def test_the_end_of_a_copy_is_not_that_of_the_instance(history: History, real: Instance, copy_first: bool) -> None:
    copy = copy_of(real)
    ended = replace(copy, state=InstanceState.TERMINATED, ended_at=copy.launched_at, ended_by=EndedBy.USER)
    assert decided(history, instances=[ended, real] if copy_first else [real, ended]) == []


def test_a_copy_is_ended_and_the_instance_is_not(history: History, real: Instance) -> None:
    found = decided(history, instances=[copy_of(real), real])
    assert [each.instance_id for each in found if isinstance(each, Terminate)] == ["i-copy"]


def test_a_copy_does_not_stand_for_an_instance_that_is_gone(history: History, real: Instance) -> None:
    history.after(3600)
    found = events_of(decided(history, instances=[copy_of(real)], silent={real.launch: timedelta(hours=1)}))
    assert [each.instance_id for each in found if isinstance(each, ev.InstanceGone)] == [real.instance_id]


def test_until_one_is_recorded_the_first_is_the_instance() -> None:
    history = History()
    real = instance(history, history.launch())
    found = events_of(decided(history, instances=[copy_of(real), real]))
    assert [each.instance_id for each in found if isinstance(each, ev.LaunchRecorded)] == [real.instance_id]


class Recorder:
    """Writes at once to a history."""

    def __init__(self, history: History) -> None:
        self._history = history

    @property
    def state(self) -> RunState:
        return self._history.state

    def append(self, decide: Decide) -> Future[ev.Entry | None]:
        if (event := decide(self.state)) is not None:
            self._history.write(event)
        future: Future[ev.Entry | None] = Future()
        future.set_result(None)
        return future


def test_the_agent_of_a_copy_does_not_go_on_with_the_attempt(history: History, real: Instance) -> None:
    launch, now = real.launch, history.now
    mine = AttemptJournal(Recorder(history), launch, real.instance_id, now)
    attempt = mine.take_over()
    assert AttemptJournal(Recorder(history), launch, real.instance_id, now).take_over() == attempt
    with pytest.raises(PowerOff, match=real.instance_id):
        AttemptJournal(Recorder(history), launch, "i-copy", now).take_over()
