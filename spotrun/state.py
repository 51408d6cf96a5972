"""
What a run is now: a fold of its events, and nothing else.

`apply` takes one entry further. It checks again what each event presupposes (protocol 3): an entry that breaks its
preconditions is *void*, kept and named, and without effect. So two writers that raced agree on who won.

Reading a ledger in two parts gives the same state as reading it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from spotrun import events as ev
from spotrun.billing import ZERO, Meter, hourly
from spotrun.events import Cause, Entry
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One intended instance and what became of it."""

    number: int
    intent: ev.LaunchIntended
    intended_at: datetime
    recorded: ev.LaunchRecorded | None = None
    closed: ev.LaunchClosed | None = None
    condemned: ev.InstanceCondemned | None = None
    gone: ev.InstanceGone | None = None
    gone_at: datetime | None = None
    attempt: int | None = None

    @property
    def open(self) -> bool:
        return self.closed is None and self.gone is None

    @property
    def pending(self) -> bool:
        """Asked for, and neither closed, gone, nor taken over the run yet."""
        return self.open and self.attempt is None

    def meter(self, rule: ev.BillingRule) -> Meter:
        """Its bill, from what was recorded last: an end that was only inferred may know no price."""
        known = [fact for fact in (self.gone, self.recorded) if fact is not None]
        prices = next((fact.prices for fact in known if fact.prices), ())
        billed_from = next((fact.billed_from for fact in known if fact.billed_from is not None), None)
        gone = self.gone
        if gone is None:
            return Meter(rule, prices, billed_from, None, None)
        spot = self.intent.offering.capacity_type is CapacityType.SPOT
        return Meter(rule, prices, billed_from, gone.ended_at, gone.ended_by if spot else EndedBy.USER)

    def reserved_usd(self, rule: ev.BillingRule) -> Decimal:
        """What this launch may cost in all: the final bill once it is gone, the whole time-to-live until then."""
        if self.gone is not None:
            return self.meter(rule).cost_until(self.gone.ended_at)
        if self.closed is not None and self.recorded is None:
            return ZERO
        return reservation_usd(self.intent)


class Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer process of an attempt."""

    incarnation: int
    resumed_at: datetime
    commit: int | None
    step: int
    started_at: datetime | None = None
    exited: ev.TrainerExited | None = None
    exited_at: datetime | None = None


WORTH_ANOTHER_TRY = frozenset({Cause.INTERRUPTED, Cause.STOPPED, Cause.REPLACED})
"""Causes that lie outside of the training: an attempt that its agent ended for one of them is followed by another."""


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """
    How an attempt ended: training stood still from `stopped_at`, and the run knew of it at `known_at`.

    `gave_up`: its agent sees no use in another try.
    """

    cause: Cause
    stopped_at: datetime
    known_at: datetime
    last_step: int | None
    detail: str = ""
    gave_up: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of training on one instance."""

    number: int
    launch: int
    instance_id: str
    booted_at: datetime
    started_at: datetime
    trainers: tuple[Trainer, ...] = ()
    notice: ev.NoticeSeen | None = None
    notice_at: datetime | None = None
    rebalance: bool = False
    drain: ev.DrainRequested | None = None
    end: AttemptEnd | None = None
    saves_failed_in_a_row: int = 0

    @property
    def leaving(self) -> bool:
        """It has been told to go, by the cloud or by a runner."""
        return self.notice is not None or self.drain is not None


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted checkpoint. `cut_off`: training resumed from an older one, so this is no longer the run's history."""

    number: int
    at: datetime
    event: ev.CheckpointCommitted
    retired_at: datetime | None = None
    cut_off: bool = False

    @property
    def usable(self) -> bool:
        return self.retired_at is None and not self.cut_off and not self.event.suspect


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """A completed epoch on the history that survives so far."""

    number: int
    at: datetime
    event: ev.EpochCompleted


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: `completed`, `stopped` or `failed`."""

    outcome: str
    number: int
    at: datetime
    cause: Cause
    detail: str = ""
    final_commit: int | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """From an end to the request that opened the run again. This time belongs to no account."""

    since: datetime
    until: datetime


class Prune(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to keep no more than `keep` of the commits before entry `number`."""

    number: int
    keep: int


class Void(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    kind: str
    reason: str


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold. `next_number` is where the next entry goes."""

    next_number: int = 0
    created: ev.RunCreated | None = None
    created_at: datetime | None = None
    launches: Mapping[int, Launch] = {}
    attempts: Mapping[int, Attempt] = {}
    commits: tuple[Commit, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    current_attempt: int | None = None
    stop_requested_at: datetime | None = None
    opened_at: datetime | None = None
    restarts_used: int = 0
    terminal: Terminal | None = None
    prune: Prune | None = None
    pauses: tuple[Pause, ...] = ()
    steps_redone: tuple[tuple[datetime, int], ...] = ()
    restores: tuple[tuple[datetime, int], ...] = ()
    entry_times: tuple[datetime, ...] = ()
    voids: tuple[Void, ...] = ()

    @property
    def stop_requested(self) -> bool:
        return self.stop_requested_at is not None

    @property
    def current(self) -> Attempt | None:
        """The newest accepted attempt that has not ended."""
        return None if self.current_attempt is None else self.attempts[self.current_attempt]

    @property
    def pending_launch(self) -> Launch | None:
        return next((launch for launch in reversed(list(self.launches.values())) if launch.pending), None)

    def launch_of(self, attempt: Attempt) -> Launch:
        return self.launches[attempt.launch]

    def restore_candidates(self) -> list[Commit]:
        """What may be resumed from, newest entry first (protocol 22)."""
        return [commit for commit in reversed(self.commits) if commit.usable]

    def latest_commit(self) -> Commit | None:
        return next(iter(self.restore_candidates()), None)

    def commit(self, number: int) -> Commit | None:
        return next((commit for commit in reversed(self.commits) if commit.number == number), None)

    def reserved_usd(self) -> Decimal:
        """Spent on what is gone, plus the whole reservation of what is not (protocol 11)."""
        assert self.created is not None
        return sum((launch.reserved_usd(self.created.billing) for launch in self.launches.values()), ZERO)


def reservation_usd(intent: ev.LaunchIntended) -> Decimal:
    """The most that this launch can cost: its whole time-to-live at its price ceiling."""
    return hourly(intent.price_ceiling_usd_per_hour, timedelta(seconds=intent.time_to_live_s))


LIFE_MAX_S = 31 * 86_400
"""The longest time-to-live; a negative one would reserve less than nothing."""


class Refusal(Exception):
    """Why an entry is void. Never leaves this module."""


def fold(entries: Iterable[Entry], start: RunState | None = None) -> RunState:
    state = start or RunState()
    for entry in entries:
        state = apply(state, entry)
    return state


def apply(state: RunState, entry: Entry) -> RunState:
    """The state after one more entry, which must be the next by number."""
    assert entry.number == state.next_number, f"entry {entry.number} folded at {state.next_number}"
    reason = refusal(state, entry)
    counted = replace(state, next_number=entry.number + 1, entry_times=(*state.entry_times, entry.at))
    if reason is not None:
        return _void(counted, entry.number, ev.kind(entry.event), reason)
    return _APPLY[type(entry.event)](counted, entry, entry.event)


def apply_malformed(state: RunState, number: int, reason: str = "not a well-formed entry") -> RunState:
    """The state after an object that is no entry of this run: it holds its number and means nothing."""
    assert number == state.next_number
    return _void(replace(state, next_number=number + 1), number, "?", reason)


def refusal(state: RunState, entry: Entry) -> str | None:
    """Why this entry would be void at this point, or None where it would be accepted."""
    try:
        _check_run(state, entry)
        _CHECK[type(entry.event)](state, entry.event)
    except Refusal as reason:
        return str(reason)
    except ArithmeticError:
        return "its figures are beyond all reckoning"
    return None


def _void(state: RunState, number: int, kind: str, reason: str) -> RunState:
    return replace(state, voids=(*state.voids, Void(number=number, kind=kind, reason=reason)))


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Refusal(reason)


# -- preconditions ---------------------------------------------------------------------------------------------------


def _check_run(state: RunState, entry: Entry) -> None:
    if isinstance(entry.event, ev.RunCreated):
        _require(entry.number == 0, "a run is created by entry 0 only")
        _require(entry.run == entry.event.uid, "the entry names another run than it creates")
        return
    _require(state.created is not None, "the run was never created")
    assert state.created is not None
    _require(entry.run == state.created.uid, "it belongs to another run")


def _check_created(state: RunState, event: ev.RunCreated) -> None:
    _require(event.ledger_version == ev.LEDGER_VERSION, f"ledger version {event.ledger_version} is not spoken here")


def _check_open(state: RunState, _: Any = None) -> None:
    _require(state.terminal is None, "the run has ended")


def _check_resume_requested(state: RunState, _: ev.ResumeRequested) -> None:
    ended = state.terminal is not None and state.terminal.outcome != "completed"
    _require(ended or (state.terminal is None and state.stop_requested), "the run is neither stopped nor failed")


def _check_prune_requested(state: RunState, event: ev.PruneRequested) -> None:
    _check_open(state)
    _require(event.keep >= 1, "the newest checkpoint is always kept")


def _check_launch_intended(state: RunState, event: ev.LaunchIntended) -> None:
    _check_open(state)
    _require(not state.stop_requested, "a stop was requested")
    _require(state.pending_launch is None, "another launch is pending")
    _require(0 < event.time_to_live_s <= LIFE_MAX_S, "no instance lives so long")
    created = state.created
    assert created is not None
    cap = created.price_cap_usd_per_hour
    _require(cap is None or event.price_ceiling_usd_per_hour <= cap, "dearer than the run's price cap")
    if event.standby_for is None:
        _require(state.current is None, "an attempt is current")
    else:
        _require(state.current_attempt == event.standby_for, "the attempt to replace is not current")
    if created.budget_usd is not None:
        planned = state.reserved_usd() + reservation_usd(event)
        _require(planned <= created.budget_usd, "more than the rest of the budget")


def _known_launch(state: RunState, number: int) -> Launch:
    _require(number in state.launches, f"there is no launch {number}")
    return state.launches[number]


def _check_launch_recorded(state: RunState, event: ev.LaunchRecorded) -> None:
    launch = _known_launch(state, event.launch)
    _require(launch.recorded is None and launch.gone is None, "already recorded")


def _check_launch_closed(state: RunState, event: ev.LaunchClosed) -> None:
    launch = _known_launch(state, event.launch)
    _require(launch.attempt is None, "the launch has started an attempt")
    _require(launch.open, "already closed")


def _check_drain_requested(state: RunState, event: ev.DrainRequested) -> None:
    current = _check_current(state, event.attempt)
    _require(current.drain is None, "already requested")


def _check_condemned(state: RunState, event: ev.InstanceCondemned) -> None:
    launch = _known_launch(state, event.launch)
    _require(launch.condemned is None and launch.gone is None, "already condemned or gone")


def _check_gone(state: RunState, event: ev.InstanceGone) -> None:
    _require(_known_launch(state, event.launch).gone is None, "already gone")


def _check_ending_by_runner(state: RunState, _: Any) -> None:
    _check_open(state)
    _require(state.current_attempt is None, "an attempt is current")


def _check_attempt_started(state: RunState, event: ev.AttemptStarted) -> None:
    _check_open(state)
    launch = _known_launch(state, event.launch)
    _require(launch.attempt is None, "the launch has started already")
    _require(launch.open and launch.condemned is None, "the launch is closed")
    pending = state.pending_launch
    _require(pending is not None and pending.number == event.launch, "a newer launch is waiting to start")
    newest_started = max((other.number for other in state.launches.values() if other.attempt is not None), default=-1)
    _require(event.launch > newest_started, "a newer launch has started")


def _check_current(state: RunState, attempt: int) -> Attempt:
    _check_open(state)
    _require(state.current_attempt == attempt, f"attempt {attempt} is not the current one")
    return state.attempts[attempt]


def _check_of_current(state: RunState, event: Any) -> None:
    _check_current(state, event.attempt)


def _check_resumed_from(state: RunState, event: ev.ResumedFrom) -> None:
    attempt = _check_current(state, event.attempt)
    _require(event.incarnation == len(attempt.trainers), "another trainer of that number has begun")
    if event.commit is None:
        _require(not state.restore_candidates(), "from zero although there is a checkpoint")
        return
    commit = state.commit(event.commit)
    _require(commit is not None and commit.usable, "the commit may not be resumed from")
    newer = {other.number for other in state.restore_candidates() if other.number > event.commit}
    _require(newer <= set(event.skipped), "there is a newer checkpoint")


def _check_of_trainer(state: RunState, event: Any) -> None:
    attempt = _check_current(state, event.attempt)
    _require(bool(attempt.trainers), "no trainer has begun")
    newest = attempt.trainers[-1]
    _require(newest.incarnation == event.incarnation and newest.exited is None, "not the attempt's newest trainer")


def _check_training_started(state: RunState, event: ev.TrainingStarted) -> None:
    _check_of_trainer(state, event)
    _require(state.attempts[event.attempt].trainers[-1].started_at is None, "already started")


def _check_committed(state: RunState, event: ev.CheckpointCommitted) -> None:
    attempt = _check_current(state, event.attempt)
    _require(event.incarnation < len(attempt.trainers), "no such trainer has begun")
    again = bool(state.commits) and state.commits[-1].event.prefix == event.prefix
    _require(not again, "the newest commit is this one already")


def _check_final_commit(state: RunState, event: ev.AttemptDrained | ev.RunCompleted) -> None:
    _check_current(state, event.attempt)
    if event.final_commit is not None:
        commit = state.commit(event.final_commit)
        _require(commit is not None and commit.usable, "the final commit is not an accepted one")


def _check_retired(state: RunState, event: ev.CheckpointRetired) -> None:
    if event.attempt is None:
        _require(state.terminal is not None, "a runner retires only when the run has ended")
    else:
        _check_current(state, event.attempt)
    commit = state.commit(event.commit)
    _require(commit is not None and commit.retired_at is None, "no such commit, or already retired")


def _check_epoch_completed(state: RunState, event: ev.EpochCompleted) -> None:
    _check_current(state, event.attempt)
    last = state.epochs[-1].event.epoch if state.epochs else -1
    _require(event.epoch > last, "that epoch is completed already")


_CHECK: dict[type, Callable[[RunState, Any], object]] = {
    ev.RunCreated: _check_created,
    ev.StopRequested: _check_open,
    ev.ResumeRequested: _check_resume_requested,
    ev.PruneRequested: _check_prune_requested,
    ev.LaunchIntended: _check_launch_intended,
    ev.LaunchRecorded: _check_launch_recorded,
    ev.LaunchClosed: _check_launch_closed,
    ev.DrainRequested: _check_drain_requested,
    ev.InstanceCondemned: _check_condemned,
    ev.InstanceGone: _check_gone,
    ev.RunStopped: _check_ending_by_runner,
    ev.RunFailed: _check_ending_by_runner,
    ev.AttemptStarted: _check_attempt_started,
    ev.ResumedFrom: _check_resumed_from,
    ev.TrainingStarted: _check_training_started,
    ev.NoticeSeen: _check_of_current,
    ev.CheckpointCommitted: _check_committed,
    ev.CheckpointFailed: _check_of_current,
    ev.CheckpointRetired: _check_retired,
    ev.EpochCompleted: _check_epoch_completed,
    ev.TrainerExited: _check_of_trainer,
    ev.AttemptDrained: _check_final_commit,
    ev.AttemptEnded: _check_of_current,
    ev.RunCompleted: _check_final_commit,
}


# -- effects ---------------------------------------------------------------------------------------------------------


def _with_launch(state: RunState, number: int, **changes: Any) -> RunState:
    return replace(state, launches={**state.launches, number: replace(state.launches[number], **changes)})


def _with_attempt(state: RunState, number: int, **changes: Any) -> RunState:
    return replace(state, attempts={**state.attempts, number: replace(state.attempts[number], **changes)})


def _end_attempt(state: RunState, number: int, end: AttemptEnd) -> RunState:
    return replace(_with_attempt(state, number, end=end), current_attempt=None)


def _end_run(state: RunState, outcome: str, entry: Entry, cause: Cause, detail: str = "", **more: Any) -> RunState:
    end = Terminal(outcome=outcome, number=entry.number, at=entry.at, cause=cause, detail=detail, **more)
    return replace(state, terminal=end)


def _created(state: RunState, entry: Entry, event: ev.RunCreated) -> RunState:
    return replace(state, created=event, created_at=entry.at, opened_at=entry.at)


def _stop_requested(state: RunState, entry: Entry, event: ev.StopRequested) -> RunState:
    return replace(state, stop_requested_at=entry.at)


def _resume_requested(state: RunState, entry: Entry, event: ev.ResumeRequested) -> RunState:
    opened = replace(state, stop_requested_at=None, restarts_used=0, opened_at=entry.at, terminal=None)
    if state.terminal is None:
        return opened
    pause = Pause(since=state.terminal.at, until=max(state.terminal.at, entry.at))
    return replace(opened, pauses=(*state.pauses, pause))


def _prune_requested(state: RunState, entry: Entry, event: ev.PruneRequested) -> RunState:
    return replace(state, prune=Prune(number=entry.number, keep=event.keep))


def _launch_intended(state: RunState, entry: Entry, event: ev.LaunchIntended) -> RunState:
    launch = Launch(number=entry.number, intent=event, intended_at=entry.at)
    return replace(state, launches={**state.launches, entry.number: launch})


def _launch_recorded(state: RunState, entry: Entry, event: ev.LaunchRecorded) -> RunState:
    return _with_launch(state, event.launch, recorded=event)


def _launch_closed(state: RunState, entry: Entry, event: ev.LaunchClosed) -> RunState:
    return _with_launch(state, event.launch, closed=event)


def _drain_requested(state: RunState, entry: Entry, event: ev.DrainRequested) -> RunState:
    return _with_attempt(state, event.attempt, drain=event)


def _condemned(state: RunState, entry: Entry, event: ev.InstanceCondemned) -> RunState:
    return _with_launch(state, event.launch, condemned=event)


def _gone(state: RunState, entry: Entry, event: ev.InstanceGone) -> RunState:
    state = _with_launch(state, event.launch, gone=event, gone_at=entry.at)
    current = state.current
    if current is None or current.launch != event.launch:
        return state
    end = AttemptEnd(
        cause=_cause_of_loss(state.launches[event.launch], event),
        stopped_at=event.ended_at,
        known_at=entry.at,
        last_step=event.last_step_seen,
        detail=event.evidence,
    )
    return _end_attempt(state, current.number, end)


def _cause_of_loss(launch: Launch, event: ev.InstanceGone) -> Cause:
    """The cloud's record first (failures.md P27, R15): who ended the instance decides."""
    if launch.condemned is not None:
        return launch.condemned.cause
    return Cause.INTERRUPTED if event.ended_by is EndedBy.CLOUD else Cause.EXTERNAL


def _run_stopped(state: RunState, entry: Entry, event: ev.RunStopped) -> RunState:
    return _end_run(state, "stopped", entry, Cause.STOPPED, event.reason)


def _run_failed(state: RunState, entry: Entry, event: ev.RunFailed) -> RunState:
    return _end_run(state, "failed", entry, event.cause, event.detail)


def _attempt_started(state: RunState, entry: Entry, event: ev.AttemptStarted) -> RunState:
    predecessor = state.current
    if predecessor is not None:
        end = AttemptEnd(cause=Cause.REPLACED, stopped_at=entry.at, known_at=entry.at, last_step=None, detail="fenced")
        state = _end_attempt(state, predecessor.number, end)
    attempt = Attempt(
        number=entry.number,
        launch=event.launch,
        instance_id=event.instance_id,
        booted_at=event.booted_at,
        started_at=entry.at,
    )
    state = _with_launch(state, event.launch, attempt=entry.number)
    return replace(state, attempts={**state.attempts, entry.number: attempt}, current_attempt=entry.number)


def _resumed_from(state: RunState, entry: Entry, event: ev.ResumedFrom) -> RunState:
    redone = max(0, _last_step_reached(state) - event.step)
    chosen = event.commit if event.commit is not None else -1
    commits = tuple(
        replace(commit, cut_off=True) if commit.number > chosen and not commit.cut_off else commit
        for commit in state.commits
    )
    trainer = Trainer(incarnation=event.incarnation, resumed_at=entry.at, commit=event.commit, step=event.step)
    trainers = (*state.attempts[event.attempt].trainers, trainer)
    state = _with_attempt(state, event.attempt, trainers=trainers)
    objects = next((commit.event.objects for commit in commits if commit.number == event.commit), 0)
    return replace(
        state,
        commits=commits,
        epochs=tuple(epoch for epoch in state.epochs if epoch.event.step <= event.step),
        steps_redone=(*state.steps_redone, (entry.at, redone)) if redone else state.steps_redone,
        restores=(*state.restores, (entry.at, objects)),
    )


def _last_step_reached(state: RunState) -> int:
    """The newest step known to have been done by the trainer before this one."""
    reached = [commit.event.step for commit in state.commits if not commit.cut_off]
    ended = [attempt for attempt in state.attempts.values() if attempt.trainers]
    if not ended:
        return 0
    last = ended[-1]
    trainer = last.trainers[-1]
    reached.append(trainer.step)
    if trainer.exited is not None:
        reached.append(trainer.exited.step)
    if last.end is not None and last.end.last_step is not None:
        reached.append(last.end.last_step)
    return max(reached)


def _with_newest_trainer(state: RunState, attempt: int, **changes: Any) -> RunState:
    trainers = state.attempts[attempt].trainers
    return _with_attempt(state, attempt, trainers=(*trainers[:-1], replace(trainers[-1], **changes)))


def _training_started(state: RunState, entry: Entry, event: ev.TrainingStarted) -> RunState:
    return _with_newest_trainer(state, event.attempt, started_at=entry.at)


def _notice_seen(state: RunState, entry: Entry, event: ev.NoticeSeen) -> RunState:
    if event.kind == "rebalance":
        return _with_attempt(state, event.attempt, rebalance=True)
    return _with_attempt(state, event.attempt, notice=event, notice_at=entry.at)


def _committed(state: RunState, entry: Entry, event: ev.CheckpointCommitted) -> RunState:
    state = _with_attempt(state, event.attempt, saves_failed_in_a_row=0)
    return replace(state, commits=(*state.commits, Commit(number=entry.number, at=entry.at, event=event)))


def _save_failed(state: RunState, entry: Entry, event: ev.CheckpointFailed) -> RunState:
    failures = state.attempts[event.attempt].saves_failed_in_a_row + 1
    return _with_attempt(state, event.attempt, saves_failed_in_a_row=failures)


def _retired(state: RunState, entry: Entry, event: ev.CheckpointRetired) -> RunState:
    commits = tuple(
        replace(commit, retired_at=entry.at) if commit.number == event.commit else commit for commit in state.commits
    )
    return replace(state, commits=commits)


def _epoch_completed(state: RunState, entry: Entry, event: ev.EpochCompleted) -> RunState:
    return replace(state, epochs=(*state.epochs, Epoch(number=entry.number, at=entry.at, event=event)))


def _trainer_exited(state: RunState, entry: Entry, event: ev.TrainerExited) -> RunState:
    state = _with_newest_trainer(state, event.attempt, exited=event, exited_at=entry.at)
    return replace(state, restarts_used=state.restarts_used + 1)


def _attempt_drained(state: RunState, entry: Entry, event: ev.AttemptDrained) -> RunState:
    attempt = state.attempts[event.attempt]
    cause = (
        Cause.INTERRUPTED if attempt.notice is not None else Cause.STOPPED if state.stop_requested else Cause.REPLACED
    )
    final = None if event.final_commit is None else state.commit(event.final_commit)
    end = AttemptEnd(
        cause=cause,
        stopped_at=event.stopped_at,
        known_at=entry.at,
        last_step=None if final is None else final.event.step,
        detail=event.reason,
    )
    return _end_attempt(state, event.attempt, end)


def _attempt_ended(state: RunState, entry: Entry, event: ev.AttemptEnded) -> RunState:
    end = AttemptEnd(
        cause=event.cause,
        stopped_at=entry.at,
        known_at=entry.at,
        last_step=event.last_step,
        detail=event.detail,
        gave_up=event.cause not in WORTH_ANOTHER_TRY,
    )
    return _end_attempt(state, event.attempt, end)


def _run_completed(state: RunState, entry: Entry, event: ev.RunCompleted) -> RunState:
    end = AttemptEnd(cause=Cause.DONE, stopped_at=entry.at, known_at=entry.at, last_step=event.step)
    ended = _end_attempt(state, event.attempt, end)
    return _end_run(ended, "completed", entry, Cause.DONE, final_commit=event.final_commit)


_APPLY: dict[type, Callable[[RunState, Entry, Any], RunState]] = {
    ev.RunCreated: _created,
    ev.StopRequested: _stop_requested,
    ev.ResumeRequested: _resume_requested,
    ev.PruneRequested: _prune_requested,
    ev.LaunchIntended: _launch_intended,
    ev.LaunchRecorded: _launch_recorded,
    ev.LaunchClosed: _launch_closed,
    ev.DrainRequested: _drain_requested,
    ev.InstanceCondemned: _condemned,
    ev.InstanceGone: _gone,
    ev.RunStopped: _run_stopped,
    ev.RunFailed: _run_failed,
    ev.AttemptStarted: _attempt_started,
    ev.ResumedFrom: _resumed_from,
    ev.TrainingStarted: _training_started,
    ev.NoticeSeen: _notice_seen,
    ev.CheckpointCommitted: _committed,
    ev.CheckpointFailed: _save_failed,
    ev.CheckpointRetired: _retired,
    ev.EpochCompleted: _epoch_completed,
    ev.TrainerExited: _trainer_exited,
    ev.AttemptDrained: _attempt_drained,
    ev.AttemptEnded: _attempt_ended,
    ev.RunCompleted: _run_completed,
}
