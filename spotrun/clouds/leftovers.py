"""The port to what instances have left behind and is billed: a disk that outlived its instance, for example."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """`what` names it for people, with what it costs if that is known. `handle` is the cloud's own way to find it."""

    run_uid: str
    what: str
    handle: str


class Leftovers(Protocol):
    """Finds and removes what no instance needs. Every failure of the cloud is one of CloudDriver's errors."""

    def found(self) -> list[Leftover]:
        """What is there of runs of spotrun that no instance uses, whichever run it belongs to."""

    def remove(self, leftover: Leftover) -> None:
        """Harmless if it is gone."""


class NoLeftovers:
    """For clouds where nothing outlives an instance."""

    def found(self) -> list[Leftover]:
        return []

    def remove(self, leftover: Leftover) -> None:
        pass
