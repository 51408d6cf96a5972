"""
The interface for finding and removing resources that are still billed after their instance is gone, such as a disk.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """
    A resource that was left behind. `what` describes it for the user, with its cost if known; `handle` is the cloud's
    id for it.
    """

    run_uid: str
    what: str
    handle: str


class Leftovers(Protocol):
    """Finds and removes resources that no instance needs. If the cloud fails, one of CloudDriver's errors is raised."""

    def found(self) -> list[Leftover]:
        """Return all resources that belong to runs of spotrun and that no instance uses."""

    def remove(self, leftover: Leftover) -> None:
        """Remove the resource. Harmless if it is already gone."""


class NoLeftovers:
    """Stands for clouds on which nothing outlives an instance."""

    def found(self) -> list[Leftover]:
        return []

    def remove(self, leftover: Leftover) -> None:
        pass
