"""
Chooses the subnet to start in: the best of the zone; if an instance there ended before it trained, another subnet, and
then another zone.

A subnet may lack a route, so that no instance in it can install what its agent needs. Then each launch there would pay
for a machine that never trains.
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
"""Run time for which a zone comes last if its newest instance ended before it trained and it has no other subnet."""


def surrounded(state: RunState, offering: Offering) -> Offering:
    """Return `offering` with the image and the subnet that a launch would use now."""
    found = with_good_image(state, offering)
    failed = _failed_subnets(state)
    subnet = next((each for each in found.subnets if each not in failed), found.subnet)
    return replace(found, subnet=subnet, other_subnets=UNSET)


@once
def failing_zones(facts: Facts) -> set[str]:
    """
    Return the zones without an untried subnet whose newest instance ended before it trained, within the last hour.
    """
    failed = _failed_subnets(facts.state)
    untried = {found.zone for found in facts.world.offerings if {*found.subnets} - failed - {""}}
    newest = {launch.intent.offering.zone: launch for launch in _telling(facts.state)}
    return {zone for zone, launch in newest.items() if _just_failed(facts, launch) and zone not in untried}


def _just_failed(facts: Facts, launch: Launch) -> bool:
    ended_at = launch.closed_at if launch.gone is None else launch.gone.ended_at
    return not launch.came_up and ended_at is not None and facts.now - ended_at < AVOIDED_FOR


def _failed_subnets(state: RunState) -> set[str]:
    """Return the subnets in which the newest instance that counts as evidence ended before it trained."""
    newest = {launch.intent.offering.subnet: launch for launch in _telling(state)}
    return {subnet for subnet, launch in newest.items() if not launch.came_up}


def _telling(state: RunState) -> Iterator[Launch]:
    """
    Yield the launches whose outcome is evidence about their zone and subnet, oldest first: their agent came up, or they
    ran and ended before they trained. A failure before the run was resumed is ignored.
    """
    for launch in state.launches.values():
        failed = launch.intended_at >= state.opened_at and stillborn(launch) and not rejected(launch)
        if launch.came_up or failed:
            yield launch
