"""
What is written down of the members of a gang, in files beside what their job prints.

Slurm tells of a job which nodes it has now, and not which ones it had, nor when a step of it has ended. So that is
written here, by the job and by whoever looks at it. What is written first counts, for all who look.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from spotrun.clouds.slurm.commands import Commands
from spotrun.clouds.slurm.faults import require_answer
from spotrun.errors import CloudUnavailable
from spotrun.instance import EndedBy

T = TypeVar("T")
_FACT = re.compile(r"(?:^| )(NodeName|NodeAddr)=(\S+)")


class Seat(NamedTuple):
    """The node of a member, and where the others reach it, both as Slurm names them."""

    node: str
    address: str


class Ended(NamedTuple):
    """When a member ended that did so before its job, by whom, and in what words."""

    at: datetime
    by: EndedBy
    reason: str


class MemberFiles:
    """
    Those of one launch. `start` is the path of each, up to what differs.

    Each method raises CloudUnavailable where a file cannot be read or written: nobody knows then.
    """

    def __init__(self, start: str) -> None:
        self.start = start

    def log(self, member: int) -> Path:
        """What it prints."""
        return Path(f"{self.start}.{member}.log")

    def seats(self) -> tuple[Seat, ...]:
        """Those of all members, by index; none if nobody has seen them yet."""
        return self._read("nodes", tuple[Seat, ...]) or ()

    def take_seats(self, seats: Sequence[Seat]) -> tuple[Seat, ...]:
        return self._agree("nodes", tuple(seats), tuple[Seat, ...])

    def ended(self, member: int) -> Ended | None:
        return self._read(f"{member}.ended", Ended)

    def end(self, member: int, ended: Ended) -> Ended:
        """A member that was to end has ended because of that."""
        said = ended._replace(by=EndedBy.USER) if self.is_to_end(member) else ended
        return self._agree(f"{member}.ended", said, Ended)

    def ask_to_end(self, member: int) -> None:
        path = self._path(f"{member}.asked")
        with _reaching(path):
            path.touch(mode=0o600)

    def is_to_end(self, member: int) -> bool:
        path = self._path(f"{member}.asked")
        with _reaching(path):
            return path.exists()

    def _path(self, name: str) -> Path:
        return Path(f"{self.start}.{name}")

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = self._path(name)
        with _reaching(path), contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode(path.read_bytes(), type=kind)
        return None

    def _agree(self, name: str, value: T, kind: type[T]) -> T:
        """A link is made or it is there already, on file systems that several nodes share too."""
        unnamed = self._path(f"{uuid.uuid4().hex}.tmp")
        with _reaching(self._path(name)):
            unnamed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            unnamed.write_bytes(msgspec.json.encode(value))
            with contextlib.suppress(FileExistsError):
                os.link(unnamed, self._path(name))
            unnamed.unlink()
        found = self._read(name, kind)
        assert found is not None
        return found


@contextlib.contextmanager
def _reaching(path: Path) -> Iterator[None]:
    """
    Raises:
        CloudUnavailable: it is not reached, or holds something else than was written.
    """
    try:
        yield
    except OSError as error:
        raise CloudUnavailable(f"{path}: {error.strerror}", hint=f"who may read and write {path.parent}?") from error
    except msgspec.DecodeError as error:
        raise CloudUnavailable(f"{path} is no record of a member: {error}", hint="restore it, or remove it") from error


def read_seats(commands: Commands, nodes: str) -> tuple[Seat, ...]:
    """
    Of nodes as Slurm lists them: `n[1-3,7]`. The order is that of the cluster's configuration, whoever asks.

    Raises:
        CloudNotInstalled, CloudUnavailable, AccessDenied: nobody could be asked.
    """
    told = require_answer(commands.run(["scontrol", "--oneliner", "show", "node", nodes]), "show nodes")
    facts: list[dict[str, str]] = [dict(_FACT.findall(line)) for line in told.splitlines()]
    return tuple(Seat(each["NodeName"], each["NodeAddr"]) for each in facts if {"NodeName", "NodeAddr"} <= {*each})
