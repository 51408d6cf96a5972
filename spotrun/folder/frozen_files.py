"""
The work folder at one boundary of a training, as the trainer hands it to its agent.

A memory holds the bytes of the small files, and after them this index. Large files come along as open descriptors: an
open file outlives its removal, and a file that takes its name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from spotrun.folder.work_files import LinkTo, Stamp

SAMPLE_BYTES = 4096


class Held(StrEnum):
    """Place of a file's bytes."""

    KNOWN = "known"
    """The agent has them: the file is as it was at the last boundary that the agent has reported as durable."""
    MEMORY = "memory"
    """In the memory, from `at` on."""
    OPEN = "open"
    """In the file itself, which is descriptor `at`. If it has grown since, its sample is as it was."""
    COPY = "copy"
    """In a copy, which is descriptor `at`."""
    PLACE = "place"
    """In the file itself, which no process holds open: there are too many such files."""


class FrozenFile(NamedTuple):
    """
    A file at a boundary. It lies at `place`, which is another path than its own if that is a link that cannot be kept
    as one. `sample`: its first and last bytes.
    """

    path: str
    place: str
    stamp: Stamp
    held: Held
    at: int = 0
    sample: bytes = b""


class FrozenFolder(NamedTuple):
    """
    The work folder at a boundary. `refused` says why a path cannot be stored; `gone` are uploaded files that are not
    there any more.
    """

    files: tuple[FrozenFile, ...]
    refused: dict[str, str]
    gone: tuple[str, ...]
    links: dict[str, LinkTo]
    folders: dict[str, int]


def sample_at(size_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, size) of the first and of the last bytes of a file that a sample has."""
    count = min(SAMPLE_BYTES, size_bytes)
    return (0, count), (size_bytes - count, count)
