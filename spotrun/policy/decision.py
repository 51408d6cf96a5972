"""
Decides what to do next for a run. `decide` has no side effects: its result depends only on the run's state, the world
around the run, and the time.

It returns actions, which the runner carries out in order. Each action is safe to repeat, and the fold checks each event
again. So it does no harm if two runners make the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from spotrun.market.world import World
from spotrun.policy.actions import Action, Append, Terminate
from spotrun.policy.capacity import keep_going
from spotrun.policy.deadline import out_of_reach
from spotrun.policy.ending import drain_and_stop, hopeless, overdue, stop
from spotrun.policy.facts import Facts
from spotrun.policy.gangs import dismiss
from spotrun.policy.housekeeping import clean_up, record
from spotrun.policy.money import nearly_spent
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.port import Strategy


def decide(
    state: RunState, spec: RunSpec, world: World, now: datetime, strategies: Mapping[str, Strategy] = STRATEGIES
) -> list[Action]:
    """
    Return the actions to carry out now, in order. Decisions that could depend on the events of these actions are left
    to the next call.

    `strategies` are the strategies that a job is allowed to name.
    """
    facts = Facts(state, spec, world, now, strategies)
    housekeeping = [*record(facts), *clean_up(facts)]
    if any(not isinstance(action, Terminate) for action in housekeeping):
        return housekeeping
    return housekeeping + (list(dismiss(facts)) or _next_step(facts))


def _next_step(facts: Facts) -> list[Action]:
    state = facts.state
    if state.terminal is not None:
        return []
    if state.stop_requested:
        return list(stop(facts))
    if overdue(facts):
        return list(drain_and_stop(state, "max_duration is over"))
    if state.current is None and (failure := hopeless(facts)) is not None:
        return [Append(event=failure)]
    found = (out_of_reach(facts), nearly_spent(facts))
    news: list[Action] = [Append(event=event) for event in found if event is not None]
    return news + list(keep_going(facts))


def finished(state: RunState, world: World) -> bool:
    """
    Return True if nothing is left to do for this run, none of its instances runs, and the ledger has the end of each
    instance whose agent has reported. EC2 may list an instance only after its run is over.
    """
    if state.terminal is None or any(instance.alive for instance in world.instances):
        return False
    unsettled = (name for number in state.unsettled for name in state.launches[number].names)
    return all(state.member(name).gone is not None or state.shown(name) is None for name in unsettled)
