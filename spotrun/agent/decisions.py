"""Decides what an agent does, from facts. Pure: nothing here reads a clock or touches a process."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import NamedTuple

from spotrun.run.events import Cause, TrainerExited
from spotrun.run.reasons import reason_in
from spotrun.run.state import RunState
from spotrun.trainer_link import Why
from spotrun.units import count_of

HANG_STEPS = 10
HANG_OUTSIDE_FACTOR = 3
"""
Factor outside of training. The first step may compile, fill caches and start workers; a script may download before and
export after.
"""

STANDBY_GRACE_S = 30.0
DRAIN_WINDOW_S = 120.0
STANDBY_MAX_S = 1800.0


class Standing(Enum):
    """The next act of an agent that has just read the ledger."""

    START = auto()
    STAND_BY = auto()
    CONTINUE = auto()
    LEAVE = auto()


def standing(state: RunState, launch_number: int) -> Standing:
    """
    Return the agent's next act (protocol 12).

    An agent starts only from a launch that is open, the newest not yet started, of a run that goes on.
    """
    launch = state.launches.get(launch_number)
    if launch is None or state.terminal is not None:
        return Standing.LEAVE
    if launch.attempt is not None:
        return Standing.CONTINUE if state.current_attempt == launch.attempt else Standing.LEAVE
    newest_started = max((other.number for other in state.launches.values() if other.attempt is not None), default=-1)
    if not launch.pending or launch.condemned is not None or launch_number < newest_started:
        return Standing.LEAVE
    return Standing.START if state.current is None else Standing.STAND_BY


def is_fenced(state: RunState, attempt: int) -> bool:
    """Return True if the run goes on elsewhere, or has ended."""
    return state.terminal is not None or state.current_attempt != attempt


@dataclass(frozen=True)
class Leaving:
    """
    Note of a standby: at `seen_s` (its own monotonic run time) it read that its predecessor goes within `window_s`.
    """

    seen_s: float
    window_s: float


def leaving_window_s(state: RunState) -> float | None:
    """
    Return the seconds from the notice to the current attempt's end, or DRAIN_WINDOW_S if it leaves for another reason;
    None if it stays.
    """
    current = state.current
    if current is None:
        return None
    if current.notice is not None and current.notice_at is not None and current.notice.deadline_at is not None:
        return max(0.0, (current.notice.deadline_at - current.notice_at).total_seconds())
    return DRAIN_WINDOW_S if current.leaving else None


def standby_verdict(
    state: RunState, launch: int, leaving: Leaving | None, began_s: float, now_s: float, max_s: float = STANDBY_MAX_S
) -> Standing:
    """
    Return the next act of a standby (protocol 13): START takes over, STAND_BY waits on.

    It takes over after the predecessor's last entry or the record of its end; else after the notice window + 30 s by
    its own clock. An attempt that was never told to go is never fenced: the standby leaves when its window is over.
    """
    now = standing(state, launch)
    if now is not Standing.STAND_BY:
        return now
    if leaving is not None:
        return Standing.START if now_s - leaving.seen_s >= leaving.window_s + STANDBY_GRACE_S else Standing.STAND_BY
    return Standing.LEAVE if now_s - began_s >= max_s else Standing.STAND_BY


FAILED = 1
"""Exit code of a trainer whose training has failed, and that was killed when its command began another one."""


def exit_cause(exit_code: int, *, hung: bool) -> Cause:
    """
    Return why a trainer ended without success while its instance lives (promise I7, failures.md R15, R17).

    A shell turns a child's SIGKILL into 137.
    """
    if hung:
        return Cause.HANG
    return Cause.OUT_OF_MEMORY if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) else Cause.USER_ERROR


@dataclass(frozen=True)
class ExitWords:
    """The way in which a trainer ended, and the reason in its own words; empty if it gave none."""

    how: str
    reason: str = ""

    def __str__(self) -> str:
        """Return one line: `ValueError: no such file (exit code 1)`."""
        return f"{self.reason} ({self.how})" if self.reason else self.how

    def but(self, why: str) -> str:
        """Return the same, and `why` no other trainer is started."""
        return str(ExitWords(f"{self.how}; {why}", self.reason))


def exit_words(exit_code: int, cause: Cause, output: str) -> ExitWords:
    """Return how a trainer ended. `output` is its last output."""
    if cause is Cause.HANG:
        return ExitWords("no sign of life; its stacks are in the log")
    if cause is Cause.OUT_OF_MEMORY:
        return ExitWords("killed: out of memory, or by hand")
    if exit_code == 0:
        return ExitWords("ended with exit code 0 before fit() was done")
    if exit_code < 0:
        return ExitWords(f"died of {_signal_name(-exit_code)}", reason_in(output, killed=True))
    return ExitWords(f"exit code {exit_code}", reason_in(output))


def _signal_name(number: int) -> str:
    """Return the name of a signal. Real-time signals have no names of their own."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def why_give_up(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return why no other trainer is started after `exited`, which `state` holds already; None to start one.

    A script that fails twice at the same step fails there a third time (promise I7).
    """
    if exited.cause is Cause.USER_ERROR and _failed_before(state, exited):
        return f"it failed twice at step {exited.step}"
    if state.restarts_used > max_restarts:
        return f"restarted {count_of(max_restarts, 'time')} already" if max_restarts else "retry.max_restarts is 0"
    return None


def _failed_before(state: RunState, exited: TrainerExited) -> bool:
    failures = [
        trainer.exited
        for attempt in state.attempts.values()
        for trainer in attempt.trainers
        if trainer.exited is not None and trainer.exited_at and trainer.exited_at >= state.opened_at
    ]
    others = [one for one in failures if (one.attempt, one.incarnation) != (exited.attempt, exited.incarnation)]
    return any(one.cause is Cause.USER_ERROR and one.step == exited.step for one in others)


def final_snapshot_fits(left_s: float, save_s: float | None, *, uploading: bool) -> bool:
    """
    Return True if the agent should try to make a final snapshot durable in the `left_s` that are left.

    `save_s` is the duration of a save, None if none was measured. While another snapshot is being uploaded, that one is
    given up for a final one only if the time is enough. Otherwise nothing is lost by trying: saves before the notice
    gave way to training, so the last one may be many times as fast.
    """
    return not uploading or save_s is None or save_s <= left_s


def hang_limit_s(step_s: float | None, hang_after: timedelta, floor_s: float, *, training: bool) -> float:
    """
    Return the run time without a sign of life after which a trainer counts as hung (failures.md R13).

        max(10 median steps, policy.hang_after, floor)      three times that before its first progress and after fit()

    `floor_s` is 30 s of system time: at any speed of run time, a busy machine is slow.
    """
    limit_s = max(HANG_STEPS * (step_s or 0.0), hang_after.total_seconds(), floor_s)
    return limit_s if training else HANG_OUTSIDE_FACTOR * limit_s


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """
    Facts that decide about the next snapshot; run time in seconds.

    `since_commit_s`: since the newest commit of the run, None where there is none. `since_snapshot_s`: since this
    trainer's newest snapshot, None before its first. `interval_s` None: the trainer counts steps by itself.
    """

    since_commit_s: float | None
    since_snapshot_s: float | None
    interval_s: float | None
    epoch_ended: bool = False
    rebalance: bool = False


def snapshot_due(facts: SnapshotFacts, gap_s: float) -> Why | None:
    """Return why to take a snapshot now, or None. A trainer's first one comes early: a fast proof that saving works."""
    if facts.since_commit_s is not None and facts.since_commit_s < gap_s:
        return None
    if facts.rebalance:
        return "rebalance"
    if facts.epoch_ended:
        return "epoch"
    if facts.since_snapshot_s is None:
        return "interval"
    if facts.interval_s is not None and facts.since_snapshot_s >= facts.interval_s:
        return "interval"
    return None


class Held(NamedTuple):
    """
    A snapshot that waits for `left_s`, as the newest commit is too young. Since it was taken the training has done
    `steps` steps, each of which takes `step_s`; it wants a snapshot each `every_steps`, None if it does not count them.
    It has been silent for `silent_s`.
    """

    left_s: float
    steps: int
    step_s: float | None
    every_steps: int | None
    trains: bool
    silent_s: float


LATE_STEPS = 3
"""Number of steps in whose time a silent training counts as standing still."""


def gives_way(held: Held, turn_s: float) -> bool:
    """
    Return True if a newer snapshot is to take the place of this one: it is due, and will be taken by the time at which
    a commit may be made again. A validation may take longer. The caller asks every `turn_s`. A training that stands
    still may never do its next step, and then this snapshot is its only remains.
    """
    if held.every_steps is None or held.step_s is None or not held.trains:
        return False
    if held.silent_s > LATE_STEPS * held.step_s + 2 * turn_s:
        return False
    return held.steps >= held.every_steps and held.left_s <= held.step_s + 2 * turn_s


# -- the state of a command --------------------------------------------------------------------------------------------

RESTLESS_INTERVALS = 3
"""Number of intervals between checkpoints after which the agent reports a state that is never at rest."""


class StateChoice(Enum):
    """The files with which a command begins."""

    AS_IT_STANDS = auto()
    """Those on the instance where the command before it has ended."""
    NEWEST = auto()
    ONE_BEFORE = auto()


def failures_in_a_row(state: RunState) -> int:
    """
    Return how often a command has failed by itself since the newest checkpoint was made, or since the run was opened.
    """
    trainers = [(attempt.number, each) for attempt in state.attempts.values() for each in attempt.trainers]
    order = {(attempt, each.incarnation): at for at, (attempt, each) in enumerate(trainers)}
    made = [order.get((commit.event.attempt, commit.event.incarnation), 0) for commit in state.commits]
    exits = [(each.exited, each.exited_at) for _, each in trainers[max(made, default=0) :]]
    failed = [at for exited, at in exits if exited is not None and exited.cause is Cause.USER_ERROR]
    return sum(at is not None and at >= state.opened_at for at in failed)


def beginning_after(exited: TrainerExited, failures: int, *, alone: bool) -> StateChoice:
    """
    Return with which files the next command begins, after one `exited` here and `failures` have failed in a row.

    A command that was killed has left its files in the middle of its work. In a gang all begin with one commit.
    """
    if failures > 2:
        return StateChoice.ONE_BEFORE
    by_itself = alone and exited.cause is Cause.USER_ERROR and failures < 2
    return StateChoice.AS_IT_STANDS if by_itself else StateChoice.NEWEST


def why_give_up_command(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return the same as `why_give_up` for a command whose state is kept. Two failures without a checkpoint between them
    are at the same step; with other files the next one may come further, if there are others.
    """
    failures, kept = failures_in_a_row(state), len(state.restore_candidates())
    if exited.cause is Cause.USER_ERROR and failures > min(kept, 2) + 1:
        return f"it failed {count_of(failures, 'time')} without a checkpoint in between"
    if state.restarts_used > max_restarts:
        return f"restarted {count_of(max_restarts, 'time')} already" if max_restarts else "retry.max_restarts is 0"
    return None


def leaving_s(state: RunState, commit_s: float | None) -> float | None:
    """
    Return the seconds from SIGTERM until the state of the command is durable: the longest time that one took to end,
    and the duration of a save, now or before. None if one of both was not measured.
    """
    commits = [commit.event for commit in state.commits if not commit.event.has_image]
    ends = [event.stall_s for event in commits if event.final and event.stall_s > 0]
    saves = [event.durable_s for event in commits[-5:]] if commit_s is None else [commit_s]
    return max(ends) + max(saves) if ends and saves else None


def is_restless(since_s: float, interval_s: float) -> bool:
    """
    Return True if the agent should report a state for which a checkpoint is due since `since_s`, and that changes all
    the time.
    """
    return since_s >= RESTLESS_INTERVALS * interval_s
