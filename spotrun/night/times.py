"""
Parses a night's time and days as users write them ("22:00 Europe/Berlin", mon-fri), and computes when nights are due.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from spotrun.errors import SpecInvalid
from spotrun.folder.night import DAYS, Night
from spotrun.units import shown

_AT = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s+(\S+)", re.ASCII)
_OF_THIS_MACHINE = {"localtime", "posixrules", "Factory"}
"""Names of files that lie in the folder of time zones, but that no cloud accepts as the name of a time zone."""
_AHEAD = timedelta(days=16)
"""
Length of the period, from now on, in which to look for the next night. It must be longer than two weeks: if a night is
due on one day of the week, and a clock change skips its time of day on that day next week, then the night is next due
in the week after that.
"""


def read_at(text: str) -> tuple[str, str]:
    """
    Return the time of day as HH:MM, and the name of its zone.

    Raises:
        SpecInvalid: the text is not a time of day and a time zone, or the zone is unknown.
    """
    found = _AT.fullmatch(text.strip())
    if found is None:
        raise SpecInvalid(
            f"--at {shown(text)!r} is not a time with a time zone",
            hint='write --at "22:00 Europe/Berlin" or "22:00 UTC"',
        )
    hours, minutes, zone = found.groups()
    return f"{int(hours):02d}:{minutes}", _known_zone(zone)


def _known_zone(name: str) -> str:
    known = available_timezones() - _OF_THIS_MACHINE
    if name in known:
        return name
    by_letters = {each.casefold(): each for each in known}
    by_city = {each.rpartition("/")[2].casefold(): each for each in sorted(known)}
    near = get_close_matches(name.casefold(), [*by_letters, *by_city], 1, cutoff=0.7)
    meant = None if not near else by_letters.get(near[0]) or by_city[near[0]]
    hint = f"did you mean {meant}?" if meant else "write a time zone such as Europe/Berlin, America/New_York or UTC"
    if not known:
        hint = "this machine has no time zones: apt-get install tzdata, or pip install tzdata"
    raise SpecInvalid(f"--at: there is no time zone {shown(name)!r}", hint=hint)


def read_days(text: str) -> tuple[str, ...]:
    """
    Read a list of days and ranges of days, or `daily`. Return the days in the order of the week.

    Raises:
        SpecInvalid: a part of the list is not a day.
    """
    if text.strip().casefold() == "daily":
        return DAYS
    found: set[str] = set()
    for part in text.split(","):
        first, _, last = (each.strip().casefold()[:3] for each in part.partition("-"))
        if first not in DAYS or (last and last not in DAYS):
            raise SpecInvalid(
                f"--days {shown(text)!r}: {shown(part.strip())!r} is not a day",
                hint="write, for example, --days mon-fri",
            )
        begin, count = DAYS.index(first), (DAYS.index(last or first) - DAYS.index(first)) % len(DAYS) + 1
        found |= {DAYS[(begin + each) % len(DAYS)] for each in range(count)}
    return tuple(day for day in DAYS if day in found)


def shortest_gap(days: Sequence[str]) -> timedelta:
    """Return the shortest time from one night to the next."""
    numbers = [DAYS.index(day) for day in days]
    following = [*numbers[1:], numbers[0] + len(DAYS)]
    return timedelta(days=min(later - day for day, later in zip(numbers, following, strict=True)))


def winter_offset_s(zone: str, now: datetime) -> int:
    """Return a time zone's offset from UTC in seconds, without daylight saving time."""
    moments = (now + timedelta(days=days) for days in (0, 91, 182, 273))
    offsets = [offset for each in moments if (offset := each.astimezone(ZoneInfo(zone)).utcoffset()) is not None]
    return int(min(offsets).total_seconds())


def next_due(night: Night, after: datetime) -> datetime | None:
    """
    Return the time at which a night is due next, computed as EventBridge Scheduler does; None if this machine does not
    know the time zone.

    If a clock change skips the night's time of day, the night is not due on that day. If a clock change repeats it, the
    night is due only once.
    """
    try:
        zone = ZoneInfo(night.zone)
    except ZoneInfoNotFoundError:
        return None
    return next((moment for moment in _dues(night, zone, after) if moment > after), None)


def _dues(night: Night, zone: ZoneInfo, after: datetime) -> Sequence[datetime]:
    hours, minutes = (int(part) for part in night.at.split(":"))
    first = (after.astimezone(zone) - timedelta(days=1)).date()
    found = []
    for number in range(_AHEAD.days):
        day = first + timedelta(days=number)
        local = datetime(day.year, day.month, day.day, hours, minutes, tzinfo=zone)
        moment = local.astimezone(UTC)
        exists = moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
        if exists and DAYS[day.weekday()] in night.days:
            found.append(moment)
    return found
