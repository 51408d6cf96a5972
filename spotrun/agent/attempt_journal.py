"""
Writes the events of one attempt to the ledger. Each event is written only once, even if the agent restarts and tries
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from spotrun.agent.inbox import NoticeHeard, NoticesLost, PowerOff, SaveRefused, TrainerMessage
from spotrun.agent.recorder import unless
from spotrun.agent.saver import DETAIL_MAX, finite
from spotrun.errors import SpotrunError
from spotrun.folder.ledger import Decide
from spotrun.run.events import (
    AnyEvent,
    AttemptDrained,
    AttemptEnded,
    AttemptStarted,
    Cause,
    CheckpointFailed,
    Entry,
    EpochCompleted,
    NoticeSeen,
    NoticesUnseen,
    ResumedFrom,
    RunCompleted,
    SetUp,
    StateNotCarried,
    TrainerExited,
    TrainingStarted,
    Uncarried,
)
from spotrun.run.gang import Meeting, MemberName
from spotrun.run.state import Attempt, RunState
from spotrun.run.state import Trainer as TrainerRecord
from spotrun.trainer_link import EpochEnded
from spotrun.units import shown

APPEND_WITHIN_S = 3700.0
"""Maximum seconds of system time to wait for an append. It is longer than the time for which the recorder retries."""
NAMED_MAX = 40
"""
Maximum number of untracked places that the ledger names. An untracked place is a part of a training's state that
changes but is in no checkpoint. No user would read a longer list.
"""
PLACE_MAX, WHAT_MAX = 120, 160
"""
Maximum length of a place's name and of its description, in characters. With these limits, all places fit into one
entry.
"""


class EventRecorder(Protocol):
    """The interface that records an agent's events in order. Recorder implements it."""

    @property
    def state(self) -> RunState: ...

    def append(self, decide: Decide) -> Future[Entry | None]: ...


class AttemptJournal:
    """
    Writes the events of one attempt to the ledger. On a single instance, the caller first calls `take_over`, which
    begins the attempt and sets its number, `attempt`. A gang's attempt has already begun, so the caller sets `attempt`
    itself, and `member` names the member that writes.

    Each method writes one kind of event. It waits until the event is in the ledger if the main loop's next action
    depends on it. All other events are appended in the background, in order. If the ledger refuses such an event, the
    recorder puts a letter about it into the agent's inbox.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        launch: int,
        instance_id: str,
        booted_at: datetime,
        setup: SetUp | None = None,
        member: MemberName | UnsetType = UNSET,
    ) -> None:
        self._member = member
        self._recorder = recorder
        self._launch = launch
        self._started = AttemptStarted(launch=launch, instance_id=instance_id, booted_at=booted_at, setup=setup)
        self.attempt = -1

    def take_over(self) -> Attempt:
        """
        Start an attempt, or return the attempt that this instance has already started.

        Raises:
            PowerOff: this launch is not allowed to start an attempt, or another instance has already started this
                launch's attempt. A launch has two instances if a user copied one with "Launch more like this" in the
                cloud's console.
        """
        self._append(unless(lambda state: state.launches[self._launch].attempt is not None, self._started))
        number = self._recorder.state.launches[self._launch].attempt
        assert number is not None
        mine = self._recorder.state.attempts[number]
        if mine.instance_id != self._started.instance_id:
            raise PowerOff(f"launch {self._launch} already has the instance {mine.instance_id}")
        self.attempt = number
        return mine

    def resumed(self, incarnation: int, event: ResumedFrom, meet: Meeting | UnsetType = UNSET) -> None:
        """
        Record from which checkpoint a trainer resumes. `meet` is the address and port at which the trainers of
        a gang connect to each other.
        """
        event = replace(event, meet=meet)
        self._append(unless(lambda state: len(self._mine(state).trainers) > incarnation, event))

    def training_started(self, incarnation: int, step: int) -> None:
        event = TrainingStarted(attempt=self.attempt, incarnation=incarnation, step=step)
        self._append_later(unless(lambda state: self._trainer(state, incarnation).started_at is not None, event))

    def command_began(self, incarnation: int, began_at: datetime, *, unprotected: bool) -> None:
        event = TrainingStarted(
            attempt=self.attempt, incarnation=incarnation, step=0, began_at=began_at, unprotected=unprotected
        )
        self._append_later(unless(lambda state: has_begun(self._trainer(state, incarnation)), event))

    def epoch_completed(self, ended: EpochEnded, said: TrainerMessage) -> None:
        event = EpochCompleted(
            attempt=self.attempt,
            epoch=ended.epoch,
            step=ended.step,
            ended_at=said.at,
            metrics=finite(ended.metrics),
        )
        self._append_later(unless(lambda state: state.epochs and state.epochs[-1].event.epoch >= ended.epoch, event))

    def notice_seen(self, notice: NoticeHeard) -> None:
        if notice.kind == "rebalance":
            event = NoticeSeen(attempt=self.attempt, kind="rebalance", deadline_at=None, member=self._member)
            self._append_later(unless(lambda state: self._mine(state).rebalance, event))
            return
        event = NoticeSeen(
            attempt=self.attempt, kind="termination", deadline_at=notice.deadline_at, member=self._member
        )
        self._append_later(unless(lambda state: comes_too_late(event, self._mine(state).notice), event))

    def notices_lost(self, lost: NoticesLost) -> None:
        event = NoticesUnseen(attempt=self.attempt, detail=lost.reason[:DETAIL_MAX], member=self._member)
        self._append_later(unless(lambda state: self._mine(state).unseen is not None, event))

    def not_carried(self, step: int, places: Iterable[tuple[str, str]]) -> None:
        """
        Record the parts of the training's state that had changed by `step` and are in no checkpoint. Leave out those
        that the ledger already names. The ledger names at most `NAMED_MAX` of them in the whole run.
        """
        told = {shown(place, PLACE_MAX)[:PLACE_MAX]: shown(what, WHAT_MAX)[:WHAT_MAX] for place, what in places}

        def decide(state: RunState) -> AnyEvent | None:
            known = {one.place for one in state.not_carried}
            new = [Uncarried(place=place, what=what) for place, what in told.items() if place not in known]
            new = new[: max(0, NAMED_MAX - len(known))]
            return StateNotCarried(attempt=self.attempt, step=step, places=tuple(new)) if new else None

        self._append_later(decide)

    def save_refused(self, refused: SaveRefused) -> Future[Entry | None]:
        """
        Record that the store refused a checkpoint. Do not wait until the entry is written: the ledger is in the same
        store, which may refuse the entry too.
        """
        event = CheckpointFailed(
            attempt=self.attempt,
            step=refused.step,
            detail=refused.detail[:DETAIL_MAX],
            size_bytes=refused.size_bytes,
        )
        return self._recorder.append(lambda _: event)

    def trainer_exited(self, incarnation: int, cause: Cause, exit_code: int, step: int, detail: str) -> TrainerExited:
        event = TrainerExited(
            attempt=self.attempt,
            incarnation=incarnation,
            cause=cause,
            exit_code=exit_code,
            step=step,
            detail=detail,
        )
        self._append(unless(lambda state: self._trainer(state, incarnation).exited is not None, event))
        return event

    # -- the end of the attempt ----------------------------------------------------------------------------------

    def drained(self, final_commit: int | None, stopped_at: datetime, reason: str) -> None:
        self._end(AttemptDrained(attempt=self.attempt, final_commit=final_commit, stopped_at=stopped_at, reason=reason))

    def ended(
        self,
        cause: Cause,
        last_step: int,
        detail: str,
        *,
        lossy: bool = False,
        missing: tuple[MemberName, ...] | UnsetType = UNSET,
    ) -> None:
        """
        Record the end of the attempt. `missing` are the members that could not be reached. If steps are lost (`lossy`),
        the event's detail also names the newest step that is kept. That step is looked up only when the entry is
        written, because the saver may commit newer steps until then.
        """

        def decide(state: RunState) -> AnyEvent | None:
            if self._mine(state).end is not None:
                return None
            told = f"{detail}; {_survivor(state)}" if lossy else detail
            return AttemptEnded(
                attempt=self.attempt, cause=cause, last_step=last_step, detail=told[: 2 * DETAIL_MAX], missing=missing
            )

        self._append(decide)

    def completed(self, final_commit: int | None, step: int) -> None:
        self._end(RunCompleted(attempt=self.attempt, final_commit=final_commit, step=step))

    def _end(self, event: AnyEvent) -> None:
        self._append(unless(lambda state: self._mine(state).end is not None, event))

    # -- lookups and appends ------------------------------------------------------------------------------------

    def _mine(self, state: RunState) -> Attempt:
        return state.attempts[self.attempt]

    def _trainer(self, state: RunState, incarnation: int) -> TrainerRecord:
        return self._mine(state).trainers[incarnation]

    def _append(self, decide: Decide) -> None:
        """
        Append an event and wait until it is written.

        Raises:
            PowerOff: the ledger accepts no more entries from this agent, or the store cannot be written to.
        """
        try:
            self._recorder.append(decide).result(APPEND_WITHIN_S)
        except SpotrunError as error:
            raise PowerOff(error.message) from error

    def _append_later(self, decide: Decide) -> None:
        """Append an event without waiting. If the ledger refuses it, the recorder puts a letter into the inbox."""
        self._recorder.append(decide)


def comes_too_late(notice: NoticeSeen, known: NoticeSeen | None) -> bool:
    """
    Return True if the ledger already has a notice that makes `notice` redundant: one for the same instance, or one with
    an earlier deadline for another member of the gang.
    """
    if known is None or known.member == notice.member:
        return known is not None
    return known.deadline_at is None or (notice.deadline_at is not None and known.deadline_at <= notice.deadline_at)


def has_begun(trainer: TrainerRecord) -> bool:
    return trainer.started_at is not None or trainer.began_at is not None


def _survivor(state: RunState) -> str:
    newest = state.latest_commit()
    return "no step survives" if newest is None else f"step {newest.event.step:,} survives"
