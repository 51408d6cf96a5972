"""
Chooses the subnet in which an instance starts. A subnet has failed if an instance in it ended before training began.
Within a zone, the best subnet that has not failed is chosen. If all subnets of a zone have failed, another zone is
preferred.

A subnet may lack a route to other networks, so that instances in it cannot install what their agents need. If the run
continued to use such a subnet, it would pay for one machine after another without training on any.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from msgspec import UNSET
from msgspec.structs import replace

from spotrun.offering import Offering
from spotrun.policy.facts import Facts, once
from spotrun.policy.images import with_good_image
from spotrun.policy.launches import rejected, stillborn
from spotrun.run.state import Launch, RunState

AVOIDED_FOR = timedelta(hours=1)
"""
Run time for which a failing zone is requested only after all other zones. A zone is failing if its newest instance
ended before it trained, and the zone has no subnet left to try.
"""


def surrounded(state: RunState, offering: Offering) -> Offering:
    """Return a copy of `offering` with the image and the subnet that a launch of it would use now."""
    found = with_good_image(state, offering)
    failed = _failed_subnets(state)
    subnet = next((each for each in found.subnets if each not in failed), found.subnet)
    return replace(found, subnet=subnet, other_subnets=UNSET)


@once
def failing_zones(facts: Facts) -> set[str]:
    """
    Return the zones that have no subnet left to try, and whose newest instance ended within the last hour, before
    training began.
    """
    failed = _failed_subnets(facts.state)
    untried = {found.zone for found in facts.world.offerings if {*found.subnets} - failed - {""}}
    newest = {launch.intent.offering.zone: launch for launch in _telling(facts.state)}
    return {zone for zone, launch in newest.items() if _just_failed(facts, launch) and zone not in untried}


def _just_failed(facts: Facts, launch: Launch) -> bool:
    ended_at = launch.closed_at if launch.gone is None else launch.gone.ended_at
    return not launch.came_up and ended_at is not None and facts.now - ended_at < AVOIDED_FOR


def _failed_subnets(state: RunState) -> set[str]:
    """
    Return the subnets whose newest instance ended before training began. Only the launches from `_telling` count.
    """
    newest = {launch.intent.offering.subnet: launch for launch in _telling(state)}
    return {subnet for subnet, launch in newest.items() if not launch.came_up}


def _telling(state: RunState) -> Iterator[Launch]:
    """
    Yield the launches whose outcome shows whether their zone and subnet work, oldest first: those whose agent came up,
    and those whose instance ran but ended before training began. Launches that failed before the last `spotrun resume`
    are left out.
    """
    for launch in state.launches.values():
        failed = launch.intended_at >= state.opened_at and stillborn(launch) and not rejected(launch)
        if launch.came_up or failed:
            yield launch
