"""
Parses and formats the short notations used in specs and flags: durations (`1h30m`), dollars (`2.50`), amounts (`4+`),
intervals (`500 steps`).

Each `parse_*` function takes the value of a YAML key or of a flag (text or a number), and returns a typed value. If it
cannot read the value, it raises `Unreadable`, which says what to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

LONGEST = timedelta(days=3650)
DURATION_FORMS = "write it like 90s, 10m, 4h or 1h30m"
NAMED_MAX = 5
"""Maximum number of names that a sentence lists."""
HOURS_LIKELY = 48
"""
Maximum number that is assumed to mean hours if a duration has no unit. A greater number is assumed to mean seconds. The
error about the missing unit suggests this meaning to the user.
"""
DURATION_PATTERN = r"^(?=.)(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?$"

_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,6}})?){unit})?" for unit in "dhms"), re.ASCII)
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_UNIT_WORDS = {
    word: unit
    for unit, words in {
        "d": "d day days",
        "h": "h hr hrs hour hours",
        "m": "m min mins minute minutes",
        "s": "s sec secs second seconds",
    }.items()
    for word in words.split()
}
_USD = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:\s*(?:GB|GiB))?(\+?)", re.ASCII | re.IGNORECASE)
_STEPS = re.compile(r"(\d{1,12})\s*steps?", re.ASCII)


class Unreadable(ValueError):
    """
    Raised for a value that its key does not accept.

    `suggestion` is a phrase that says what to write instead ("write 10m"). If only a part of the value is wrong, `at`
    is the path of this part, relative to the key that is being read.
    """

    def __init__(self, message: str, suggestion: str | None = None, *, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.at = at


def bounded(seconds: float) -> timedelta:
    """
    Convert seconds to a duration, limited to the range from 0 to `LONGEST`, the duration of the longest job. Use it for
    seconds that were computed from numbers that a training script reported: even if each number is within its bounds,
    the product of two can be too large for a `timedelta`.
    """
    return timedelta(seconds=min(max(0.0, seconds), LONGEST.total_seconds()))


def shown(value: object, limit: int = 60) -> str:
    """
    Return `value` as text that is safe to show: one line, cut at `limit` characters, without control characters and
    without characters that change the direction of text.
    """
    text = str(value)
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def shown_lines(text: str) -> str:
    """Make a text of several lines safe to show. It is not shortened."""
    return "\n".join(shown(line, len(line)) for line in text.split("\n"))


def count_of(number: int, one: str, several: str | None = None) -> str:
    """Format a count: `1 run`, `3 runs`, `1,200 entries`. `several` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def some_of(names: Sequence[str], between: str = ", ") -> str:
    """List the first NAMED_MAX names, and say how many more there are."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return between.join(names[:NAMED_MAX]) + more


def parse_json(text: str, parse_float: Callable[[str], Any] | None = None) -> Any:
    """
    Parse the JSON text of a user's file.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_duration(value: object) -> timedelta:
    """Parse `90s`, `10m`, `4h`, `1d` or `1h30m`: days, hours, minutes, seconds, in that order, each at most once."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Unreadable("must be a duration", DURATION_FORMS)
    text = str(value)
    if text.strip().startswith("-"):
        raise Unreadable(f"a duration must not be negative, and this is {shown(text)}", "write it like 10m")
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise Unreadable(_duration_fault(text), _duration_suggestion(text))
    microseconds = sum(
        int(Decimal(number) * _SECONDS[unit] * 1_000_000)
        for number, unit in zip(match.groups(), "dhms", strict=True)
        if number is not None
    )
    if microseconds > LONGEST / timedelta(microseconds=1):
        raise Unreadable(f"{shown(text)} is longer than {LONGEST.days} days", "write a shorter one, like 4h or 1d")
    return timedelta(microseconds=microseconds)


def _duration_fault(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return f"a duration needs a unit, and {shown(text)} has none"
    if re.match(r"\d{4}-\d{1,2}-\d", text, re.ASCII):
        return f"{shown(text)} is a date, and a duration belongs here"
    return f"{shown(text)!r} is not a duration"


def _duration_suggestion(text: str) -> str:
    lowered = text.lower().strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", lowered, re.ASCII):
        units = "hms" if Decimal(lowered) <= HOURS_LIKELY else "smh"
        return "write {}, {} or {}".format(*(lowered + unit for unit in units))
    clock = re.fullmatch(r"(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?", lowered, re.ASCII)
    if clock:
        first, second, third = clock.groups()
        long = f"{int(first)}h{int(second)}m"
        return f"write {long}{int(third)}s" if third else f"write {long} or {int(first)}m{int(second)}s"
    written = _spelled_duration(lowered)
    return f"write {written}" if written else DURATION_FORMS


def _spelled_duration(text: str) -> str | None:
    """
    Convert `10 min`, `1 hour and 30 minutes` or `2 weeks` to the notation of `parse_duration`; None if the text cannot
    be interpreted.
    """
    parts = re.findall(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)", text[:80])
    rest = re.sub(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)|\band\b|[,\s]", "", text[:80])
    if not parts or rest:
        return None
    in_days = [(f"{7 * Decimal(n)}", "d") if word in ("w", "week", "weeks") else (n, word) for n, word in parts]
    if any(word not in _UNIT_WORDS for _, word in in_days):
        return None
    written = "".join(f"{number}{_UNIT_WORDS[word]}" for number, word in in_days)
    return written if _DURATION.fullmatch(written) else None


def duration_in_seconds(duration: timedelta) -> str:
    """Format a duration exactly, for programs: `600s`, `0.25s`. `parse_duration` reverses this."""
    whole, rest = divmod(duration // timedelta(microseconds=1), 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0") + "s" if rest else f"{whole}s"


def format_duration(duration: timedelta) -> str:
    """Format a duration briefly, for people: `1h30m`, `10m`, `0s`. `parse_duration` reverses this."""
    days, rest = divmod(duration, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    written = "".join(f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if number)
    return written + duration_in_seconds(rest) if rest or not written else written


def to_the_second(duration: timedelta) -> str:
    """Format a duration briefly, to the nearest whole second: `4m`, `2h10m`, `1m5s`."""
    return format_duration(timedelta(seconds=round(duration.total_seconds())))


def parse_usd(value: object) -> Decimal:
    """Parse an amount of dollars above zero, given as a number or as text: `2.50`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Unreadable("must be a number of US dollars", "write it like 2.50")
    text = format(value, "f") if isinstance(value, Decimal) else str(value)
    if not _USD.fullmatch(text):
        raise Unreadable(_usd_fault(text), _usd_suggestion(text))
    amount = Decimal(text)
    if amount == 0:
        raise Unreadable("must be more than 0 dollars", "leave it out for no limit")
    return Decimal(format(amount.normalize(), "f"))


def _usd_fault(text: str) -> str:
    if text.startswith("-"):
        return f"must be more than 0 dollars, and this is {shown(text)}"
    return f"{shown(text)!r} is not a number of US dollars"


def _usd_suggestion(text: str) -> str:
    if "-" in text:
        return "write an amount above 0, like 2.50"
    bare = re.sub(r"(?i)\s*(\$|usd|dollars?|/\s*h(ou)?r?|per\s+hour|an\s+hour)\s*", "", text[:80]).strip()
    if re.fullmatch(r"\d+,\d{1,2}", bare, re.ASCII):
        bare = bare.replace(",", ".")
    bare = bare.replace(",", "").replace("_", "")
    return f"write {bare}" if _USD.fullmatch(bare) else "write a plain number like 2.50"


def to_the_cent(usd: float | Decimal) -> str:
    """
    Format dollars to the cent: `$0.27`. An amount below ten cents is shown with two significant digits, such as
    `$0.0042`, so only zero is shown as `$0.00`.
    """
    amount = abs(float(usd))
    two_digits = 0 < amount < 0.095
    text = f"{Decimal(f'{amount:.1e}'):f}" if two_digits else f"{amount:.2f}"
    return f"{'-' if usd < 0 else ''}${text}"


def plain_usd(usd: Decimal) -> str:
    """
    Write an exact amount of dollars without an exponent, and without needless zeros after the cents: `0.40`, `0.0536`.
    """
    whole, point, decimals = f"{usd:f}".partition(".")
    return f"{whole}{point}{decimals[:2]}{decimals[2:].rstrip('0')}"


@dataclass(frozen=True)
class Amount:
    """An amount of CPUs or gigabytes: exactly `number` (`4`) or, if `at_least` is true, `number` or more (`4+`)."""

    number: Decimal
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.number:f}{'+' if self.at_least else ''}"


def parse_amount(value: object) -> Amount:
    """
    Parse an amount in SkyPilot's notation: `4` is exactly four, `4+` is four or more; gigabytes may be written `16GB+`.
    """
    if isinstance(value, Amount):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Unreadable("must be a number, or a number and a plus sign", 'write 4, or "4+" for four or more')
    match = _AMOUNT.fullmatch(str(value))
    if match is None or not Decimal(match[1]):
        raise Unreadable(f"{shown(value)!r} is not an amount above 0", _amount_suggestion(str(value)))
    return Amount(Decimal(format(Decimal(match[1]).normalize(), "f")), at_least=bool(match[2]))


def _amount_suggestion(text: str) -> str:
    """Suggest `64` for `64Gi`, and `4+` for `4 cores+`."""
    written = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*(?:gi?|v?cpus?|cores?)\s*(\+?)", text.lower(), re.ASCII)
    return 'write 4, or "4+" for four or more' if written is None else f"write {written[1]}{written[2]}"


@dataclass(frozen=True)
class Steps:
    """A number of training steps (optimizer steps, as Lightning's `global_step` counts them)."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} steps"


def parse_steps(text: str) -> Steps | None:
    """Parse `500 steps`; None if the text is something else."""
    match = _STEPS.fullmatch(text)
    return Steps(int(match[1])) if match else None
