"""
The interface to the cloud services that run nights. A night is a job that starts at a time of day. A schedule in the
cloud calls the night's runner, so the user's machine may be off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from spotrun.folder.night import DAYS, Night, Pin
from spotrun.secrets.reference import Reference

AGAIN_EVERY_MIN = 15
ANEW = "`spotrun night install` makes it again, or `spotrun night rm` removes the other parts of the night"
"""Advice if a part of a night is missing."""


class ScheduleTimes(NamedTuple):
    """The times at which a schedule calls the runner: minutes of an hour and days, in the night's time zone."""

    minutes: tuple[int, ...]
    hour: int
    days: tuple[str, ...]


def when_due(night: Night) -> ScheduleTimes:
    hour, minute = _time_of(night)
    return ScheduleTimes((minute,), hour, night.days)


def when_due_again(night: Night) -> ScheduleTimes:
    """
    Return the times of repeated calls: every 15 minutes in the next clock hour after the night's own. The repeated
    calls are needed if the first call could not begin the night, or if there was no first call, because the change to
    daylight saving time skipped that time of day.
    """
    hour, minute = _time_of(night)
    days = night.days if hour < 23 else tuple(DAYS[(DAYS.index(day) + 1) % len(DAYS)] for day in night.days)
    return ScheduleTimes(tuple(range(minute % AGAIN_EVERY_MIN, 60, AGAIN_EVERY_MIN)), (hour + 1) % 24, days)


def _time_of(night: Night) -> tuple[int, int]:
    hours, _, minutes = night.at.partition(":")
    return int(hours), int(minutes)


class Alarm(Protocol):
    """
    An alarm that calls a night's runner once a minute until the night's run has ended. The runner itself switches the
    alarm on and off. The methods raise CloudDriver's errors.

    An Alarm object remembers the state that it has set, and sends no request if the state stays the same. With `again`,
    it sends the request anyway, because another process may have changed the state.
    """

    def on(self, *, again: bool = False) -> None:
        """Begin to call the runner once a minute."""

    def off(self) -> None:
        """Stop calling the runner until the next night is due."""

    def hear(self, instance_ids: Collection[str]) -> None:
        """Have the cloud call the runner immediately when an event of one of these instances occurs."""

    def wrong(self) -> str:
        """
        Return one sentence about a schedule that should call the runner for a night and will not; "" if each will. The
        runner can report this only while another schedule still calls it.
        """


class Function(NamedTuple):
    """
    The code of a night's runner: an archive that includes spotrun, for one Python version and one kind of processor.
    """

    data: bytes
    python: str
    machine: str


class Nights(Protocol):
    """
    Installs nights in one region of a cloud. The methods raise CloudDriver's errors; AccessDenied names the missing
    right.
    """

    name_max: int
    """Maximum length of a night's name, in characters."""
    name_limit: str
    """The reason for `name_max`, as a clause of an error message."""

    def build(self) -> Function:
        """
        Build the runner from the packages that are installed here.

        Raises:
            NotInstalled: the installed packages cannot make the runner.
        """

    def require(self, name: str, store: str) -> None:
        """
        Check that a night of this name can be installed. Nothing is written.

        Raises:
            SpecInvalid: a night in another store already uses the name in this region.
        """

    def addresses(self, places: Mapping[str, Reference]) -> dict[str, str]:
        """
        Read the addresses of webhooks from the places where they are stored in the cloud. Return the addresses keyed by
        the names of their environment variables. Give up after a few seconds: the night's runner does not wait longer
        either.

        Raises:
            SecretUnreadable, CloudError: an address is missing, not encrypted, or unreadable.
        """

    def put_address(self, place: Reference) -> str:
        """Return the shell command with which the user can store another webhook address at `place`."""

    def pinned(self, name: str) -> Pin | None:
        """
        Read the pin of a night. A pin is a variable in the environment of the night's runner that says which job the
        runner trusts. Return None if there is no runner, or if it was installed by an old version of spotrun that had
        no pins.
        """

    def install(self, pin: Pin, store: str, function: Function, say: Callable[[str], None]) -> None:
        """
        Create or update the night's runner and everything that calls it, and put the pin into the runner's environment.
        Before that, wait until no other installation is under way, and remove the remains of incomplete installations.

        Compare the digest of the installed code with `function`'s digest, because another process may have replaced the
        archive in the store.
        """

    def look(self, name: str) -> None:
        """
        Call the runner once, to check that it works. If the night has an unfinished run, this call also takes care of
        that run.
        """

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        """Call the runner for a night that is due now, and return its answer."""

    def wrong(self, night: Night, store: str) -> str:
        """
        Check the schedules that call the runner, and their rights to call it. Return one sentence about what is wrong;
        "" if schedules and rights are as `install` made them.
        """

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        """
        Remove everything that `install` made for the night `name`. The nights of a store share some parts. Remove these
        too if no other night needs them.
        """

    def alarm(self, name: str) -> Alarm:
        """Return a night's alarm. Only the night's runner uses it."""

    def usd(self, hours: float) -> Decimal:
        """
        Return the expected cost of a night's runner, including its requests to the store, if the night's run lasts for
        `hours`.
        """
