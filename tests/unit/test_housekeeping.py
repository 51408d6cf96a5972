"""What the cloud says of a run's instances, as the ledger takes it down."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.run import events as ev
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
