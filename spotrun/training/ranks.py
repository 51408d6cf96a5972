"""
Connects the ranks (processes) of one DDP training, on one machine or on all machines of a gang. Only rank 0
communicates with the agent. The other ranks do what rank 0 decides.

The ranks communicate through a gloo group that only spotrun uses. All ranks communicate on their training threads, at
the same points of the loop. So all of them take the same snapshot after the same step. With a single rank, nothing is
sent.

A gloo group has an open port, and any program that reaches this port could pretend to be a rank. So each rank first
proves that it knows the training's secret. After that, the ranks exchange only data that cannot contain code: JSON, and
states in the format of checkpoints.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from spotrun.checkpoint.snapshot import plan_image, read_image, write_header, write_pieces
from spotrun.checkpoint.tree import Unsavable
from spotrun.errors import SpotrunError
from spotrun.trainer_link import GANG, RANKS_SECRET, VIRTUAL_RANKS
from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.image_memory import ImageMemory, Memory, Received
from spotrun.training.revival import revived
from spotrun.wire import plain

LONGEST_FETCH = timedelta(hours=24)
"""Maximum time for which the other ranks wait in a collective call while rank 0 waits for the agent to fetch data."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_UNSAVABLE = "unsavable"

Json = Any
T = TypeVar("T")


class RanksUnrelated(SpotrunError):
    """Raised if the processes of a group do not all belong to the same training and attempt."""


class Ranks:
    """
    The ranks of a training, and the communication of this process with the other ranks.

    `elastic` has this process's virtual ranks; None if the job is not elastic. The ranks of an elastic training are
    replicas: outside of its micro-batches, each does the same.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.elastic = _share(size, rank)
        met = size > 1 and distributed.is_available() and distributed.is_initialized()
        self._group: Any = distributed.new_group(backend="gloo", timeout=LONGEST_FETCH) if met else None

    def compare(self) -> None:
        """
        Check that all processes of the group are ranks of this training and attempt (protocol 37). Call this before the
        ranks exchange anything else. The check runs in spotrun's own group. If torch's default group is a gloo group,
        the check runs there too, because frameworks exchange objects in it.

        Each rank sends random bytes to all others. Each rank then proves that it knows the secret: it sends a digest of
        the secret, its gang and the random bytes of all ranks.

        Raises:
            RanksUnrelated: a process does not know the secret. Or it connected so late that the other ranks belong to
                another attempt, or to a later incarnation of its attempt.
        """
        if self._group is None:
            return
        self._compare_in(self._group)
        if distributed.get_backend() == "gloo":
            self._compare_in(distributed.group.WORLD)

    def _compare_in(self, group: Any) -> None:
        gang = hashlib.sha256(os.environ.get(GANG, "").encode()).digest()
        asked = b"".join(self._everywhere(secrets.token_bytes(_DIGEST_BYTES), group))
        told = self._everywhere(gang + _proof(self.rank, gang, asked), group)
        gangs = [each[:_DIGEST_BYTES] for each in told]
        for rank, each in enumerate(told):
            if not hmac.compare_digest(each[_DIGEST_BYTES:], _proof(rank, gangs[rank], asked)):
                raise RanksUnrelated(
                    f"the process that joined as rank {rank} of {self.size} does not know the secret of this training",
                    hint=f"give each rank the variable {RANKS_SECRET} as the job's command has it; if all have it, "
                    "another program has reached their port: see docs/gangs.md",
                )
        if len(set(gangs)) > 1:
            raise RanksUnrelated("the processes that met belong to different attempts of a run: one came too late")

    @property
    def place(self) -> int:
        """The number from which seeds are derived: the rank, or 0 on all ranks of an elastic training."""
        return self.rank if self.elastic is None else 0

    @property
    def reads(self) -> int:
        """The number of ranks that read different samples of each batch that the loaders count."""
        return self.size if self.elastic is None else 1

    @property
    def misfit(self) -> str:
        """The reason why the number of processes does not fit their gang; "" if it fits or there is no gang."""
        gang = os.environ.get(GANG)
        world = self.size if gang is None else int(gang.split()[-1])
        if world == self.size:
            return ""
        return f"the training has {self.size} processes, but needs {world}: one for each accelerator of its gang"

    def agree(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        distributed.broadcast(shared, 0, group=self._group)
        return int(shared)

    def each(self, value: int) -> list[int]:
        """Return the values of all ranks, in the order of ranks, on every rank."""
        if self._group is None:
            return [value]
        return [int.from_bytes(told) for told in self._everywhere(value.to_bytes(8), self._group)]

    def share(self, kind: type[T], value: T | None) -> T | None:
        """Return rank 0's `value` on every rank. It is None or an instance of `kind`, whose fields are plain values."""
        if self._group is None:
            return value
        mine = _as_bytes(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size_bytes = self.agree(len(mine))
        shared = mine if self.rank == 0 else torch.empty(size_bytes, dtype=torch.uint8)
        distributed.broadcast(shared, 0, group=self._group)
        found = _read(shared)
        return None if found is None else plain.typed(kind, found)

    def share_image(self, memory: ImageMemory | None, size_bytes: int) -> Memory | None:
        """Return rank 0's checkpoint of `size_bytes` on every rank. The other ranks get it in new memory."""
        if self._group is None:
            return memory
        mine = Received(size_bytes) if memory is None else memory
        mine.need(size_bytes)
        distributed.broadcast(torch.frombuffer(mine.image, dtype=torch.uint8), 0, group=self._group)
        return mine

    def gather(self, value: Json) -> list[Json]:
        """On rank 0, return the `value` of each rank, decoded from JSON. On all other ranks, return an empty list."""
        if self._group is None:
            return [value]
        return [_read(each) for each in self._gathered(_as_bytes(value))]

    def gather_states(self, own: Any) -> list[Any]:
        """
        Return every rank's state on rank 0, with the other ranks' tensors on the CPU. Return an empty list on the other
        ranks.

        Raises:
            Unsavable: a rank's state contains a value that checkpoints cannot contain. Only rank 0 raises this.
        """
        if self._group is None:
            return [own]
        image = torch.empty(0, dtype=torch.uint8) if self.rank == 0 else _image_of(own)
        others = self._gathered(image)[1:]
        return [own, *(_state_of(each, rank) for rank, each in enumerate(others, start=1))] if self.rank == 0 else []

    def _everywhere(self, mine: bytes, group: Any) -> list[bytes]:
        """
        Send the bytes `mine` to all ranks. Return the bytes of each rank, in the order of ranks. Each rank must send
        the same number of bytes.
        """
        boxes = [torch.empty(len(mine), dtype=torch.uint8) for _ in range(self.size)]
        distributed.all_gather(boxes, torch.frombuffer(bytearray(mine), dtype=torch.uint8), group=group)
        return [mine if rank == self.rank else box.numpy().tobytes() for rank, box in enumerate(boxes)]

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        if self.rank != 0:
            distributed.send(mine, 0, group=self._group)
            return []
        boxes = [mine]
        for rank, size_bytes in enumerate(map(int, sizes[1:]), start=1):
            boxes.append(torch.empty(size_bytes, dtype=torch.uint8))
            distributed.recv(boxes[-1], rank, group=self._group)
        return boxes


def _share(size: int, rank: int) -> Share | None:
    """
    Return this process's share of the virtual ranks that the environment names; None if it names none.

    Raises:
        SpotrunError: the variable is not a number of virtual ranks.
    """
    text = os.environ.get(VIRTUAL_RANKS, "")
    if text and not (text.isascii() and text.isdigit() and int(text)):
        raise SpotrunError(f"{VIRTUAL_RANKS} is {text!r}, and has to be a number of virtual ranks", hint="set it to 4")
    return Share(int(text), size, rank) if text else None


def _proof(rank: int, gang: bytes, asked: bytes) -> bytes:
    """
    Return a digest that only a process with the training's secret can compute. It is different for each `rank`, `gang`
    and `asked` (the random bytes of all ranks).
    """
    return hmac.digest(os.environ.get(RANKS_SECRET, "").encode(), b"%d " % rank + gang + asked, "sha256")


def _as_bytes(value: Json) -> Tensor:
    text = json.dumps(value, separators=(",", ":"), default=vars).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _read(data: Tensor) -> Json:
    return json.loads(data.numpy().tobytes())


def _image_of(own: Any) -> Tensor:
    """
    Return a rank's state in the format of checkpoints. If it has a value that checkpoints cannot contain, return
    that value's path and class instead.
    """
    try:
        plan = plan_image({"own": own}, {})
    except Unsavable as problem:
        plan = plan_image({_UNSAVABLE: [problem.where, problem.what]}, {})
    image = torch.empty(plan.size_bytes, dtype=torch.uint8)
    write_header(plan, image)
    write_pieces(plan.pieces, image)
    return image


def _state_of(image: Tensor, rank: int) -> Any:
    """
    Return the state of rank `rank`. `image` is the result of `_image_of` on that rank, and the state's tensors are
    views into it.

    Raises:
        Unsavable: the rank's state contains a value that checkpoints cannot contain.
    """
    state, _ = read_image(image.numpy().data)
    if _UNSAVABLE in state:
        where, what = state[_UNSAVABLE]
        raise Unsavable(("spotrun", "ranks", rank, where.removeprefix("own.")), what)
    return revived(state["own"])
