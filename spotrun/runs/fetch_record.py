"""
Records which files `spotrun fetch` wrote into a folder, so that a later fetch detects the files that the user changed.

Each folder has a record: a file in the user's home directory, where no instance can write. A line of the record has the
path of a fetched file, and the digests of the bytes that fetch wrote. If several lines have the same path, the last
line is valid. All other files in the folder are the user's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spotrun.folder.stored_files import Content
from spotrun.runs.known_record import known_folder

FOLDER = "fetched-files"
"""
Name of the folder that contains these records. It is in the same folder as the files about known runs, whose names are
the runs' uids. No uid has a dash, so the names cannot clash.
"""


class _Line(msgspec.Struct, frozen=True, array_like=True):
    path: str
    contents: tuple[Content, ...]


class FetchRecord:
    """
    The record of the files that fetch wrote into `folder`. Its name is derived from the folder's real path, so it is
    found even if the user reaches the folder through a link. Implements spotrun.checkpoint.fetching.Record.

    `problem` is the reason why the record could not be read or written; "" if there was no problem. If there is no
    record, later fetches assume that all files in the folder belong to the user, and do not replace them.
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
        line = b"\n" + msgspec.json.encode(_Line(path, tuple(contents)))  # the first newline ends a torn line
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
    """
    Return the decoded line. Return None if the line is incomplete, because the disk was full or the process was killed.
    The file on that line then counts as the user's.
    """
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, ValueError):
        return None
