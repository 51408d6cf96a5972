"""
The processes of one training: DDP, on one machine or on all of a gang. Rank 0 alone talks to the agent; the others
follow it.

They meet in a gloo group of their own, on the training thread and at the same places of the loop, so that all take the
same snapshot after the same step. A lone process does not communicate.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from spotrun.errors import SpotrunError
from spotrun.trainer_link import GANG
from spotrun.training.image_memory import ImageMemory, Memory, Received

LONGEST_FETCH = timedelta(hours=24)
"""The others wait in a collective call while rank 0 waits for the agent to fetch a checkpoint."""

T = TypeVar("T")


class Strangers(SpotrunError):
    """Processes have met that do not belong together."""


class Ranks:
    """All processes of a training, seen from one of them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        met = size > 1 and distributed.is_available() and distributed.is_initialized()
        self._group: Any = distributed.new_group(backend="gloo", timeout=LONGEST_FETCH) if met else None

    def compare(self) -> None:
        """
        The first thing that all ranks do together (protocol 37).

        Raises:
            Strangers: a process that came late has met those of another attempt or incarnation.
        """
        mine = os.environ.get(GANG, "")
        if self._group is None:
            return
        everywhere: list[Any] = [None] * self.size
        distributed.all_gather_object(everywhere, mine, group=self._group)
        if len(set(everywhere)) > 1:
            raise Strangers("the processes that met are of different attempts of a run: one of them came too late")

    @property
    def misfit(self) -> str:
        """What is wrong with how many they are; "" if their gang is as large, or there is none."""
        gang = os.environ.get(GANG)
        world = self.size if gang is None else int(gang.split()[-1])
        if world == self.size:
            return ""
        return f"the training's world is {self.size}, and with a process on each accelerator of its gang it is {world}"

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        distributed.broadcast(shared, 0, group=self._group)
        return int(shared)

    def share(self, value: T | None) -> T | None:
        """Rank 0's value, any small object, on every rank."""
        if self._group is None:
            return value
        box = [value]
        distributed.broadcast_object_list(box, 0, group=self._group)
        return box[0]

    def share_image(self, memory: ImageMemory | None, size_bytes: int) -> Memory | None:
        """Rank 0's checkpoint image of that size on every rank, each in memory of its own."""
        if self._group is None:
            return memory
        mine = Received(size_bytes) if memory is None else memory
        mine.need(size_bytes)
        distributed.broadcast(torch.frombuffer(mine.image, dtype=torch.uint8), 0, group=self._group)
        return mine

    def gather(self, value: T) -> list[T]:
        """Every rank's value on rank 0; an empty list on the others."""
        if self._group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        distributed.gather_object(value, values, 0, group=self._group)
        return values or []
