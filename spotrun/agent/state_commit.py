"""
Stores the state of a command as a checkpoint: each file by its content, each folder and link by its name. What has not
changed since the last one is neither read nor sent.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.agent.files.freeze import FrozenState
from spotrun.agent.files.outputs import output_file
from spotrun.agent.files.pieces import LEFT_OUT_NAMED_MAX, SECRET_NAME, Pieces, Refused, Sending
from spotrun.folder.stored_files import PIECE_MAX_BYTES, Folder, LeftOut, Link, Listing, OutputFile
from spotrun.folder.work_files import Seen

SENDERS = 8
"""Threads that send. Most states are many small files, and the number of waits for the store counts."""


class StateRefused(Exception):
    """A part of the state may not be stored. Without that part it would be no state."""


class Known(NamedTuple):
    """A file as it was in a commit: its entry in the list, and its stamp."""

    seen: Seen
    entry: OutputFile | LeftOut


class StateStoring:
    """The state of one snapshot. `known` are the files of the last commit."""

    def __init__(self, sending: Sending, pieces: Pieces, attempt: int, state: FrozenState) -> None:
        self._sending = sending
        self._pieces = pieces
        self._attempt = attempt
        self._state = state

    def all_files(self, known: Mapping[str, Known]) -> dict[str, Known]:
        """
        Store the files that have changed, and return what is known of each file.

        Raises:
            StateRefused: one of them may not be stored.
        """
        unchanged = {path: known[path] for path in self._state.survey.files if path not in self._state.changed}
        with ThreadPoolExecutor(SENDERS, "state") as pool:
            coming = {path: pool.submit(self._sent, path) for path in self._state.changed}
            try:
                sent = {path: future.result() for path, future in coming.items()}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return unchanged | sent

    def _sent(self, path: str) -> Known:
        if self._pieces.names_secret(path):
            raise StateRefused(f"{self._named(path)} cannot be stored: {SECRET_NAME}")
        stamp = self._state.survey.files[path]
        try:
            pieces = self._sending.pieces(self._state.whole(path).pieces(PIECE_MAX_BYTES))
        except Refused as refused:
            raise StateRefused(f"{path} cannot be stored: {refused}") from refused
        entry = output_file(path, stamp, self._attempt, pieces)
        return Known(Seen(path, stamp), replace(entry, mode=stat.S_IMODE(stamp.mode)))

    def _named(self, path: str) -> str:
        return self._pieces.left_out(path, 0, "").path

    def listing(self, known: Mapping[str, Known]) -> tuple[Listing, list[LeftOut]]:
        """Return the list of all that was taken, and what cannot be, like a pipe."""
        survey = self._state.survey
        for path in (*survey.links, *survey.folders):
            if self._pieces.names_secret(path):
                raise StateRefused(f"{self._named(path)} cannot be stored: {SECRET_NAME}")
        left_out = [self._pieces.left_out(path, 0, why) for path, why in sorted(survey.refused.items())]
        listing = Listing(
            files=tuple(each.entry for _, each in sorted(known.items()) if isinstance(each.entry, OutputFile)),
            left_out=tuple(left_out[:LEFT_OUT_NAMED_MAX]),
            folders=tuple(Folder(path, mode) for path, mode in sorted(survey.folders.items())),
            links=tuple(Link(path, target) for path, target in sorted(survey.links.items())),
        )
        return listing, left_out
