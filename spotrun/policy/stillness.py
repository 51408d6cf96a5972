"""Whether a run is still: a runner then need not ask a cloud at each pass what has become of the run's instances."""

from __future__ import annotations

from collections.abc import Iterable

from spotrun.instance import Instance, InstanceState
from spotrun.run.state import RunState


def is_still(state: RunState, shown: Iterable[Instance]) -> bool:
    """
    Whether nothing is in motion: one instance trains, and it is all that the cloud showed of the run last. No launch,
    notice, stop or end is under way, and nothing of an earlier launch may be left.

    `state` may be newer than `shown`: an entry about an instance puts the run in motion at once.
    """
    current = state.current
    if current is None or current.leaving or state.stop_requested or state.terminal is not None:
        return False
    here = state.launch_of(current)
    others = (launch for launch in state.launches.values() if launch is not here)
    if here.recorded is None or here.condemned is not None or not all(launch.settled for launch in others):
        return False
    alive = [(each.instance_id, each.state) for each in shown if each.alive]
    return alive == [(current.instance_id, InstanceState.RUNNING)]
