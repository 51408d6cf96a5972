"""
Divides the time of a run into training and seven kinds of downtime (protocol 26). Pure: no clock, no I/O.

The result is a series of spans of time from `RunCreated` to the run's end. Each span starts where the previous span
ended. So there are no holes and no overlaps, even if the clocks of the machines that wrote the entries disagree.

While a trainer runs, its training since its last commit counts as productive. If the attempt ends without saving that
training, the same stretch of time is counted as rework instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spotrun.account.outcome import is_plain
from spotrun.run.state import Attempt, Commit, Launch, RunState, Trainer
from spotrun.units import bounded

NEVER = datetime.min.replace(tzinfo=UTC)
FOREVER = datetime.max.replace(tzinfo=UTC)


class Activity(StrEnum):
    """The activity of a run at a given time."""

    PRODUCTIVE = "productive"
    """Training whose result is kept."""
    DETECT = "detect"
    """Training has stopped, but the ledger does not record that yet."""
    WAIT = "wait"
    """
    Nothing trains, and no machine has been requested, because there is no capacity, because the runner waits before its
    next request, or because no runner runs.
    """
    BOOT = "boot"
    """From the request for the machine until spotrun's code runs on it."""
    SETUP = "setup"
    """From the start of spotrun's code on the machine until the agent there takes over the run."""
    RESTORE = "restore"
    """From the takeover, or from a trainer's exit, to the next trainer's first step."""
    REWORK = "rework"
    """Training whose result was lost, so that its steps are done again."""
    STALL = "stall"
    """Training waits for a checkpoint, or for room in the store to save one."""
    PAUSED = "paused"
    """From a stop or failure to the request to resume. Left out of every sum, because the run's clock is stopped."""


DOWNTIME = tuple(kind for kind in Activity if kind not in (Activity.PRODUCTIVE, Activity.PAUSED))


@dataclass(frozen=True, slots=True)
class Span:
    """
    A stretch of time with one activity. `attempt` is the attempt to which the time belongs. The boot and setup of an
    instance belong to the attempt that then begins on it.
    """

    kind: Activity
    start: datetime
    end: datetime
    attempt: int | None = None

    @property
    def duration(self) -> timedelta:
        return self.end - self.start


def timeline(state: RunState, now: datetime) -> tuple[Span, ...]:
    """
    Return the spans from `RunCreated` to the run's end (or to `now`). They are contiguous, in order, and never empty.

    Pauses are included as `Activity.PAUSED`; the caller has to leave them out of every sum.
    """
    line = _Line(state.created_at, account_end(state, now))
    survived = _survived(state)
    commits = _commits_by_trainer(state.commits)
    plain = is_plain(state)
    previous: Attempt | None = None
    for attempt in state.attempts.values():
        _draw_changeover(line, previous, state.asked_last(attempt), attempt)
        _draw_attempt(line, state, attempt, survived, commits, plain)
        previous = attempt
    _draw_rest(line, state, previous)
    return _with_pauses(line.spans, state)


def account_end(state: RunState, now: datetime) -> datetime:
    """Return the end of the time that is accounted for: the run's end or, while it has not ended, `now`."""
    return max(state.created_at, now if state.terminal is None else state.terminal.at)


def spent(spans: Iterable[Span]) -> dict[Activity, timedelta]:
    sums = dict.fromkeys(Activity, timedelta(0))
    for span in spans:
        sums[span.kind] += span.duration
    return sums


class _Line:
    """A series of spans. Each new span starts where the last one ended (`here`); no span goes past `end`."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.spans: list[Span] = []
        self.here = start
        self.end = end

    def draw(self, kind: Activity, until: datetime, attempt: int | None = None) -> None:
        until = min(until, self.end)
        if until <= self.here:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.kind, last.attempt) == (kind, attempt):
            self.spans[-1] = Span(kind, last.start, until, attempt)
        else:
            self.spans.append(Span(kind, self.here, until, attempt))
        self.here = until


# -- between attempts --------------------------------------------------------------------------------------------------


def _draw_changeover(line: _Line, previous: Attempt | None, launch: Launch, attempt: Attempt) -> None:
    """
    Add the time from the end of one attempt to the takeover by the next.

    If the next attempt's instance is a standby that was requested before the previous attempt ended, no wait is added.
    If the standby had also booted by then, no boot is added.
    """
    start = attempt.started_at
    known_at = NEVER if previous is None or previous.end is None else previous.end.known_at
    line.draw(Activity.DETECT, min(known_at, launch.intended_at, start))
    line.draw(Activity.WAIT, min(launch.intended_at, start))
    line.draw(Activity.BOOT, min(attempt.booted_at, start), attempt.number)
    line.draw(Activity.SETUP, start, attempt.number)


def _draw_rest(line: _Line, state: RunState, last: Attempt | None) -> None:
    """
    Add the time from the end of the last attempt to `line.end`: detecting that end, waiting, and booting a requested
    instance.
    """
    pending = state.pending_launch if state.terminal is None else None
    asked_at = line.end if pending is None else pending.intended_at
    known_at = NEVER if last is None or last.end is None else last.end.known_at
    line.draw(Activity.DETECT, min(known_at, asked_at))
    line.draw(Activity.WAIT, asked_at)
    line.draw(Activity.BOOT, line.end)


def _with_pauses(spans: list[Span], state: RunState) -> tuple[Span, ...]:
    for pause in state.pauses:
        spans = [piece for span in spans for piece in _cut_out(span, pause.since, pause.until)]
    return tuple(spans)


def _cut_out(span: Span, since: datetime, until: datetime) -> Iterable[Span]:
    first, last = max(span.start, since), min(span.end, until)
    if first >= last:
        return (span,)
    pieces = (
        Span(span.kind, span.start, first, span.attempt),
        Span(Activity.PAUSED, first, last),
        Span(span.kind, last, span.end, span.attempt),
    )
    return tuple(piece for piece in pieces if piece.start < piece.end)


# -- within an attempt -------------------------------------------------------------------------------------------------

TrainerKey = tuple[int, int]
"""
The number of an attempt, and the number of a trainer within that attempt (its incarnation). Together they identify one
trainer of a run.
"""


def _draw_attempt(
    line: _Line,
    state: RunState,
    attempt: Attempt,
    survived: Mapping[TrainerKey, datetime],
    commits: Mapping[TrainerKey, list[Commit]],
    plain: bool,
) -> None:
    """
    Add one attempt's time. `plain` is True if the job is a command that reports no steps. Then all time from the
    command's start counts as training.
    """
    over = _over_at(state, attempt, line.end)
    for index, trainer in enumerate(attempt.trainers):
        started_at = (trainer.began_at or trainer.resumed_at) if plain else trainer.started_at
        if started_at is None:
            continue
        following = attempt.trainers[index + 1].resumed_at if index + 1 < len(attempt.trainers) else over
        until = min(over, following if trainer.exited_at is None else trainer.exited_at)
        key = (attempt.number, trainer.incarnation)
        line.draw(Activity.RESTORE, min(started_at, over), attempt.number)
        stood_still = _stood_still_at(state, attempt, trainer, commits.get(key, []))
        _draw_training(line, attempt.number, until, survived[key], commits.get(key, []), stood_still)
    line.draw(Activity.RESTORE, over, attempt.number)


def _over_at(state: RunState, attempt: Attempt, end: datetime) -> datetime:
    """
    Return the time at which the attempt ended: when its machine ended, or when the ledger recorded the attempt's end,
    whichever was earlier.
    """
    if attempt.end is None:
        return end
    return min(attempt.end.known_at, state.still_from(attempt) or attempt.end.known_at)


def _stood_still_at(state: RunState, attempt: Attempt, trainer: Trainer, commits: list[Commit]) -> datetime:
    """
    Return the time after which the trainer no longer trained, and only saved its last checkpoint or waited for room to
    save it. Return FOREVER if the time is unknown.
    """
    last = state.terminal.final_commit if state.terminal is not None else None
    moments = [commit.event.taken_at for commit in commits if commit.event.final or commit.number == last]
    if attempt.end is not None and trainer.exited is None:
        moments.append(attempt.end.stopped_at)
    if attempt.refused_at is not None and trainer == attempt.trainers[-1]:
        moments.append(attempt.refused_at)
    return min(moments, default=FOREVER)


def _draw_training(
    line: _Line, attempt: int, until: datetime, survived: datetime, commits: list[Commit], stood_still: datetime
) -> None:
    for commit in commits:
        taken_at = min(commit.event.taken_at, until)
        if taken_at > line.here:
            stall = min(bounded(commit.event.stall_s), taken_at - line.here)
            _draw_until(line, Activity.PRODUCTIVE, taken_at - stall, survived, attempt)
            _draw_until(line, Activity.STALL, taken_at, survived, attempt)
    _draw_until(line, Activity.PRODUCTIVE, min(until, stood_still), survived, attempt)
    line.draw(Activity.STALL, until, attempt)


def _draw_until(line: _Line, kind: Activity, until: datetime, survived: datetime, attempt: int) -> None:
    """
    Add the time up to `until`. Training after `survived` was lost, so the part before `survived` counts as `kind`, and
    the part after it as rework.
    """
    line.draw(kind, min(until, survived), attempt)
    line.draw(Activity.REWORK, until, attempt)


def _commits_by_trainer(commits: Iterable[Commit]) -> dict[TrainerKey, list[Commit]]:
    grouped: dict[TrainerKey, list[Commit]] = {}
    for commit in commits:
        grouped.setdefault((commit.event.attempt, commit.event.incarnation), []).append(commit)
    return grouped


def _survived(state: RunState) -> dict[TrainerKey, datetime]:
    """
    Return, for each trainer, the time until which its training was kept: `FOREVER` if all of it was kept, `NEVER` if
    none was.

    When a trainer resumes from a commit, all training since that commit's snapshot is lost: the later steps of the
    trainer that took the snapshot, and all steps that other trainers made between the snapshot and the resume. If later
    trainers resumed from several commits, everything since the oldest of these is lost. A command that continues with
    the files that the previous command left (`in_place`) loses nothing.
    """
    trainers = [(attempt, trainer) for attempt in state.attempts.values() for trainer in attempt.trainers]
    order = {(attempt.number, trainer.incarnation): index for index, (attempt, trainer) in enumerate(trainers)}
    commits = {commit.number: commit for commit in state.commits}

    def position(commit: Commit | None) -> tuple[int, datetime]:
        if commit is None:
            return (-1, NEVER)
        return (order.get((commit.event.attempt, commit.event.incarnation), -1), commit.event.taken_at)

    kept = (len(trainers), FOREVER)
    if trainers and _will_be_resumed(state, *trainers[-1]):
        kept = position(_newest_durable(state))
    survived: dict[TrainerKey, datetime] = {}
    for index, (attempt, trainer) in reversed(list(enumerate(trainers))):
        key = (attempt.number, trainer.incarnation)
        survived[key] = kept[1] if kept[0] == index else FOREVER if kept[0] > index else NEVER
        if trainer.in_place:
            continue
        kept = min(kept, position(None if trainer.commit is None else commits[trainer.commit]))
    return survived


def _will_be_resumed(state: RunState, attempt: Attempt, trainer: Trainer) -> bool:
    """
    Return True if the newest trainer has ended without completing the run. In this case, its uncommitted steps are
    lost, because the next trainer has to resume from a commit.
    """
    completed = state.terminal is not None and state.terminal.outcome == "completed"
    return not completed and (attempt.end is not None or trainer.exited is not None)


def _newest_durable(state: RunState) -> Commit | None:
    return next((commit for commit in reversed(state.commits) if not commit.cut_off and not commit.event.suspect), None)
