"""A sink that takes every notification."""

from __future__ import annotations


class ListSink:
    """`ids` are those of the notifications that it got."""

    name = "webhook $HOOK"

    def __init__(self) -> None:
        self.ids: list[str] = []

    def deliver(self, body: bytes, id: str) -> None:
        self.ids.append(id)

    def abandon(self) -> None:
        return
