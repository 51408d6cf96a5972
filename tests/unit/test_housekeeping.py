"""What the cloud says of a run's instances, as the ledger takes it down."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.policy.actions import Terminate
from spotrun.run import events as ev
from spotrun.run.billing import hourly, switched_off_at
from spotrun.run.events import Cause
from tests.support.decisions import decided, events_of, instance
from tests.support.histories import AWS_RULE, History


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


def test_g12_machine_that_is_off_costs_its_disk_alone_while_its_deletion_is_refused(history: History) -> None:
    history.start(1)
    shown = instance(history, 1)
    off_since = shown.launched_at + timedelta(hours=1)
    stopped = replace(shown, state=InstanceState.STOPPED, off_since=off_since)
    history.now = off_since + timedelta(minutes=5)
    assert events_of(decided(history, instances=(stopped,))) == [], "most are deleted by then"
    history.after(1)
    (event,) = events_of(decided(history, instances=(stopped,)))
    assert event == ev.InstanceStopped(launch=1, stopped_at=off_since)
    history.write(event)
    launch = history.state.launches[1]
    usd = [launch.cost_until(off_since + timedelta(days=days), AWS_RULE) for days in (0, 1)]
    assert usd[1] - usd[0] == hourly(AWS_RULE.volume_usd_per_hour, timedelta(days=1))
    assert events_of(decided(history, instances=(stopped,))) == [], "once"
    (end,) = gone(history, ended(shown, 7 * 86_400))
    assert switched_off_at(end.prices) == off_since, "also where its cloud has forgotten it"


def test_instance_is_billed_from_no_later_than_its_agents_boot() -> None:
    """A list that is late shows it as pending while its agent trains."""
    history = History()
    launch = history.launch()
    booted_at = history.after(30).now
    history.start(launch, booted_at)
    history.after(570)
    shown = instance(history, launch)
    (event,) = events_of(decided(history, instances=(shown,)))
    assert isinstance(event, ev.LaunchRecorded)
    assert event.billed_from == booted_at


def test_end_is_billed_from_no_later_than_a_boot_that_was_reported_after_the_record() -> None:
    history = History()
    launch = history.launch()
    booted_at = history.after(30).now
    history.after(60).record(launch)
    history.after(60).start(launch, booted_at)
    (event,) = gone(history, ended(instance(history, launch), 60))
    assert event.billed_from == booted_at
