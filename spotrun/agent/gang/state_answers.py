"""
Answers the questions of a gang's lead about the state files that this member's trainer has written (gang_state.py).
"""

from __future__ import annotations

import contextlib
import stat
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.commit_files import StateVersions
from spotrun.agent.files.content_store import SECRET_NAME, ContentStore, PieceUpload, Refused, stand_behind
from spotrun.agent.files.outputs import SENDERS_AT_THE_END, output_file
from spotrun.agent.files.quiescence import REST_MIN_S, REST_S, writer_of
from spotrun.agent.files.rules import StateFiles
from spotrun.agent.snapshots.frozen import TornFile, at_place
from spotrun.checkpoint import fetching
from spotrun.checkpoint.outputs import listing_at
from spotrun.checkpoint.upload import Abandoned
from spotrun.errors import CheckpointDamaged, StoreError
from spotrun.folder.frozen_files import ContentSource, FrozenFile
from spotrun.folder.state_files import TOO_MANY, by_inode, has_too_many
from spotrun.folder.status_objects import (
    AgentStatus,
    StateAnswer,
    StateAsked,
    StateStep,
    StateStored,
    agent_key,
    read_status,
)
from spotrun.folder.stored_files import PIECE_MAX_BYTES, Link, Listing, OutputFile, Piece
from spotrun.folder.work_files import FileVersion, LinkTo, Stamp
from spotrun.run.gang import MemberName

LOOKS_EVERY_S = 2.0
"""Seconds of run time between two reads of another member's status."""
LOOKS_EVERY_MIN_S = 0.2
"""Minimum seconds of system time between two reads."""
READS_WITHIN_S = 10.0
"""
Maximum seconds of system time for which a member retries to read a list of another member's files. If that fails, the
member tries again later: the lead's question stays in the lead's status until it is answered.
"""
NAMED_MAX = 5
"""Maximum number of paths in a member's answer to the lead."""
PATH_MAX = 300
"""Maximum length of a path in a member's answer to the lead, in characters."""


class StateAtStart(NamedTuple):
    """
    The state with which trainer `incarnation`, the newest trainer of this member, started. `of_others` are the files
    and links in it that this member has not written itself.
    """

    incarnation: int
    of_others: StateVersions


class KeptState(NamedTuple):
    """The files and links that this member has stored for the checkpoint `word`, and its answer to the lead."""

    word: str
    unlike: StateVersions
    answer: StateAnswer


class StateAnswers:
    """A thread on each member except the lead. It answers the lead's questions."""

    def __init__(self, context: AgentContext, attempt: int, lead: MemberName) -> None:
        self._context = context
        self._attempt = attempt
        self._state = StateFiles(context)
        self._pieces = ContentStore(context)
        self._pieces.begin(attempt)
        self._key = agent_key(lead.launch, lead.member)
        self._begun: StateAtStart | None = None
        self._listings: dict[str, Listing] = {}
        self._compared: dict[str, tuple[Stamp, tuple[Piece, ...], bool]] = {}
        self._entries: dict[str, tuple[FileVersion, OutputFile]] = {}
        self._kept: KeptState | None = None
        self._unlike: StateVersions = {}
        self._changed_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self.rest()
        self._context.status.facts["state_answer"] = None

    def begins(self, incarnation: int, of_others: StateVersions | None) -> None:
        """
        Record the state with which trainer `incarnation` is about to start. `of_others` are the files and links in it
        that this member has not written; None means all. Only the others count as written by this member.
        """
        if of_others is None:
            now = self._state.survey()
            of_others = {**now.files, **now.links}
        self._begun = StateAtStart(incarnation, of_others)

    def rest(self) -> None:
        """Answer no questions until `begins` is called."""
        self._begun = None

    def _work(self) -> None:
        stand_behind()
        while not self._stop.wait(pause_s(self._context.clock.scale)):
            status = read_status(self._context.store, self._key, AgentStatus)
            asked = None if status is None else status.state_asked
            begun = self._begun
            if (
                asked is None
                or begun is None
                or (asked.attempt, asked.incarnation) != (self._attempt, begun.incarnation)
            ):
                continue
            # After an error, the lead's question is still there in the next turn.
            with contextlib.suppress(StoreError, CheckpointDamaged, TornFile, Abandoned):
                self._say(self._answer(asked, begun), begun)

    def _say(self, answer: StateAnswer, begun: StateAtStart) -> None:
        facts = self._context.status.facts
        if facts.get("state_answer") != answer and self._begun is begun:
            facts["state_answer"] = answer
            self._context.heartbeat.beat_now()

    def _answer(self, asked: StateAsked, begun: StateAtStart) -> StateAnswer:
        kept = self._kept if self._kept is not None and self._kept.word == asked.word else None
        if asked.step is StateStep.STORE and kept is not None:
            return kept.answer
        unlike = self._unlike_listed(self._listing(asked), begun.of_others)
        shown = tuple(path[:PATH_MAX] for path in sorted(unlike)[:NAMED_MAX])
        answer = StateAnswer(word=asked.word, step=asked.step, unlike=shown, count=len(unlike))
        match asked.step:
            case StateStep.COMPARE:
                return replace(answer, rests=bool(unlike) and self._rest(unlike))
            case StateStep.STORE:
                self._kept = self._stored(answer, unlike, begun)
                return self._kept.answer
            case StateStep.CONFIRM:
                return replace(answer, rests=kept is not None and kept.unlike == unlike)

    def _listing(self, asked: StateAsked) -> Listing:
        """
        Read the list of the lead's files from the store, by the key in the question. The list is not in the ledger yet;
        the lead enters it there only if all members agree.
        """
        if asked.key not in self._listings:
            self._listings = {asked.key: listing_at(self._context.store, asked.key, asked.blake3, READS_WITHIN_S)}
        return self._listings[asked.key]

    def _rest(self, unlike: StateVersions) -> bool:
        """
        Return True if the files in `unlike` are at rest: they have not changed for a while (REST_S), and no process has
        one of them open for writing.
        """
        now_s = time.monotonic()
        if unlike != self._unlike:
            self._unlike, self._changed_s = unlike, now_s
        files = {path: seen for path, seen in unlike.items() if isinstance(seen, FileVersion)}
        work, scale = self._context.assignment.work, self._context.clock.scale
        return now_s - self._changed_s >= max(REST_S / scale, REST_MIN_S) and not writer_of(by_inode(work, files))

    def _unlike_listed(self, listing: Listing, of_others: StateVersions) -> StateVersions:
        """
        Return the state files and links that this member has written, and that `listing` lacks or lists with other
        content.
        """
        now = self._state.survey()
        files = {file.path: file for file in listing.files}
        links = {link.path: LinkTo(link.target) for link in listing.links}
        written = {path: seen for path, seen in now.files.items() if of_others.get(path) != seen}
        linked = {path: to for path, to in now.links.items() if to not in (of_others.get(path), links.get(path))}
        unlike = {path: seen for path, seen in written.items() if not self._fits(path, seen.stamp, files.get(path))}
        return {**unlike, **linked}

    def _fits(self, path: str, stamp: Stamp, listed: OutputFile | None) -> bool:
        """
        Return True if the file at `path` has the content that the lead's list gives for it. The file is not read again
        if neither it nor its entry in the list has changed since the last comparison.
        """
        if listed is None or listed.size_bytes != stamp.size_bytes:
            return False
        known = self._compared.get(path)
        if known is None or known[:2] != (stamp, listed.pieces):
            known = self._compared[path] = stamp, listed.pieces, fetching.is_at(self._context.assignment.work, listed)
        return known[2]

    # -- storing -----------------------------------------------------------------------------------------------------

    def _stored(self, answer: StateAnswer, unlike: StateVersions, begun: StateAtStart) -> KeptState:
        """
        Store the files and links in `unlike`, and their list.

        Raises:
            TornFile: a file was changed or removed before it was read.
            Abandoned: the trainer has ended, or was replaced.
            StoreError: not everything could be stored.
        """

        def go_on() -> None:
            if self._begun is not begun:
                raise Abandoned

        try:
            if has_too_many(self._state.survey()):
                raise Refused(f"the state cannot be stored: {TOO_MANY}")
            with self._pieces.sending(go_on) as sending:
                files = self._files(sending, {p: seen for p, seen in unlike.items() if isinstance(seen, FileVersion)})
                links = tuple(Link(path, *to) for path, to in sorted(unlike.items()) if isinstance(to, LinkTo))
                put = self._pieces.put_list(sending, Listing(files=files, links=links))
        except Refused as refused:
            return KeptState(answer.word, unlike, replace(answer, refused=str(refused)))
        stored = StateStored(key=put.key, blake3=put.blake3, objects=len(put.sent), sent_bytes=sum(put.sent.values()))
        return KeptState(answer.word, unlike, replace(answer, stored=stored if unlike else None))

    def _files(self, sending: PieceUpload, files: Mapping[str, FileVersion]) -> tuple[OutputFile, ...]:
        with ThreadPoolExecutor(SENDERS_AT_THE_END, "state", initializer=stand_behind) as pool:
            coming = [pool.submit(self._file, sending, path, seen) for path, seen in sorted(files.items())]
            return tuple(future.result() for future in coming)

    def _file(self, sending: PieceUpload, path: str, seen: FileVersion) -> OutputFile:
        """
        Store one file, unless the store is sure to have it still: the lead deletes pieces that no list in the ledger
        names.
        """
        version, entry = self._entries.get(path, (None, None))
        if entry is not None and version == seen and sending.has(entry.pieces):
            return entry
        hide_in = self._context.console.redaction.hide_in
        if self._pieces.names_secret(path):
            raise Refused(f"{hide_in(path)} cannot be stored: {SECRET_NAME}")
        try:
            file = FrozenFile(path, seen.place, seen.stamp, ContentSource.PLACE)
            with at_place(self._context.assignment.work, file) as whole:
                pieces = sending.pieces(whole.pieces(PIECE_MAX_BYTES))
        except Refused as refused:
            raise Refused(f"{path} cannot be stored: {refused}") from refused
        except FileNotFoundError as error:
            raise TornFile from error
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from error
        entry = output_file(path, seen.stamp, self._attempt, pieces, stat.S_IMODE(seen.stamp.mode))
        self._entries[path] = seen, entry
        return entry


def pause_s(scale: float) -> float:
    return max(LOOKS_EVERY_MIN_S, LOOKS_EVERY_S / scale)
