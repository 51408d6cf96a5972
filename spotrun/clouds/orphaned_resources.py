"""The port to billed resources that instances have left behind: a disk that outlived its instance, for example."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One such resource. `what` names it for people, with its cost if that is known. `handle` is the cloud's own id."""

    run_uid: str
    what: str
    handle: str


class Leftovers(Protocol):
    """Finds and removes resources that no instance needs. Every failure of the cloud is one of CloudDriver's errors."""

    def found(self) -> list[Leftover]:
        """Return the resources of spotrun's runs that no instance uses, whichever run they belong to."""

    def remove(self, leftover: Leftover) -> None:
        """Remove it; harmless if it is gone."""


class NoLeftovers:
    """For clouds where nothing outlives an instance."""

    def found(self) -> list[Leftover]:
        return []

    def remove(self, leftover: Leftover) -> None:
        pass
