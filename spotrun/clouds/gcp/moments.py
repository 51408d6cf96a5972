"""Reads times in Google's format: RFC 3339 with any offset."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str | None) -> datetime | None:
    """Convert a time such as `2026-11-24T17:02:11.318-08:00` to UTC; None if it is unreadable or has no offset."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None
