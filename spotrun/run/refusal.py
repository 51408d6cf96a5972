"""The exception for a broken precondition."""

from __future__ import annotations


class Refusal(Exception):
    """The reason why an entry is void; for entry 0, the reason why it does not create a run."""


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise Refusal(reason)
