"""The state of a training that changes and is in no checkpoint. Pure."""

from __future__ import annotations

import msgspec

from spotrun.run.bounds import Count
from spotrun.run.state import RunState


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """
    State that changes but that no checkpoint holds.

    `place` is its name in the script, and `what` is its kind. It had changed by `step`, and `resumes` resumes since
    then lacked it.
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
