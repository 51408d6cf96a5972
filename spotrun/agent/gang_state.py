"""
Joins the state files of all members of a gang that runs a command, before they become a checkpoint.

Usually only the lead writes files, or all members write the same. A training that shards its state writes different
files on each member. A checkpoint of these files must be of one moment: no member may have saved the next step already.
So the lead asks the other members three times, in its status object, and each member answers in its own:

1. to compare their files with the lead's. If all have the same, the checkpoint consists of the lead's files.
2. to store the files that differ, once nothing has changed on any member for a while.
3. to confirm that they are still as they were stored. In between, the lead checks that its own files are unchanged. So
   there was a moment at which the files on all members were those of the checkpoint.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.decisions import is_fenced
from spotrun.agent.files.commit_files import StateOfMember, StateRefused
from spotrun.agent.files.content_store import ContentStore
from spotrun.agent.files.quiescence import REST_MIN_S, REST_S
from spotrun.agent.files.rules import StateFiles
from spotrun.agent.gang.gang_decisions import SILENT_MIN_S, SILENT_S
from spotrun.agent.gang.state_answers import READS_WITHIN_S, pause_s
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.checkpoint.outputs import listing_at
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.folder.status_objects import (
    AgentStatus,
    StateAnswer,
    StateAsked,
    StateStep,
    StateStored,
    agent_key,
    read_status,
)
from spotrun.run.events import CommittedFiles
from spotrun.run.gang import MemberName
from spotrun.units import count_of

RESTS = 3
"""
Time for which nothing must change on any member before files of other members are stored. The unit is the time after
which an unchanged state counts as at rest (quiescence.py). It is longer than for a single machine's state, because the
members write their files at different times and speeds.
"""
RESTS_MAX = 120
"""
Maximum time for which the lead waits while another member's files keep changing. After this time the checkpoint is
given up. The time has the same unit as RESTS.
"""


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
    STORE = auto()
    GIVE_UP = auto()


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

    The lead asked `asked_s` seconds ago. `renewed` is True if the lead's state has changed since the copy. `ended` is
    True if the lead's command has ended. `final` is True if the copy was made after the command had ended.
    """

    asked_s: float
    renewed: bool = False
    ended: bool = False
    final: bool = False


def verdict(heard: Iterable[MemberAnswer], asking: Asking, rest_s: float) -> Verdict:
    """
    Decide from the other members' answers what the lead does with a copy of its state.

    The members write their files at different times and speeds. So if another member has files that the lead lacks, the
    lead first waits, because its own command may still write the same files, or the other member may soon remove them.
    The other members' files are stored only when nothing has changed on any member for a while.

    If a member's command has failed, the member may never write some of the files in the lead's copy. So the copy is
    dropped, and the lead makes a new copy of its current files.
    """
    open_ones = [each for each in heard if not each.agrees]
    unlike = [each.answer for each in open_ones if each.answer is not None]
    waited = asking.asked_s >= RESTS * rest_s
    if not open_ones:
        return Verdict.COMMIT
    if not asking.final:
        out_of_date = (asking.renewed and unlike) or (asking.ended and (waited or unlike))
        if out_of_date or any(each.failed for each in open_ones):
            return Verdict.TAKE_ANOTHER
    if waited and len(unlike) == len(open_ones) and all(answer.rests for answer in unlike):
        return Verdict.STORE
    return Verdict.GIVE_UP if unlike and asking.asked_s >= RESTS_MAX * rest_s else Verdict.WAIT


class OthersState:
    """
    Finds and joins the state files that the other members of the gang have, before a checkpoint is saved. `runs`
    returns True while the lead's command runs.
    """

    def __init__(
        self, context: AgentContext, pieces: ContentStore, others: Sequence[MemberName], runs: Callable[[], bool]
    ) -> None:
        self._context = context
        self._pieces = pieces
        self._others = others
        self._runs = runs
        self._state = StateFiles(context)

    def join(
        self, snapshot: Snapshot, files: CommittedFiles, frozen: Frozen, control: UploadControl
    ) -> list[StateOfMember]:
        """
        Return the files that the other members have stored for this snapshot, because the lead's list, `files`, lacks
        them. The result is empty if the other members have no such files.

        Raises:
            StateRefused: a member must not store one of its files, or its files never stop changing.
            Abandoned: this copy is out of date, or no longer needed.
            MemberSilent: a member does not answer.
            StoreError: the list of a member's files cannot be read.
        """
        attempt, final = snapshot.attempt, snapshot.taken.final
        while True:
            asked = StateAsked(
                attempt=attempt,
                incarnation=snapshot.incarnation,
                word=secrets.token_hex(8),
                key=files.key,
                blake3=files.blake3,
            )
            if self._compared(asked, frozen, control, final=final) is Verdict.COMMIT:
                return []
            joined = self._stored(asked, control, final=final)
            if not final and self._state.survey().first_change(frozen.survey) is not None:
                raise Abandoned
            if self._confirmed(asked, control, final=final):
                return joined

    def _compared(self, asked: StateAsked, frozen: Frozen, control: UploadControl, *, final: bool) -> Verdict:
        """Ask the members to compare their files with the lead's, until all have the same, or have to store theirs."""
        clock = self._context.clock
        rest_s = max(REST_S, REST_MIN_S * clock.scale)
        began_s = clock.monotonic()
        for heard in self._heard(asked, control, final=final):
            renewed = self._state.survey().first_change(frozen.survey) is not None
            asking = Asking(clock.monotonic() - began_s, renewed, ended=not self._runs(), final=final)
            match decided := verdict(heard.values(), asking, rest_s):
                case Verdict.COMMIT | Verdict.STORE:
                    return decided
                case Verdict.TAKE_ANOTHER:
                    raise Abandoned
                case Verdict.GIVE_UP:
                    raise StateRefused(_restless(heard))
                case Verdict.WAIT:
                    pass
        raise AssertionError("the answers never end")

    def _stored(self, asked: StateAsked, control: UploadControl, *, final: bool) -> list[StateOfMember]:
        """Have the members store their files, and read their lists."""
        answers = self._answers(replace(asked, step=StateStep.STORE), control, final=final)
        return [
            self._read(rank, answer.stored)
            for rank, answer in enumerate(answers.values(), 1)
            if answer.stored is not None
        ]

    def _read(self, rank: int, stored: StateStored) -> StateOfMember:
        listing = listing_at(self._context.store, stored.key, stored.blake3, READS_WITHIN_S)
        self._pieces.sent_by_member(stored.key, listing)
        return StateOfMember(rank, listing, stored)

    def _confirmed(self, asked: StateAsked, control: UploadControl, *, final: bool) -> bool:
        """Return True if no member's files have changed since they were stored."""
        answers = self._answers(replace(asked, step=StateStep.CONFIRM), control, final=final)
        return all(answer.rests for answer in answers.values())

    def _answers(self, asked: StateAsked, control: UploadControl, *, final: bool) -> Mapping[MemberName, StateAnswer]:
        """Ask the other members, and wait until all have answered."""
        for heard in self._heard(asked, control, final=final):
            answers = {name: each.answer for name, each in heard.items() if each.answer is not None}
            for name, answer in answers.items():
                if answer.refused:
                    raise StateRefused(f"{answer.refused} (on {name})")
            if not final and any(each.failed for each in heard.values()):
                raise Abandoned
            if len(answers) == len(heard):
                return answers
        raise AssertionError("the answers never end")

    def _heard(
        self, asked: StateAsked, control: UploadControl, *, final: bool
    ) -> Iterator[Mapping[MemberName, MemberAnswer]]:
        """
        Ask the other members, and read their status objects repeatedly. After each round, yield all answers so far.

        Raises:
            Abandoned: the checkpoint is no longer needed.
            MemberSilent: a member has not answered, and either its status no longer changes or its trainer has failed.
        """
        clock, status = self._context.clock, self._context.status
        silent_s = max(SILENT_S, SILENT_MIN_S * clock.scale)
        seen = dict.fromkeys(self._others, (-1, clock.monotonic()))
        status.facts["state_asked"] = asked
        self._context.heartbeat.beat_now()
        try:
            while True:
                if control.cancelled or is_fenced(self._context.recorder.state, asked.attempt):
                    raise Abandoned
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


def _restless(heard: Mapping[MemberName, MemberAnswer]) -> str:
    unlike = [(name, each.answer) for name, each in heard.items() if each.answer is not None and not each.agrees]
    name, answer = min(unlike, key=lambda each: each[1].rests)
    path = answer.unlike[0]
    others = f" and {count_of(answer.count - 1, 'other file')}" if answer.count > 1 else ""
    return (
        f"{path}{others} on {name} never stopped changing; try: close files between saves, or exclude this file from "
        f'the state: train: {{state: […, "!{path}"]}}'
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
    fits = answer is not None and (answer.word, answer.step) == (asked.word, asked.step)
    return MemberAnswer(answer if fits else None, failed)
