"""Sends requests to each region of a cloud separately, so that a failure in one region does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from spotrun.clock import Clock
from spotrun.errors import CloudError, CloudUnavailable

T = TypeVar("T")

REST_FIRST_S, REST_MAX_S = 60.0, 600.0
"""
First and maximum seconds for which a region is not called after a failure. The pause doubles with each further failure.
Without the pause, a region in which every call hangs would delay the calls to the other regions each time.
"""


def regions_of(places: Collection[str] | None, names: Collection[str]) -> Collection[str] | None:
    """
    Select from the regions `names` those that are in `places` or have a zone in `places`. The name of a zone begins
    with the name of its region. Return None if `places` is None.
    """
    return None if places is None else {name for name in names if any(_is_in(place, name) for place in places)}


def _is_in(place: str, region: str) -> bool:
    return place.startswith(region) and not place.removeprefix(region)[:1].isdigit()


class _Rest(NamedTuple):
    error: CloudError
    until_s: float
    rest_s: float


class Regions:
    """Calls a function for each region of a cloud, and skips failed regions for a while."""

    def __init__(self, names: Sequence[str], clock: Clock) -> None:
        self._names = tuple(names)
        self._clock = clock
        self._resting: dict[str, _Rest] = {}

    @property
    def left_out(self) -> dict[str, str]:
        """The error message of each region whose last call failed, keyed by region."""
        return {name: rest.error.message for name, rest in self._resting.items()}

    def ask(self, question: Callable[[str], T], must_see: Collection[str] | None = None) -> dict[str, T]:
        """
        Call `question` for each region, and return the answers keyed by region. If a region fails, leave it out, and do
        not call it again for a while. Regions in `must_see` are always called.

        Raises:
            CloudError: a region in `must_see` failed (any region if `must_see` is None), or no region answered.
        """
        needed = self._names if must_see is None else must_see
        found: dict[str, T] = {}
        tired = [name for name in self._names if name not in needed and self._rests(name)]
        for name in (each for each in self._names if each not in tired):
            self._put(question, name, found, is_needed=name in needed)
        for name in tired if not found else ():
            self._put(question, name, found, is_needed=False)
        if not found:
            raise _mildest([rest.error for rest in self._resting.values()])
        return found

    def _put(self, question: Callable[[str], T], name: str, found: dict[str, T], *, is_needed: bool) -> None:
        try:
            found[name] = question(name)
        except CloudError as error:
            before = self._resting.get(name)
            rest_s = REST_FIRST_S if before is None else min(2 * before.rest_s, REST_MAX_S)
            self._resting[name] = _Rest(error, self._clock.monotonic() + rest_s, rest_s)
            if is_needed:
                raise
        else:
            self._resting.pop(name, None)

    def _rests(self, name: str) -> bool:
        rest = self._resting.get(name)
        return rest is not None and self._clock.monotonic() < rest.until_s


def _mildest(errors: Sequence[CloudError]) -> CloudError:
    """Return one of `errors`: a temporary one if there is one, so that the caller tries again instead of giving up."""
    return next((error for error in errors if isinstance(error, CloudUnavailable)), errors[0])
