"""Makes the decisions of an agent, without side effects. Each decision depends only on facts that the caller passes."""

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
A trainer counts as hung after a certain time without a sign of life. Before the first step and after fit(), this time
is multiplied by this factor, because a healthy script may be silent for long there: it may download data before fit(),
compile, fill caches and start workers in the first step, and export its result after fit().
"""

STANDBY_GRACE_S = 30.0
DRAIN_WINDOW_S = 120.0
STANDBY_MAX_S = 1800.0
LACKS_MODULE = "it would be missing again: install it in setup"
"""Why a trainer is not started again if the script could not import a module."""


class AgentAction(Enum):
    """The next action of an agent, as decided from the ledger."""

    START = auto()
    STAND_BY = auto()
    CONTINUE = auto()
    LEAVE = auto()


def standing(state: RunState, launch_number: int) -> AgentAction:
    """
    Return the agent's next action (protocol 12).

    An agent is allowed to start an attempt only if the run has not ended, the agent's launch has neither ended nor been
    condemned, and no newer launch has started an attempt.
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
    The news that the attempt which a standby will replace is about to end. From the notice or the request to drain, the
    attempt has `window_s` seconds to end. The standby received the news at `seen_s`, in monotonic run time.
    """

    seen_s: float
    window_s: float


def leaving_window_s(state: RunState) -> float | None:
    """
    Return how many seconds the current attempt has to save and hand over: after a notice, the time from the notice to
    its deadline; after a request to drain, DRAIN_WINDOW_S. Return None if the attempt has neither, and so is not about
    to end.
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

    The predecessor is the attempt that the standby will replace. The standby takes over as soon as an entry of the
    ledger, written by any process, says that the predecessor has ended. Without such an entry:

    - If the predecessor has to end (`leaving`), the standby waits for the time that the predecessor has for this, and
      for STANDBY_GRACE_S more, both on the standby's clock. Then it takes over.
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
Exit code that the agent records if a training failed and its command, instead of exiting, began another training. The
agent has to kill such a command, so the command's own exit code does not show the failure.
"""


def exit_cause(exit_code: int, *, hung: bool) -> Cause:
    """
    Return why a trainer failed (promise I7, failures.md R15, R17). Its instance is still running, so the cause is not
    the loss of the instance.

    SIGKILL counts as out of memory, because the kernel kills such a process with it. Exit code 137 counts too: a shell
    ends with it if its child was killed in this way.
    """
    if hung:
        return Cause.HANG
    return Cause.OUT_OF_MEMORY if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) else Cause.USER_ERROR


@dataclass(frozen=True)
class ExitWords:
    """
    A description of a trainer's end. `how` is, for example, its exit code. `reason` is quoted from the trainer's
    output; "" if the output gives no reason.
    """

    how: str
    reason: str = ""

    def __str__(self) -> str:
        """Return one line, like `ValueError: no such file (exit code 1)`."""
        return f"{self.reason} ({self.how})" if self.reason else self.how

    def but(self, why: str) -> str:
        """Return this description with `why` added: the reason why no other trainer is started."""
        return str(ExitWords(f"{self.how}; {why}", self.reason))


def exit_words(exit_code: int, cause: Cause, output: str) -> ExitWords:
    """Describe how and why a trainer ended. `output` is the last part of its output."""
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
    """Return the name of a signal, or its number if it has no name. Most real-time signals have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def why_give_up(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return the reason for not starting the trainer again after `exited`; None if the agent starts it again. `state`
    already includes `exited`.

    If the script has failed twice at the same step, it would fail there a third time (promise I7). If a module is
    missing, it would be missing again. The other reason is that the trainer was restarted `max_restarts` times already.
    """
    if lacks_module(exited):
        return LACKS_MODULE
    if exited.cause is Cause.USER_ERROR and _failed_before(state, exited):
        return f"it failed twice at step {exited.step}"
    if state.restarts_used > max_restarts:
        return f"restarted {count_of(max_restarts, 'time')} already" if max_restarts else "retry.max_restarts is 0"
    return None


def lacks_module(exited: TrainerExited) -> bool:
    return exited.cause is Cause.USER_ERROR and exited.detail.startswith("ModuleNotFoundError: ")


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
    Return True if the agent should try to take a final snapshot, and to make it durable in the remaining `left_s`
    seconds.

    `save_s` is the measured duration of a save; None if no save was measured. If an earlier snapshot is being uploaded
    (`uploading`), that upload would have to be cancelled. This is worth it only if a save fits into `left_s`.

    If nothing is being uploaded, trying costs nothing, so the agent always tries. The final save can be many times as
    fast as the measured saves, which ran at low priority to leave the processor to the training.
    """
    return not uploading or save_s is None or save_s <= left_s


def hang_limit_s(step_s: float | None, hang_after: timedelta, floor_s: float, *, training: bool) -> float:
    """
    Return the seconds of run time without a sign of life after which a trainer counts as hung (failures.md R13):

        max(10 median steps, policy.hang_after, floor)

    Before the first progress and after fit(), the limit is three times as long. `floor_s` is 30 s of system time,
    converted to run time, because a higher `time_scale` does not make the machine faster.
    """
    limit_s = max(HANG_STEPS * (step_s or 0.0), hang_after.total_seconds(), floor_s)
    return limit_s if training else HANG_OUTSIDE_FACTOR * limit_s


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """
    The facts by which the agent decides whether a snapshot is due. Times are seconds of run time.

    `since_commit_s` is the age of the run's newest commit; None if the run has none. `since_snapshot_s` is the age of
    this trainer's newest snapshot; None if it has taken none. `interval_s` is the time between two snapshots; None if
    the trainer counts steps and decides by itself when to take one.
    """

    since_commit_s: float | None
    since_snapshot_s: float | None
    interval_s: float | None
    epoch_ended: bool = False
    rebalance: bool = False


def snapshot_due(facts: SnapshotFacts, gap_s: float) -> Why | None:
    """
    Return the reason for taking a snapshot now; None if no snapshot is due. Within `gap_s` seconds after the newest
    commit, no snapshot is due. After that time, a trainer's first snapshot is due immediately, to prove early that
    saving works.
    """
    if facts.since_commit_s is not None and facts.since_commit_s < gap_s:
        return None
    if facts.rebalance:
        return "rebalance"
    if facts.since_snapshot_s is None:
        return "interval"
    if facts.epoch_ended:
        return "epoch"
    if facts.interval_s is not None and facts.since_snapshot_s >= facts.interval_s:
        return "interval"
    return None


class HeldSnapshot(NamedTuple):
    """
    A snapshot whose upload has to wait, because there is a minimum time between two commits. The upload may begin in
    `left_s` seconds.

    The training has taken `steps` steps since this snapshot. A step takes `step_s` seconds. `every_steps` is the number
    of steps between two snapshots; None if snapshots are taken at intervals of time. The training has reported nothing
    for the last `silent_s` seconds.
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
    Return True if the snapshot that waits for its upload should be dropped, so that the training can take a newer
    snapshot instead. This is so if the next snapshot is due, and the waiting snapshot's upload may begin only about one
    step later. (A validation may take longer than a step, so this is an estimate.)

    If the training has been silent for too long, the snapshot is kept, because the training may never finish another
    step. `turn_s` is the number of seconds between two calls of this function.
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
    """The choice of the files with which a command is started again."""

    AS_IT_STANDS = auto()
    """The files that the previous command left on this instance, unchanged."""
    NEWEST = auto()
    ONE_BEFORE = auto()


def failures_in_a_row(state: RunState) -> int:
    """
    Return how many times the command itself has failed (`Cause.USER_ERROR`) since the run's newest checkpoint was made.
    Failures before the user last resumed the run do not count.
    """
    trainers = [(attempt.number, each) for attempt in state.attempts.values() for each in attempt.trainers]
    order = {(attempt, each.incarnation): at for at, (attempt, each) in enumerate(trainers)}
    made = [order.get((commit.event.attempt, commit.event.incarnation), 0) for commit in state.commits]
    exits = [(each.exited, each.exited_at) for _, each in trainers[max(made, default=0) :]]
    failed = [at for exited, at in exits if exited is not None and exited.cause is Cause.USER_ERROR]
    return sum(at is not None and at >= state.opened_at for at in failed)


def beginning_after(exited: TrainerExited, failures: int, *, alone: bool) -> StateChoice:
    """
    Return the files from which the command is started next, after it has `exited` on this instance. `failures` is how
    often it has failed since the newest checkpoint. `alone` is True if the run has only one instance, and False in a
    gang.

    After its first failure, the command continues with the files that it left. After the second failure, it starts from
    the newest checkpoint, and after more failures, from the checkpoint before that.

    Even after its first failure, it starts from the newest checkpoint in two cases: if it was killed, because it may
    have left half-written files; and in a gang, because all members have to start from the same commit.
    """
    if failures > 2:
        return StateChoice.ONE_BEFORE
    by_itself = alone and exited.cause is Cause.USER_ERROR and failures < 2
    return StateChoice.AS_IT_STANDS if by_itself else StateChoice.NEWEST


def why_give_up_command(state: RunState, exited: TrainerExited, max_restarts: int) -> str | None:
    """
    Return the reason for not starting the command again after `exited`; None if it is started again. This function is
    for commands whose state spotrun saves. For all other trainers, use `why_give_up`.

    A command reports no steps. If it fails twice without a checkpoint in between, the agent assumes that it would fail
    again if it started from the same files. So it is started again from the newest checkpoint, and then from the
    checkpoint before that.
    """
    if lacks_module(exited):
        return LACKS_MODULE
    failures, kept = failures_in_a_row(state), len(state.restore_candidates())
    if exited.cause is Cause.USER_ERROR and failures > min(kept, 2) + 1:
        return f"it failed {count_of(failures, 'time')} without a checkpoint in between"
    if state.restarts_used > max_restarts:
        return f"restarted {count_of(max_restarts, 'time')} already" if max_restarts else "retry.max_restarts is 0"
    return None


def leaving_s(state: RunState, commit_s: float | None) -> float | None:
    """
    Return how many seconds a command needs from SIGTERM until its state is durable: the longest time that a command of
    this run took to end, plus the duration of a save. The duration of a save is `commit_s`, measured in this attempt.
    If `commit_s` is None, it is the longest of the run's last five saves. Return None if no end or no save was
    measured.
    """
    commits = [commit.event for commit in state.commits if not commit.event.has_image]
    ends = [event.stall_s for event in commits if event.final and event.stall_s > 0]
    saves = [event.durable_s for event in commits[-5:]] if commit_s is None else [commit_s]
    return max(ends) + max(saves) if ends and saves else None


def is_restless(since_s: float, interval_s: float) -> bool:
    """
    Return True if the agent should report to the user that a command's state never comes to rest. A checkpoint has been
    due for `since_s` seconds, but could not be made because the state kept changing.
    """
    return since_s >= RESTLESS_INTERVALS * interval_s
