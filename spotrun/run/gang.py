"""
Types for a gang: the instances that train together in one attempt. A *member* is one instance of a gang's launch.

Ranks count the processes of a gang from 0. The *lead* is the member of rank 0. The *world* is the number of processes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from spotrun.run.bounds import Count

MEMBERS_MAX = 16
"""
Maximum members of a gang. All members report that they are ready at about the same time. Each report takes the next
entry number, and a member that finds it taken has to retry.
"""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class MemberName(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """The name of a member: 17.0, 17.1 and so on for launch 17. Names of earlier launches come first."""

    launch: Count
    member: Count

    def __str__(self) -> str:
        return f"{self.launch}.{self.member}"

    @property
    def place(self) -> str:
        """
        The member's name in the keys of its log and status in the store. Member 0 has the same keys as an instance
        without a gang.
        """
        return str(self) if self.member else str(self.launch)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place in an attempt. Its processes have consecutive ranks that begin with `rank`."""

    name: MemberName
    rank: Count


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """
    The members of an attempt, in the order of their ranks. They never change. `batches` divides each global batch into
    as many parts as its sum: rank r takes `batches[r]` of them, after the parts of the ranks before it.
    """

    members: tuple[Seat, ...]
    world: Count
    batches: tuple[Count, ...]

    @property
    def names(self) -> tuple[MemberName, ...]:
        return tuple(seat.name for seat in self.members)


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """The lead's address and port, at which the trainers of one incarnation find each other."""

    address: str
    port: Port


class Layout(StrEnum):
    """The choice of the ranks that store a part of a checkpoint's state."""

    REPLICATED = "replicated"
    """All ranks have the same state, and rank 0 stores it."""
    SHARDED = "sharded"
    """Each rank has a different state, and stores it."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """
    One rank's part of a checkpoint, as its manifest describes it. `blake3` is the manifest's digest. `snapshot` is the
    number of the snapshot in its incarnation.
    """

    rank: Count
    attempt: Count
    incarnation: Count
    snapshot: Count
    step: Count
    world: Count
    blake3: str
    size_bytes: Count
    objects: Count
