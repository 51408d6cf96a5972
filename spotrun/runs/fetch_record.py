"""
Remembers what `spotrun fetch` wrote into a folder, so that it knows what the user has changed there since.

The record of a folder is a file of the user's home, where no instance writes. A line has the path of a file and the
digests of the bytes that fetch wrote there; of several lines the last counts. Whatever no line names is the user's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spotrun.folder.stored_files import Content
from spotrun.runs.known import known_folder

FOLDER = "fetched-files"
"""Next to the runs that are known here. No run's uid has a dash."""


class _Line(msgspec.Struct, frozen=True, array_like=True):
    path: str
    contents: tuple[Content, ...]


class FetchRecord:
    """
    The record of what fetch wrote into `folder`, wherever links on the way to it lead. See
    spotrun.checkpoint.fetching.Record.

    `problem` says why it cannot be read or written; then later fetches keep files that this one could replace.
    """

    def __init__(self, folder: Path) -> None:
        place = os.fsencode(os.path.realpath(folder))
        self.path = known_folder() / FOLDER / hashlib.sha256(place).hexdigest()
        self.problem = ""
        self._contents = self._read()

    def written(self, path: str) -> Sequence[Content] | None:
        return self._contents.get(path)

    def add(self, path: str, contents: Sequence[Content]) -> None:
        self._contents[path] = contents
        line = b"\n" + msgspec.json.encode(_Line(path, tuple(contents)))  # a torn line before it stays one of its own
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def _read(self) -> dict[str, Sequence[Content]]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.problem = error.strerror or str(error)
            return {}
        return {line.path: line.contents for line in map(_decoded, lines) if line is not None}


def _decoded(line: bytes) -> _Line | None:
    """Return None for a line that a full disk or a lost process has cut off: its file counts as the user's."""
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, ValueError):
        return None
