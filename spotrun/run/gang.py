"""
Types for a gang: the instances that train together in one attempt. A *member* is one instance of a gang's launch.

A process's *rank* is its number among all processes of the gang, counted from 0. The *lead* is the member of rank 0.
The *world* is the number of processes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from spotrun.run.bounds import Count

MEMBERS_MAX = 16
"""
Maximum number of members in a gang. It is small, because all members report at about the same time that they are ready.
Each tries to write its report under the ledger's next number. Only one member can have that number, and all others have
to retry with the number after it.
"""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class MemberName(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """
    The name of a member: 17.0, 17.1 and so on for launch 17. Names are ordered by launch number, then by member number.
    """

    launch: Count
    member: Count

    def __str__(self) -> str:
        return f"{self.launch}.{self.member}"

    @property
    def place(self) -> str:
        """
        The part of a key in the store that names the member. The keys of its log and its status object contain it. For
        member 0, this is just the launch's number, as for an instance without a gang.
        """
        return str(self) if self.member else str(self.launch)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's position in an attempt. Its processes have consecutive ranks that begin with `rank`."""

    name: MemberName
    rank: Count


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """
    The members of an attempt, in the order of their ranks. An attempt's members never change.

    `batches` shares out each global batch. The batch is divided into `sum(batches)` equal parts. Rank 0 takes the first
    `batches[0]` parts, rank 1 the next `batches[1]` parts, and so on.
    """

    members: tuple[Seat, ...]
    world: Count
    batches: tuple[Count, ...]

    @property
    def names(self) -> tuple[MemberName, ...]:
        return tuple(seat.name for seat in self.members)


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """
    The lead's address and port, at which the gang's trainers find each other. Each time the gang's trainers are started
    (an *incarnation*), they get a new port.
    """

    address: str
    port: Port


class Layout(StrEnum):
    """The two ways in which a checkpoint's state can be spread over the ranks."""

    REPLICATED = "replicated"
    """All ranks have the same state. Only rank 0 stores it."""
    SHARDED = "sharded"
    """Each rank has a different part of the state, and stores that part."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """
    One rank's part of a checkpoint, as the manifest of the part describes it. `blake3` is the manifest's digest.
    `incarnation` counts the starts of trainers in the attempt, and `snapshot` counts the snapshots since that start.
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
