"""Moments as Google writes them: RFC 3339 with the offset of some coast, and the dates of HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def moment(text: str | None) -> datetime | None:
    """`2026-11-24T17:02:11.318-08:00` in UTC; None if nobody can read it, or it has no zone."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None


def told_at(date: str) -> datetime | None:
    """The moment of a `Date` header, to the second; None if it cannot be read."""
    try:
        found = parsedate_to_datetime(date)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
