"""What changes in a training and is in no checkpoint. Pure."""

from __future__ import annotations

import msgspec

from spotrun.run.bounds import Count
from spotrun.run.state import RunState


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """
    `place` is its name in the script, and `what` says what it is. It has changed by `step`, and so many `resumes` since
    then began without it.
    """

    place: str
    what: str
    step: Count
    resumes: Count


def gaps(state: RunState) -> tuple[Gap, ...]:
    """In the order in which they were found."""
    return tuple(
        Gap(place=one.place, what=one.what, step=one.step, resumes=state.resumes_without(one))
        for one in state.not_carried
    )
