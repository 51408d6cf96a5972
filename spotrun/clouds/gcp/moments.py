"""Reads moments as Google writes them: RFC 3339 with any offset."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str | None) -> datetime | None:
    """Read `2026-11-24T17:02:11.318-08:00`, and return it in UTC; None if it is unreadable, or has no zone."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None
