"""What the cloud says of a run's instances, as the ledger takes it down."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.policy.actions import Terminate
from spotrun.run import events as ev
from spotrun.run.billing import switched_off_at
from spotrun.run.events import Cause
from tests.support.decisions import decided, events_of, instance
from tests.support.histories import History


@pytest.fixture
def history() -> History:
    history = History()
    history.record(history.launch())
    return history


def ended(seen: Instance, after_s: float) -> Instance:
    ended_at = seen.launched_at + timedelta(seconds=after_s)
    return replace(seen, state=InstanceState.TERMINATED, ended_at=ended_at, ended_by=EndedBy.CLOUD)


def gone(history: History, *instances: Instance) -> list[ev.InstanceGone]:
    return [each for each in events_of(decided(history, instances=instances)) if isinstance(each, ev.InstanceGone)]


def test_no_end_is_recorded_before_its_begin(history: History) -> None:
    """Whoever recorded its begin may have had another clock than whoever sees its end."""
    launch = history.state.launches[1]
    assert launch.recorded is not None
    (event,) = gone(history, ended(instance(history, 1), -240))
    assert event.ended_at == launch.recorded.billed_from == event.billed_from


def test_stopped_instance_is_terminated_so_that_its_disk_is_billed_no_more(history: History) -> None:
    stopped = replace(instance(history, 1), state=InstanceState.STOPPED)
    ends = [each for each in decided(history, instances=(stopped,)) if isinstance(each, Terminate)]
    assert ends == [Terminate(instance_id=stopped.instance_id, reason="it has stopped, and its disk is still billed")]
    assert gone(history, stopped) == [], "whoever ends it is told when it is gone"


@pytest.mark.parametrize("ran", [False, True])
def test_of_a_launch_that_was_refused_only_an_instance_that_ran_all_the_same_is_recorded(ran: bool) -> None:
    """Some clouds list what they have accepted and then refused: the refusal is in the ledger already."""
    history = History()
    launch = history.launch()
    history.close(launch, Cause.CAPACITY)
    shown = ended(instance(history, launch), 60)
    assert bool(gone(history, shown if ran else replace(shown, billed_from=None, prices=()))) is ran


@pytest.mark.parametrize("knows_prices", [True, False])
def test_a_machine_that_was_off_before_its_disk_went_costs_nothing_from_then_on(
    history: History, knows_prices: bool
) -> None:
    """Whoever ended it saw since when, and the cloud may have forgotten what it charged."""
    shown = instance(history, 1)
    off_since = shown.launched_at + timedelta(hours=1)
    over = replace(ended(shown, 7 * 86_400), off_since=off_since)
    (event,) = gone(history, over if knows_prices else replace(over, prices=()))
    assert switched_off_at(event.prices) == off_since
    assert event.prices[0].usd_per_hour > 0
