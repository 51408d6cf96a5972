"""Decides, from facts, what an agent does. Pure: this module reads no clock and touches no process."""

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
Factor by which the hang limit is longer before the first step and after fit(). The first step may compile, fill caches
and start workers. A script may download before fit() and export after it.
"""

STANDBY_GRACE_S = 30.0
DRAIN_WINDOW_S = 120.0
STANDBY_MAX_S = 1800.0


class AgentAction(Enum):
    """The next action of an agent, as decided from the ledger."""

    START = auto()
    STAND_BY = auto()
    CONTINUE = auto()
    LEAVE = auto()


def standing(state: RunState, launch_number: int) -> AgentAction:
    """
    Return the agent's next action (protocol 12).

    An agent may start an attempt only if the run has not ended, the agent's launch is open, and no newer launch has
    started an attempt.
    """
    launch = state.launches.get(launch_number)
    if launch is None or state.terminal is not None:
        return AgentAction.LEAVE
    if launch.attempt is not None:
        return AgentAction.CONTINUE if state.current_attempt == launch.attempt else AgentAction.LEAVE
    newest_started = max((other.number for other in state.launches.values() if other.attempt is not None), default=-1)
    if not launch.pending or launch.condemned is not None or launch_number < newest_started:
        return AgentAction.LEAVE
    return AgentAction.START if state.current is None else AgentAction.STAND_BY


def is_fenced(state: RunState, attempt: int) -> bool:
    """Return True if `attempt` is no longer the current attempt, or if the run has ended."""
    return state.terminal is not None or state.current_attempt != attempt


@dataclass(frozen=True)
class PredecessorLeaving:
    """
    A predecessor that has to leave within `window_s` seconds. The standby learned this at `seen_s`, in its monotonic
    run time.
    """

    seen_s: float
    window_s: float


def leaving_window_s(state: RunState) -> float | None:
    """
    Return the seconds that the current attempt has to leave. With a notice, they count from the notice to its deadline;
    without a notice, they are DRAIN_WINDOW_S. Return None if the attempt is not leaving.
    """
    current = state.current
    if current is None:
        return None
    if current.notice is not None and current.notice_at is not None and current.notice.deadline_at is not None:
        return max(0.0, (current.notice.deadline_at - current.notice_at).total_seconds())
    return DRAIN_WINDOW_S if current.leaving else None


def standby_verdict(
    state: RunState,
    launch: int,
    leaving: PredecessorLeaving | None,
    began_s: float,
    now_s: float,
    max_s: float = STANDBY_MAX_S,
) -> AgentAction:
    """
    Return the next action of a standby (protocol 13): START to take over, STAND_BY to keep waiting.

    The standby takes over as soon as the ledger has the predecessor's last entry, or an entry about the predecessor's
    end. Without such an entry:

    - If the predecessor was leaving, the standby takes over STANDBY_GRACE_S after the predecessor's window has ended,
      on the standby's clock.
    - Otherwise the standby never takes over, and leaves after `max_s`.
    """
    now = standing(state, launch)
    if now is not AgentAction.STAND_BY:
        return now
    if leaving is not None:
        return (
            AgentAction.START if now_s - leaving.seen_s >= leaving.window_s + STANDBY_GRACE_S else AgentAction.STAND_BY
        )
    return AgentAction.LEAVE if now_s - began_s >= max_s else AgentAction.STAND_BY


FAILED = 1
"""
Exit code that is recorded for a trainer that was killed because its command began another training after a failed one.
"""


def exit_cause(exit_code: int, *, hung: bool) -> Cause:
    """
    Return the cause for which a trainer failed while its instance kept running (promise I7, failures.md R15, R17).

    If SIGKILL ended a child of a shell, the shell reports exit code 137.
    """
    if hung:
        return Cause.HANG
    return Cause.OUT_OF_MEMORY if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) else Cause.USER_ERROR


@dataclass(frozen=True)
class ExitWords:
    """The way in which a trainer ended, and the reason in the trainer's words; "" if the trainer gave no reason."""

    how: str
    reason: str = ""

    def __str__(self) -> str:
        """Return one line: `ValueError: no such file (exit code 1)`."""
        return f"{self.reason} ({self.how})" if self.reason else self.how

    def but(self, why: str) -> str:
        """Return these words with `why` appended. `why` is the reason why no other trainer is started."""
        return str(ExitWords(f"{self.how}; {why}", self.reason))


def exit_words(exit_code: int, cause: Cause, output: str) -> ExitWords:
    """Return how and why a trainer ended. `output` is the last part of its output."""
    if cause is Cause.HANG:
        return ExitWords("no sign of life; its stacks are in the log")
    if cause is Cause.OUT_OF_MEMORY:
        return ExitWords("killed: out of memory, or by a person")
    if exit_code == 0:
        return ExitWords("ended with exit code 0 before fit() was done")
    if exit_code < 0:
        return ExitWords(f"died of {_signal_name(-exit_code)}", reason_in(output, killed=True))
    return ExitWords(f"exit code {exit_code}", reason_in(output))


def _signal_name(number: int) -> str:
    """Return the name of a signal. Each real-time signal gets its number, because it has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def why_give_up(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return the reason why no other trainer is started after `exited`; None if another one is started. `state` already
    includes `exited`.

    A script that fails twice at the same step will fail there a third time (promise I7).
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
    Return True if the agent should try to make a final snapshot durable in the remaining `left_s` seconds.

    `save_s` is the measured duration of a save; None if none was measured. If another upload is in flight, it is
    cancelled for the final snapshot only if a save fits into `left_s`. If nothing is being uploaded, a try costs
    nothing. It may succeed even if `left_s` is less than `save_s`: earlier saves yielded to training, so the last save
    may be many times as fast.
    """
    return not uploading or save_s is None or save_s <= left_s


def hang_limit_s(step_s: float | None, hang_after: timedelta, floor_s: float, *, training: bool) -> float:
    """
    Return the seconds of run time without a sign of life after which a trainer counts as hung (failures.md R13):

        max(10 median steps, policy.hang_after, floor)

    Before the first progress and after fit(), the limit is three times as long. `floor_s` stands for 30 s of system
    time: even if run time passes faster, a busy machine does not get faster.
    """
    limit_s = max(HANG_STEPS * (step_s or 0.0), hang_after.total_seconds(), floor_s)
    return limit_s if training else HANG_OUTSIDE_FACTOR * limit_s


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """
    The facts from which the agent decides on the next snapshot. Times are seconds of run time.

    `since_commit_s` is the age of the run's newest commit; None if the run has none. `since_snapshot_s` is the age of
    this trainer's newest snapshot; None if it has taken none. `interval_s` is the time between two snapshots; None if
    the trainer counts steps and decides when to take the next one.
    """

    since_commit_s: float | None
    since_snapshot_s: float | None
    interval_s: float | None
    epoch_ended: bool = False
    rebalance: bool = False


def snapshot_due(facts: SnapshotFacts, gap_s: float) -> Why | None:
    """
    Return the reason for taking a snapshot now; None if none is due. A trainer's first snapshot is early, to prove that
    saving works.
    """
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


class HeldSnapshot(NamedTuple):
    """
    A snapshot that must wait `left_s` seconds longer, because the newest commit is too recent.

    Since the snapshot, the training has done `steps` steps of `step_s` each, and has reported nothing for `silent_s`.
    The training takes a snapshot every `every_steps` steps; None if it does not count steps.
    """

    left_s: float
    steps: int
    step_s: float | None
    every_steps: int | None
    trains: bool
    silent_s: float


LATE_STEPS = 3
"""If a training reports nothing for the duration of this many steps, it counts as stopped."""


def gives_way(held: HeldSnapshot, turn_s: float) -> bool:
    """
    Return True if this snapshot is dropped in favour of a newer one. That is so if a newer snapshot is due and will be
    taken before the next commit is allowed (unless a validation takes longer).

    If the training has stopped, it may never do its next step, so the snapshot is kept. The caller calls this function
    every `turn_s` seconds.
    """
    if held.every_steps is None or held.step_s is None or not held.trains:
        return False
    if held.silent_s > LATE_STEPS * held.step_s + 2 * turn_s:
        return False
    return held.steps >= held.every_steps and held.left_s <= held.step_s + 2 * turn_s


# -- the state of a command --------------------------------------------------------------------------------------------

RESTLESS_INTERVALS = 3
"""
The agent reports that a command's state is never at rest if the state keeps changing for this many checkpoint
intervals, so that no consistent copy can be made.
"""


class StateChoice(Enum):
    """The files from which a command starts."""

    AS_IT_STANDS = auto()
    """The files that the previous command left on this instance, unchanged."""
    NEWEST = auto()
    ONE_BEFORE = auto()


def failures_in_a_row(state: RunState) -> int:
    """
    Return how many commands in a row have failed, not counting failures from outside. The count begins at the newest
    checkpoint, or when the run was opened.
    """
    trainers = [(attempt.number, each) for attempt in state.attempts.values() for each in attempt.trainers]
    order = {(attempt, each.incarnation): at for at, (attempt, each) in enumerate(trainers)}
    made = [order.get((commit.event.attempt, commit.event.incarnation), 0) for commit in state.commits]
    exits = [(each.exited, each.exited_at) for _, each in trainers[max(made, default=0) :]]
    failed = [at for exited, at in exits if exited is not None and exited.cause is Cause.USER_ERROR]
    return sum(at is not None and at >= state.opened_at for at in failed)


def beginning_after(exited: TrainerExited, failures: int, *, alone: bool) -> StateChoice:
    """
    Return the files from which the next command starts, after a command has `exited` on this instance and `failures`
    commands in a row have failed.

    If a command was killed, it may have left half-written files. In a gang, all members start from the same commit.
    """
    if failures > 2:
        return StateChoice.ONE_BEFORE
    by_itself = alone and exited.cause is Cause.USER_ERROR and failures < 2
    return StateChoice.AS_IT_STANDS if by_itself else StateChoice.NEWEST


def why_give_up_command(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return the reason why no other command is started after `exited`; None if another one is started. This applies to a
    command whose state is kept.

    Two failures without a checkpoint in between count as failures at the same step. However, if the run has other files
    to start from, the next command starts from them, and may get further than the command that failed.
    """
    failures, kept = failures_in_a_row(state), len(state.restore_candidates())
    if exited.cause is Cause.USER_ERROR and failures > min(kept, 2) + 1:
        return f"it failed {count_of(failures, 'time')} without a checkpoint in between"
    if state.restarts_used > max_restarts:
        return f"restarted {count_of(max_restarts, 'time')} already" if max_restarts else "retry.max_restarts is 0"
    return None


def leaving_s(state: RunState, commit_s: float | None) -> float | None:
    """
    Return the seconds from SIGTERM until the command's state is durable. This is the longest time that a command took
    to end, plus the duration of a save. The duration is that of a save in this attempt, or else in an earlier one.
    Return None if either was never measured.
    """
    commits = [commit.event for commit in state.commits if not commit.event.has_image]
    ends = [event.stall_s for event in commits if event.final and event.stall_s > 0]
    saves = [event.durable_s for event in commits[-5:]] if commit_s is None else [commit_s]
    return max(ends) + max(saves) if ends and saves else None


def is_restless(since_s: float, interval_s: float) -> bool:
    """
    Return True if the agent should report that the state never comes to rest: its checkpoint has been due for `since_s`
    seconds.
    """
    return since_s >= RESTLESS_INTERVALS * interval_s
