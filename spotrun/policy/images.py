"""
Chooses the machine image to start with: the publisher's newest; if that fails, the image with which the run trained.

A new image may not boot, or may lack a program that the bootstrap needs. Then each launch with it would pay for a
machine that never trains.
"""

from __future__ import annotations

from msgspec.structs import replace

from spotrun.offering import Offering
from spotrun.policy.launches import stillborn
from spotrun.policy.patience import since_opened
from spotrun.run.state import Launch, RunState


def with_good_image(state: RunState, offering: Offering) -> Offering:
    """
    Return `offering`, or a copy with the image that trained last in its region if its own image has failed.

    An image has failed if a launch with it ended before its agent took over. If no image of that region has trained,
    the run tries the failed image again.
    """
    if not offering.image:
        return offering
    newest = _newest_outcomes(state, offering.region)
    own = newest.get(offering.image)
    if own is None or own.attempt is not None:
        return offering
    good = [launch for launch in newest.values() if launch.attempt is not None]
    if not good:
        return offering
    return replace(offering, image=max(good, key=lambda launch: launch.number).intent.offering.image)


def _newest_outcomes(state: RunState, region: str) -> dict[str, Launch]:
    """
    Return, for each image, its newest launch with an outcome. A failure before the run was resumed does not count.
    """
    failed = {launch.number for launch in since_opened(state) if stillborn(launch)}
    return {
        launch.intent.offering.image: launch
        for launch in state.launches.values()
        if launch.intent.offering.region == region and (launch.attempt is not None or launch.number in failed)
    }
