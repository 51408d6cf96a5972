"""Regions stand alone: one that fails takes nothing from what the others say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from spotrun.clock import Clock
from spotrun.errors import CloudError, CloudUnavailable

T = TypeVar("T")

REST_FIRST_S, REST_MAX_S = 60.0, 600.0
"""How long a region that has failed is not asked: a call that hangs would hold up the others. It doubles."""


def regions_of(places: Collection[str] | None, names: Collection[str]) -> Collection[str] | None:
    """The regions among `names` that are one of the places, or have it: the name of a zone begins with its region's."""
    return None if places is None else {name for name in names if any(_is_in(place, name) for place in places)}


def _is_in(place: str, region: str) -> bool:
    return place.startswith(region) and not place.removeprefix(region)[:1].isdigit()


class _Rest(NamedTuple):
    error: CloudError
    until_s: float
    rest_s: float


class Regions:
    """Puts one kind of question to each region of a cloud, and lets those rest that fail."""

    def __init__(self, names: Sequence[str], clock: Clock) -> None:
        self._names = tuple(names)
        self._clock = clock
        self._resting: dict[str, _Rest] = {}

    @property
    def left_out(self) -> dict[str, str]:
        """By region, why it was left out last."""
        return {name: rest.error.message for name, rest in self._resting.items()}

    def ask(self, question: Callable[[str], T], must_see: Collection[str] | None = None) -> dict[str, T]:
        """
        What `question` answers, by region. A region that fails is left out, and is not asked again for a while.

        Raises:
            CloudError: from a region of `must_see`, which is all of them if None; or no region has answered.
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
    """What may pass by itself is no reason to give up, even if something else does not."""
    return next((error for error in errors if isinstance(error, CloudUnavailable)), errors[0])
