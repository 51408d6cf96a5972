"""The port to a cloud service that calls a runner, so that a night needs no machine of the user."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from spotrun.folder.night import DAYS, Night, Pin
from spotrun.secrets.reference import Reference

AGAIN_EVERY_MIN = 15
ANEW = "`spotrun night install` makes it again, `spotrun night rm` removes the rest"
"""Advice if a part of a night is missing."""


class ScheduleTimes(NamedTuple):
    """The times of a schedule: minutes of an hour, on certain days, in the night's time zone."""

    minutes: tuple[int, ...]
    hour: int
    days: tuple[str, ...]


def when_due(night: Night) -> ScheduleTimes:
    hour, minute = _time_of(night)
    return ScheduleTimes((minute,), hour, night.days)


def when_due_again(night: Night) -> ScheduleTimes:
    """
    Return the times of a second call: each quarter of the hour after the night's hour. It serves nights that could not
    begin at first, and nights whose time a clock change skipped, so that the schedule did not fire.
    """
    hour, minute = _time_of(night)
    days = night.days if hour < 23 else tuple(DAYS[(DAYS.index(day) + 1) % len(DAYS)] for day in night.days)
    return ScheduleTimes(tuple(range(minute % AGAIN_EVERY_MIN, 60, AGAIN_EVERY_MIN)), (hour + 1) % 24, days)


def _time_of(night: Night) -> tuple[int, int]:
    hours, _, minutes = night.at.partition(":")
    return int(hours), int(minutes)


class Alarm(Protocol):
    """
    An alarm that calls the runner of one night while its run lives. The runner itself switches the alarm on and off.
    Failures are CloudDriver's errors.

    Each call may be repeated. An object remembers the state that it has set. With `again`, it sets the state even if it
    has set the same state before, because another process may have changed it meanwhile.
    """

    def on(self, *, again: bool = False) -> None:
        """Call the runner once a minute from now on."""

    def off(self) -> None:
        """Stop calling the runner until the next night is due."""

    def hear(self, instance_ids: Collection[str]) -> None:
        """Call the runner at once when the cloud reports an event of one of these instances."""


class Function(NamedTuple):
    """
    The code of a night's runner: an archive that includes spotrun, for one Python version and one kind of processor.
    """

    data: bytes
    python: str
    machine: str


class Nights(Protocol):
    """
    Installs nights in one region of a cloud. Failures are CloudDriver's errors; AccessDenied names the missing right.
    """

    def build(self) -> Function:
        """
        Build the runner from the packages that are installed here.

        Raises:
            NotInstalled: the installed packages cannot make the runner.
        """

    def require(self, name: str, store: str) -> None:
        """
        Check that a night of this name can be installed, before anything is written.

        Raises:
            SpecInvalid: the name is too long, or a night of another store has that name here.
        """

    def addresses(self, places: Mapping[str, Reference]) -> dict[str, str]:
        """
        Read the addresses of webhooks within seconds, as a night's runner does. Return them by the names of their
        variables.

        Raises:
            SecretUnreadable, CloudError: an address is missing, not encrypted, or unreadable.
        """

    def put_address(self, place: Reference) -> str:
        """Return the command that replaces the address that is stored at `place`."""

    def pinned(self, name: str) -> Pin | None:
        """Read the pin of a night's runner; None if there is no runner, or an earlier spotrun installed it."""

    def install(self, pin: Pin, store: str, function: Function, say: Callable[[str], None]) -> None:
        """
        Make or change everything that calls a night's runner, and put the pin into the runner's environment. Incomplete
        parts from before are removed first; if another installation is under way, wait for its end. The runner is
        `function`, compared by its digest, whatever the store holds.
        """

    def look(self, name: str) -> None:
        """Call the runner once, to check that it works. If a run lives, the runner attends to it."""

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        """Call the runner for a night that is due now, and return its answer."""

    def wrong(self, night: Night, store: str) -> str:
        """Describe in a sentence what is wrong with the parts that call the runner; "" if all are as installed."""

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        """
        Remove everything that `install` made for a night of this store, and whatever no other night of the store needs.
        """

    def alarm(self, name: str) -> Alarm:
        """Return a night's alarm, for use by its runner."""

    def usd(self, hours: float) -> Decimal:
        """
        Return the cost of calling the runner in a night whose run lives for `hours`, with its requests to the store.
        """
