"""
Compares the state of a gang's command on all members before the lead's files become a checkpoint.

A checkpoint includes only the lead's files, and after a resume every member starts from these files. Another member may
have written a file that the lead does not have, or that differs from the lead's file of that name. Then the checkpoint
would lack a part of the training, so the lead makes no checkpoint until the difference is gone.

Before each checkpoint, the lead asks the other members whether they have such files. The question is in the lead's
status object, and each member's answer is in the member's own.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.decisions import is_fenced
from spotrun.agent.files.content_store import stand_behind
from spotrun.agent.files.quiescence import REST_MIN_S, REST_S, writer_of
from spotrun.agent.files.rules import StateFiles
from spotrun.agent.gang.gang_decisions import SILENT_MIN_S, SILENT_S
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.checkpoint import fetching
from spotrun.checkpoint.outputs import listing_at
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.errors import CheckpointDamaged, StoreError
from spotrun.folder.state_files import by_inode
from spotrun.folder.status_objects import AgentStatus, StateAnswer, StateAsked, agent_key, read_status
from spotrun.folder.stored_files import Listing, OutputFile, Piece
from spotrun.folder.work_files import FileVersion, LinkTo, Stamp, Survey
from spotrun.run.events import CommittedFiles
from spotrun.run.gang import MemberName
from spotrun.units import count_of

LOOKS_EVERY_S = 2.0
"""Seconds of run time between two reads of another member's status."""
LOOKS_EVERY_MIN_S = 0.2
"""Minimum seconds of system time between two reads."""
RESTS = 3
"""
Maximum time for which the lead waits, with an unchanged state, for a file that another member has and the lead lacks.
After this time the checkpoint is refused. The unit is the time after which an unchanged state counts as at rest
(quiescence.py).
"""
RESTS_MAX = 120
"""
Maximum time for which the lead waits while its state, or the other member's file, keeps changing. After this time the
checkpoint is refused in any case. The time has the same unit as RESTS.
"""
READS_WITHIN_S = 10.0
"""
Maximum seconds of system time for which a member retries to read the list of the lead's files. If that fails, the
member tries again later: the lead's question stays in the lead's status until it is answered.
"""
NAMED_MAX = 5
"""Maximum number of paths in a member's answer to the lead."""
PATH_MAX = 300
"""Maximum length of a path in a member's answer to the lead, in characters."""


class StateUnlike(Exception):
    """No checkpoint of the state can be made, because another member has state files that the lead lacks."""


class MemberSilent(Exception):
    """A member does not answer when the lead asks whether it has state files that the lead lacks."""

    def __init__(self, name: MemberName) -> None:
        super().__init__(str(name))
        self.name = name


class Verdict(Enum):
    """The lead's decision about a copy of its state."""

    COMMIT = auto()
    WAIT = auto()
    TAKE_ANOTHER = auto()
    REFUSE = auto()


class MemberAnswer(NamedTuple):
    """
    A member's answer to the lead's question about its state files. `answer` is None if the member has not answered.
    `failed` is True if the member's trainer failed, or never started.
    """

    answer: StateAnswer | None
    failed: bool = False

    @property
    def agrees(self) -> bool:
        return self.answer is not None and not self.answer.count


class Asking(NamedTuple):
    """
    The situation of a lead that has copied its state and asked the other members to compare their files with the copy.

    The lead asked `asked_s` seconds ago, and its state has not changed for `rested_s` seconds. `renewed` is True if a
    member named a file that has since changed on the lead too; the copy is then out of date. `ended` is True if the
    lead's command has ended. `final` is True if the copy was made after the command had ended.
    """

    asked_s: float
    rested_s: float
    renewed: bool = False
    ended: bool = False
    final: bool = False


def verdict(heard: Iterable[MemberAnswer], asking: Asking, rest_s: float) -> Verdict:
    """
    Decide from the other members' answers what the lead does with a copy of its state.

    The members write their files at different times and speeds. So if another member has a file that the lead lacks,
    the lead first waits, because its own command may still write the same file. The copy is refused only when the other
    member's file is at rest, and the lead's state has been at rest without that file for a while.

    If a member's command has failed, the member may never write some of the files in the lead's copy. So the copy is
    dropped, and the lead makes a new copy of its current files.
    """
    open_ones = [each for each in heard if not each.agrees]
    unlike = [each.answer for each in open_ones if each.answer is not None]
    waited = asking.asked_s >= RESTS * rest_s
    if not open_ones:
        return Verdict.COMMIT
    if not asking.final:
        out_of_date = asking.renewed or (asking.ended and (waited or unlike))
        if out_of_date or any(each.failed for each in open_ones):
            return Verdict.TAKE_ANOTHER
    if not unlike:
        return Verdict.WAIT
    both_rest = asking.rested_s >= RESTS * rest_s and any(answer.rests for answer in unlike)
    return Verdict.REFUSE if both_rest or asking.asked_s >= RESTS_MAX * rest_s else Verdict.WAIT


class OthersState:
    """
    Compares the lead's state with the other members' states before a checkpoint is saved. `runs` returns True while the
    lead's command runs.
    """

    def __init__(self, context: AgentContext, others: Sequence[MemberName], runs: Callable[[], bool]) -> None:
        self._context = context
        self._others = others
        self._runs = runs
        self._state = StateFiles(context)

    def compare(self, snapshot: Snapshot, files: CommittedFiles, frozen: Frozen, control: UploadControl) -> None:
        """
        Wait until each other member has answered that all its state files are in `files`, the list of this snapshot.

        Raises:
            StateUnlike: a member has a state file that the lead lacks, and the lead's state no longer changes.
            Abandoned: this copy is out of date, or no longer needed.
            MemberSilent: a member does not answer.
        """
        clock = self._context.clock
        rest_s = max(REST_S, REST_MIN_S * clock.scale)
        began_s = changed_s = clock.monotonic()
        before = frozen.survey
        attempt, final = snapshot.attempt, snapshot.taken.final
        asked = StateAsked(
            attempt=attempt,
            incarnation=snapshot.incarnation,
            word=secrets.token_hex(8),
            key=files.key,
            blake3=files.blake3,
        )
        for heard in self._heard(asked, final=final):
            if control.cancelled or is_fenced(self._context.recorder.state, attempt):
                raise Abandoned
            now, now_s = self._state.survey(), clock.monotonic()
            if now.first_change(before) is not None:
                before, changed_s = now, now_s
            named = [path for each in heard.values() if each.answer is not None for path in each.answer.unlike]
            renewed = any(now.at(path) != frozen.survey.at(path) for path in named)
            asking = Asking(now_s - began_s, now_s - changed_s, renewed, ended=not self._runs(), final=final)
            match verdict(heard.values(), asking, rest_s):
                case Verdict.COMMIT:
                    return
                case Verdict.TAKE_ANOTHER:
                    raise Abandoned
                case Verdict.REFUSE:
                    raise StateUnlike(self._told(heard, frozen))
                case Verdict.WAIT:
                    pass

    def _heard(self, asked: StateAsked, *, final: bool) -> Iterator[Mapping[MemberName, MemberAnswer]]:
        """
        Ask the other members to compare their files, and read their status objects repeatedly. After each round, yield
        all answers so far.

        Raises:
            MemberSilent: a member has not answered, and either its status no longer changes or its trainer has failed.
        """
        clock, status = self._context.clock, self._context.status
        silent_s = max(SILENT_S, SILENT_MIN_S * clock.scale)
        seen = dict.fromkeys(self._others, (-1, clock.monotonic()))
        status.facts["state_asked"] = asked
        self._context.heartbeat.beat_now()
        try:
            while True:
                heard: dict[MemberName, MemberAnswer] = {}
                for name in self._others:
                    found = read_status(self._context.store, agent_key(name.launch, name.member), AgentStatus)
                    if found is not None and found.sequence != seen[name][0]:
                        seen[name] = found.sequence, clock.monotonic()
                    heard[name] = each = heard_in(found, asked)
                    is_silent = clock.monotonic() - seen[name][1] >= silent_s
                    if each.answer is None and (is_silent or (final and each.failed)):
                        raise MemberSilent(name)
                yield heard
                time.sleep(pause_s(clock.scale))
        finally:
            status.facts["state_asked"] = None

    def _told(self, heard: Mapping[MemberName, MemberAnswer], frozen: Frozen) -> str:
        answers = ((name, each.answer) for name, each in heard.items() if not each.agrees)
        name, answer = next((name, answer) for name, answer in answers if answer is not None)
        path = answer.unlike[0]
        there = frozen.survey.at(path) is not None
        others = f" and {count_of(answer.count - 1, 'other file')}" if answer.count > 1 else ""
        lead = "a different file with that name" if there else "no such file"
        return (
            f"{name} has written {path}{others} into the state, and the lead of the gang has {lead}: a checkpoint has "
            "only the lead's files; try: let rank 0 write all state files, because each member starts from the lead's; "
            f'or exclude this file from the state: train: {{state: […, "!{path}"]}}'
        )


def heard_in(status: AgentStatus | None, asked: StateAsked) -> MemberAnswer:
    """
    Return the member's answer to `asked`, from its status. The status may still report the failure of an earlier
    trainer, which is ignored: `failed` refers to the trainer that `asked` names.
    """
    if status is None:
        return MemberAnswer(None)
    answer, trainer = status.state_answer, status.trainer
    failed = (
        trainer is not None
        and (trainer.attempt, trainer.incarnation) == (asked.attempt, asked.incarnation)
        and bool(trainer.exit_code)
    )
    return MemberAnswer(answer if answer is not None and answer.word == asked.word else None, failed)


class StateAtStart(NamedTuple):
    """The state files with which trainer `incarnation`, the newest trainer of this member, started."""

    incarnation: int
    survey: Survey


class AnswersLead:
    """
    A thread on each member except the lead. It answers the lead's questions about the files that this member's trainer
    has written.
    """

    def __init__(self, context: AgentContext, attempt: int, lead: MemberName) -> None:
        self._context = context
        self._attempt = attempt
        self._key = agent_key(lead.launch, lead.member)
        self._begun: StateAtStart | None = None
        self._listings: dict[str, Listing] = {}
        self._compared: dict[str, tuple[Stamp, tuple[Piece, ...], bool]] = {}
        self._unlike: Mapping[str, FileVersion | LinkTo] = {}
        self._changed_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self.rest()
        self._context.status.facts["state_answer"] = None

    def begins(self, incarnation: int) -> None:
        """
        Record the state files with which trainer `incarnation` is about to start; the lead's trainer starts with the
        same files. From now on, only files that differ from these count as written by the trainer.
        """
        self._begun = StateAtStart(incarnation, self._survey())

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
            with contextlib.suppress(StoreError, CheckpointDamaged):
                self._answer(asked, begun)

    def _answer(self, asked: StateAsked, begun: StateAtStart) -> None:
        unlike = self._unlike_listed(self._listing(asked), begun.survey)
        shown = tuple(path[:PATH_MAX] for path in sorted(unlike)[:NAMED_MAX])
        rests = bool(unlike) and self._rest(unlike)
        answer = StateAnswer(word=asked.word, unlike=shown, count=len(unlike), rests=rests)
        facts = self._context.status.facts
        if facts.get("state_answer") != answer and self._begun is begun:
            facts["state_answer"] = answer
            self._context.heartbeat.beat_now()

    def _listing(self, asked: StateAsked) -> Listing:
        """
        Read the list of the lead's files from the store, by the key in the question. The list is not in the ledger yet;
        the lead enters it there only if all members agree.
        """
        if asked.key not in self._listings:
            self._listings = {asked.key: listing_at(self._context.store, asked.key, asked.blake3, READS_WITHIN_S)}
        return self._listings[asked.key]

    def _rest(self, unlike: Mapping[str, FileVersion | LinkTo]) -> bool:
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

    def _unlike_listed(self, listing: Listing, before: Survey) -> Mapping[str, FileVersion | LinkTo]:
        """
        Return the state files that the trainer has written, and that `listing` lacks or lists with other content.
        """
        now = self._survey()
        files = {file.path: file for file in listing.files}
        links = {link.path: LinkTo(link.target) for link in listing.links}
        written = {path: seen for path, seen in now.files.items() if before.files.get(path) != seen}
        linked = {path: to for path, to in now.links.items() if to not in (before.links.get(path), links.get(path))}
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

    def _survey(self) -> Survey:
        return StateFiles(self._context).survey()


def pause_s(scale: float) -> float:
    return max(LOOKS_EVERY_MIN_S, LOOKS_EVERY_S / scale)
