"""Port for what calls a runner in a cloud, so that a night needs no machine of the user."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from spotrun.folder.night_pin import Pin
from spotrun.folder.night_record import DAYS, Night
from spotrun.secrets.reference import Reference

AGAIN_EVERY_MIN = 15
ANEW = "`spotrun night install` makes it again, `spotrun night rm` removes the rest"
"""Advice where a part of a night is missing."""


class ScheduleTimes(NamedTuple):
    """The times of a schedule: these minutes of an hour, on these days, by the clock of the night's time zone."""

    minutes: tuple[int, ...]
    hour: int
    days: tuple[str, ...]


def when_due(night: Night) -> ScheduleTimes:
    hour, minute = _time_of(night)
    return ScheduleTimes((minute,), hour, night.days)


def when_due_again(night: Night) -> ScheduleTimes:
    """
    Every quarter of the hour that follows that of the night: the call for a night which could not begin, or whose time
    a clock change left out, so that the schedule did not fire.
    """
    hour, minute = _time_of(night)
    days = night.days if hour < 23 else tuple(DAYS[(DAYS.index(day) + 1) % len(DAYS)] for day in night.days)
    return ScheduleTimes(tuple(range(minute % AGAIN_EVERY_MIN, 60, AGAIN_EVERY_MIN)), (hour + 1) % 24, days)


def _time_of(night: Night) -> tuple[int, int]:
    hours, _, minutes = night.at.partition(":")
    return int(hours), int(minutes)


class Alarm(Protocol):
    """
    An alarm that calls the runner of one night while its run lives, as that runner sets it. Failures are those of
    CloudDriver.

    Each call may be repeated. An object remembers what it has set: `again` sets it whatever it remembers, because
    another process may have set it meanwhile.
    """

    def on(self, *, again: bool = False) -> None:
        """Call once a minute."""

    def off(self) -> None:
        """Call no more, until the next night is due."""

    def hear(self, instance_ids: Collection[str]) -> None:
        """Call at once when the cloud has news of one of these instances."""


class Function(NamedTuple):
    """The code that is called: an archive with spotrun in it, for this Python and these processors."""

    data: bytes
    python: str
    machine: str


class Nights(Protocol):
    """
    Installs nights in one region of a cloud. Failures are those of CloudDriver; AccessDenied names the right that is
    missing.
    """

    def build(self) -> Function:
        """
        Raises:
            NotInstalled: it cannot be made of what is installed here.
        """

    def require(self, name: str, store: str) -> None:
        """
        See whether a night of this name can be installed, before anything is written.

        Raises:
            SpecInvalid: the name is too long, or another store has a night of that name here.
        """

    def addresses(self, places: Mapping[str, Reference]) -> dict[str, str]:
        """
        Read the addresses of webhooks, by the names of their variables, as the runner of a night does: within seconds.

        Raises:
            SecretUnreadable, CloudError: one is not there or not encrypted, or cannot be read.
        """

    def put_address(self, place: Reference) -> str:
        """Return the command that puts another address in the place of the one that is there."""

    def pinned(self, name: str) -> Pin | None:
        """Read the pin of a night's runner; None if there is no runner, or an earlier spotrun installed it."""

    def install(self, pin: Pin, store: str, function: Function, say: Callable[[str], None]) -> None:
        """
        Make all that calls the runner of a night, or change what is there, and put the pin into the runner's
        environment. What is there and is not whole is removed before, and what another installation has begun is waited
        for. The runner is `function`, compared by its digest, whatever the store holds.
        """

    def look(self, name: str) -> None:
        """Call the runner once, to see that it runs. It goes on with a run that lives."""

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        """Call the runner for a night that is due now, and return its answer."""

    def wrong(self, night: Night, store: str) -> str:
        """Say in a sentence what is wrong with what calls the runner; "" if all is as it was installed."""

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        """Remove all that `install` made for a night of this store, with what no other night of it needs."""

    def alarm(self, name: str) -> Alarm:
        """Return the alarm of a night, for its runner."""

    def usd(self, hours: float) -> Decimal:
        """Return what calling the runner costs in a night whose run lives `hours`, with its requests to the store."""
