"""
Records on which node each member of a gang runs, and when and why the member ended, in files next to the job's log.

Slurm reports only which nodes a job has now. It does not report which nodes the job had before, or when one of its
steps ended. So the job's batch script, and each driver that lists the job, record this. If several processes record the
same fact, the first record counts.
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
    """A node with its name and its address in Slurm. Other members reach the node's member at this address."""

    node: str
    address: str


class MemberEnd(NamedTuple):
    """The end of a member that ended before its job: the time, who ended it, and the reason as text."""

    at: datetime
    by: EndedBy
    reason: str


class MemberFiles:
    """
    The records of one launch. `start` is the common prefix of the files' paths.

    If a method cannot read or write a file, the state of the members is unknown, so it raises CloudUnavailable.
    """

    def __init__(self, start: str) -> None:
        self.start = start

    def log(self, member: int) -> Path:
        return Path(f"{self.start}.{member}.log")

    def seats(self) -> tuple[Seat, ...]:
        """Return the node of each member, ordered by the member's index; () if the nodes are not known yet."""
        return self._read("nodes", tuple[Seat, ...]) or ()

    def take_seats(self, seats: Sequence[Seat]) -> tuple[Seat, ...]:
        return self._agree("nodes", tuple(seats), tuple[Seat, ...])

    def ended(self, member: int) -> MemberEnd | None:
        return self._read(f"{member}.ended", MemberEnd)

    def end(self, member: int, ended: MemberEnd) -> MemberEnd:
        """
        Record how a member ended, unless this is already recorded. Return the record. If a driver has asked this member
        to end (`ask_to_end`), record that the user ended it.
        """
        said = ended._replace(by=EndedBy.USER) if self.is_to_end(member) else ended
        return self._agree(f"{member}.ended", said, MemberEnd)

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
        """
        Write `value` to the file unless the file already exists, and return the value that the file then contains. The
        value is written to a temporary file first, and then the file is created as a hard link to it. This
        is atomic even on shared file systems, so no process sees an incomplete file.
        """
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
    """Raise CloudUnavailable if the block cannot read or write `path`, or if `path` is not a record."""
    try:
        yield
    except OSError as error:
        raise CloudUnavailable(f"{path}: {error.strerror}", hint=f"check the permissions of {path.parent}") from error
    except msgspec.DecodeError as error:
        raise CloudUnavailable(
            f"{path} is not a valid record of a member: {error}", hint="restore the file, or remove it"
        ) from error


def read_seats(commands: Commands, nodes: str) -> tuple[Seat, ...]:
    """
    Return the names and addresses of `nodes`, in the order of the cluster's configuration. `nodes` is in Slurm's
    notation, such as `n[1-3,7]`.

    Raises:
        CloudNotInstalled, CloudUnavailable, AccessDenied: Slurm did not answer.
    """
    told = require_answer(commands.run(["scontrol", "--oneliner", "show", "node", nodes]), "show nodes")
    facts: list[dict[str, str]] = [dict(_FACT.findall(line)) for line in told.splitlines()]
    return tuple(Seat(each["NodeName"], each["NodeAddr"]) for each in facts if {"NodeName", "NodeAddr"} <= {*each})
