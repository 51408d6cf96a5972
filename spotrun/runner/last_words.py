"""Adds the last output of an instance to the ledger entry that records how the instance ended."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from spotrun.clouds.last_words import LastWords
from spotrun.instance import EndedBy, Instance
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState


def with_last_words(
    event: ev.InstanceGone | ev.LaunchClosed,
    state: RunState,
    listed: Iterable[Instance],
    last_words: LastWords | None,
) -> ev.InstanceGone | ev.LaunchClosed:
    """
    Return the event. If the instance ran but its agent never took over, add the instance's last output, because it may
    explain the end. Do not add it if the cloud ended the instance, or if a quota did not allow it: then the reason is
    already known.

    `listed` are the instances that the cloud lists.
    """
    launch = state.launches[event.launch]
    name = ev.name_of(event) if isinstance(event, ev.InstanceGone) else MemberName(event.launch, 0)
    recorded = state.member(name).recorded
    if last_words is None or launch.came_up or launch.closed is not None or recorded is None:
        return event
    instance = next((each for each in listed if each.instance_id == recorded.instance_id), None)
    if isinstance(event, ev.LaunchClosed):
        gave_up = event.cause is Cause.EXTERNAL and not event.refused
        said = last_words.of(name, instance) if gave_up else ""
        return replace(event, detail=f"{event.detail}; {said}") if said else event
    ran = event.billed_from is not None and event.ended_by not in (EndedBy.CLOUD, EndedBy.QUOTA)
    said = last_words.of(name, instance) if ran else ""
    return replace(event, evidence=f"{event.evidence}; {said}") if said else event
