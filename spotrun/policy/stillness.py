"""Whether a run is still: a runner then need not ask a cloud at each pass what has become of the run's instances."""

from __future__ import annotations

from collections.abc import Iterable

from spotrun.instance import Instance, InstanceState
from spotrun.run.state import RunState


def is_still(state: RunState, shown: Iterable[Instance]) -> bool:
    """
    Whether nothing is in motion: one instance trains, or there is none to be had, and the cloud showed no other of the
    run last. No launch, notice, stop or end is under way, and nothing of an earlier launch may be left.

    `state` may be newer than `shown`: an entry about an instance puts the run in motion at once.
    """
    if state.stop_requested or state.terminal is not None:
        return False
    current = state.current
    left = [launch for launch in state.launches.values() if not launch.settled]
    alive = [(each.instance_id, each.state) for each in shown if each.alive]
    if current is None:
        return not left and not alive
    here = state.launch_of(current)
    goes_on = here.recorded is not None and here.condemned is None and not current.leaving
    return goes_on and left == [here] and alive == [(current.instance_id, InstanceState.RUNNING)]
