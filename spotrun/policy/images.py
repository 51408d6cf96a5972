"""
Chooses the machine image with which an instance starts. Normally this is the publisher's newest image. But if the
newest instance with that image never trained, the run uses the image with which it last trained.

A new image may be faulty: it may not boot, or may lack a program that the bootstrap needs. If the run continued to use
such an image, it would pay for one machine after another without training on any.
"""

from __future__ import annotations

from msgspec.structs import replace

from spotrun.offering import Offering
from spotrun.policy.launches import stillborn
from spotrun.policy.patience import since_opened
from spotrun.run.state import Launch, RunState


def with_good_image(state: RunState, offering: Offering) -> Offering:
    """
    Return `offering`. If its image has failed, return a copy of it with the image that trained last in its region.

    An image has failed if the newest instance with this image ended before its agent took over. If the run has not
    trained with any image in that region, it tries the failed image again.
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
    Return, for each machine image used in `region`, the newest launch from this image that has trained or failed.
    Failures before the run was last resumed do not count.
    """
    failed = {launch.number for launch in since_opened(state) if stillborn(launch)}
    return {
        launch.intent.offering.image: launch
        for launch in state.launches.values()
        if launch.intent.offering.region == region and (launch.attempt is not None or launch.number in failed)
    }
