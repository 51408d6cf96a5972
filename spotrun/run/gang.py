"""
The words for a gang: the instances that train together in one attempt. A *member* is one instance of a launch.

Ranks count the processes of a gang from 0. The *lead* is the member of rank 0, the *world* is how many processes there
are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from spotrun.run.bounds import Count

MEMBERS_MAX = 16
"""All members say at once that they are ready, and each entry is a race of those that are not first."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class MemberName(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """The members of launch 17 are named 17.0, 17.1 and so on. An earlier launch comes first."""

    launch: Count
    member: Count

    def __str__(self) -> str:
        return f"{self.launch}.{self.member}"

    @property
    def place(self) -> str:
        """What its log and its status are stored under. The first one's are where those of a lone instance are."""
        return str(self) if self.member else str(self.launch)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place in an attempt. Its processes have the ranks from `rank` on."""

    name: MemberName
    rank: Count


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """
    The members of an attempt, in the order of their ranks. They never change.

    `batches` is which part of each global batch is whose: rank r takes `batches[r]` parts of their sum, after the parts
    of the ranks before it.
    """

    members: tuple[Seat, ...]
    world: Count
    batches: tuple[Count, ...]

    @property
    def names(self) -> tuple[MemberName, ...]:
        return tuple(seat.name for seat in self.members)


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """Where the trainers of one incarnation find each other: at the lead."""

    address: str
    port: Port


class Layout(StrEnum):
    """Which ranks have something of a checkpoint's state."""

    REPLICATED = "replicated"
    """All have the same, and rank 0 stores it."""
    SHARDED = "sharded"
    """Each stores its own."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the manifest of one rank's part of a checkpoint says of itself: whose it is, and how much there is of it.

    `snapshot` is its number among those of its incarnation, `blake3` the digest of that manifest.
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
