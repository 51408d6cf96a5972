"""The gaps of a run: parts of its training's state that change but are in no checkpoint."""

from __future__ import annotations

import msgspec

from spotrun.run.bounds import Count
from spotrun.run.state import RunState


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """
    A part of a training's state that changes but is in no checkpoint.

    `place` is the path to this part in the script, and `what` is its kind. `step` is the step at which the agent
    noticed that the part had changed. `resumes` counts how often training has resumed since then. The change was lost
    at each of these resumes.
    """

    place: str
    what: str
    step: Count
    resumes: Count


def gaps(state: RunState) -> tuple[Gap, ...]:
    """Return the gaps in the order in which the run found them."""
    return tuple(
        Gap(place=one.place, what=one.what, step=one.step, resumes=state.resumes_without(one))
        for one in state.not_carried
    )
