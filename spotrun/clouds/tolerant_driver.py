"""
A driver that keeps some of the cloud's errors from stopping a run: it reports them as remarks, and tries again later.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver, WrappedDriver
from spotrun.errors import CloudError, CloudUnavailable
from spotrun.instance import Instance
from spotrun.offering import Offering

AGAIN_AFTER_S = 30.0
"""Seconds from an error to the next try."""


class _Refusal(NamedTuple):
    words: str
    until_s: float


_NONE = _Refusal("", -inf)


class TolerantDriver(WrappedDriver):
    """
    A driver whose `offerings` and `terminate` never raise the cloud's errors, so that these do not stop the runner. If
    `offerings` fails, training can continue without new offerings. If `terminate` fails for one instance, for example
    because of termination protection or an organisation policy, the runner must still end the other instances.
    """

    def __init__(self, driver: CloudDriver, clock: Clock) -> None:
        super().__init__(driver)
        self._clock = clock
        self._offered: list[Offering] = []
        self._unread = _NONE
        self._unended: dict[str, _Refusal] = {}

    @property
    def unread(self) -> str:
        """The reason why the offerings could not be read so far; "" if they have been read."""
        return "" if self._offered else self._unread.words

    @property
    def remarks(self) -> tuple[str, ...]:
        refused = (self._unread, *self._unended.values())
        return (*super().remarks, *(each.words for each in refused if each.words))

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        """
        Return the current offerings. If they cannot be read, return the last known ones, or [] if they were never read.
        """
        if self._offered and self._clock.monotonic() < self._unread.until_s:
            return self._offered
        try:
            self._offered, self._unread = super().offerings(must_see), _NONE
        except CloudError as error:
            words = f"the last known prices and places are used: {error.one_line}" if self._offered else error.one_line
            self._unread = self._refusal(words)
        return self._offered

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        found = super().instances(run_uid, must_see)
        alive = {each.instance_id for each in found if each.alive}
        self._unended = {name: refusal for name, refusal in self._unended.items() if name in alive}
        return found

    def terminate(self, instance_id: str) -> None:
        """End an instance, or record why it cannot be ended now."""
        if self._clock.monotonic() < self._unended.get(instance_id, _NONE).until_s:
            return
        try:
            super().terminate(instance_id)
        except CloudError as error:
            refusal = self._refusal(f"{instance_id} cannot be ended: {error.one_line}")
            passing = isinstance(error, CloudUnavailable)
            self._unended[instance_id] = refusal._replace(until_s=-inf) if passing else refusal
        else:
            self._unended.pop(instance_id, None)

    def _refusal(self, words: str) -> _Refusal:
        return _Refusal(words, self._clock.monotonic() + AGAIN_AFTER_S)
