"""The exception that is raised when a precondition of an event is not met."""

from __future__ import annotations


class Refusal(Exception):
    """
    The exception whose message is the reason why an entry is void. For entry 0, it is the reason why the entry does not
    create a run.
    """


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise Refusal(reason)
