"""How a precondition says no."""

from __future__ import annotations


class Refusal(Exception):
    """Why an entry is void; of entry 0, why it creates no run."""


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise Refusal(reason)
