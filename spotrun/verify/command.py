"""
Runs a command once without kills and once with kills, and compares the files that the command leaves behind.

A file can differ because the command did not resume exactly, or because it is not deterministic. So if a file differs,
the command is run without kills a second time. If the two runs without kills differ too, the command is not
deterministic, and no comparison can show whether it resumes exactly.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import msgspec

from spotrun.account.timeline import Activity, timeline
from spotrun.errors import SpecInvalid
from spotrun.exactness.difference import Difference, Differences, gathered
from spotrun.exactness.same_everywhere import Clean, without_instances
from spotrun.exactness.scope import ComparedCount, NotCompared
from spotrun.exactness.trace import Trace
from spotrun.run.events import Uncarried
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.verify import job
from spotrun.verify.kills import KillPlan, PlannedKill
from spotrun.verify.left_files import LeftFiles
from spotrun.verify.rehearsal import Rehearsal, RehearsalResult, Watch
from spotrun.verify.sandbox import Sandbox

COMMITS = 20
"""
Number of commits that a run with kills should make. The interval between commits is the duration of the run without
kills divided by this number, but at least COMMIT_MIN_S.
"""
COMMIT_MIN_S = 1.0


class CommandVerification(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result for a command. `identical` is true if the command resumed from a checkpoint, files were compared, and no
    file differs between the run with kills and the run without kills. `deterministic` is false if a file differs
    between two runs without kills.

    `resumes_from_checkpoint` counts the kills after which the command continued from a checkpoint of its state.
    `redone_s` is the command's rework, in seconds of system time. `likely_cause` explains the first difference.
    """

    identical: bool
    deterministic: bool
    kills: int
    kills_planned: int
    resumes_from_checkpoint: int
    redone_s: float
    differences: Differences
    likely_cause: str | None
    compared: tuple[ComparedCount, ...]
    not_compared: tuple[NotCompared, ...]
    not_carried: tuple[Uncarried, ...]
    straight_s: float
    interrupted_s: float
    seed: int
    folder: str | None = None


def is_command(spec: RunSpec, straight: RehearsalResult) -> bool:
    """
    Return True if the job is a command whose files the verification has to compare. Return False if `straight`, the run
    without kills, has the trace of a training: its steps are compared instead.
    """
    if straight.has_trace:
        return False
    kept = any(path.startswith(f"{spec.train.state_dir}/") for path in straight.work.paths)
    return kept or bool(spec.train.state)


def verify_command(
    spec: RunSpec, plan: KillPlan, sandbox: Sandbox, watch: Watch, straight: RehearsalResult
) -> CommandVerification:
    """
    Run a command with kills, and compare its files with those of `straight`, the run without kills.

    Raises:
        SpecInvalid: `plan.at` names steps, which a command does not have.
        SpotrunError: a run failed, or lasted longer than `plan.within`.
    """
    if plan.at:
        raise SpecInvalid(
            "--at takes step numbers, and spotrun cannot count the steps of a command",
            hint="give the number of kills: --kills 3",
        )
    every_s = max(COMMIT_MIN_S, straight.duration_s / COMMITS)
    disturbed = job.interrupted_command(spec, sandbox.store, every_s)
    interrupted = CommandRehearsal(sandbox, disturbed, waits(plan, every_s)).run(plan.within, watch)
    clean = without_instances(str(sandbox.instances))
    again = None
    if any(LeftFiles(straight, interrupted, clean).differences()):
        again = Rehearsal(sandbox, job.straight(spec, sandbox.store), "second uninterrupted").run(plan.within, watch)
    return compare(spec, plan, straight, interrupted, again, clean)


def waits(plan: KillPlan, every_s: float) -> list[float]:
    """
    Return a random delay for each kill, in seconds of system time. Each delay begins at the commit before its kill.
    """
    rng = random.Random(plan.seed)
    return [rng.uniform(0, every_s) for _ in range(plan.kills)]


class CommandRehearsal(Rehearsal):
    """Runs a command, and kills its instance some time after a commit, so that each kill loses work."""

    def __init__(self, sandbox: Sandbox, spec: RunSpec, waits: Sequence[float]) -> None:
        super().__init__(sandbox, spec, "interrupted", [PlannedKill(step=0, victim="instance") for _ in waits])
        self._waits = waits
        self._killed_at_commit = -1
        self._due_s: float | None = None

    def _kill_if_due(self, trace: Trace) -> bool:
        number = len(self._kills)
        if number == len(self._plan):
            return False
        if self._due_s is None:
            newest = len(self._ledger.refresh().commits)
            if newest > max(self._killed_at_commit, 0):
                self._due_s = time.monotonic() + self._waits[number]
            return False
        if time.monotonic() < self._due_s:
            return False
        self._due_s = None
        self._killed_at_commit = len(self._ledger.refresh().commits)
        self._kills.append(self._plan[number])
        self._kill_instance()
        return True


def compare(
    spec: RunSpec,
    plan: KillPlan,
    straight: RehearsalResult,
    interrupted: RehearsalResult,
    again: RehearsalResult | None,
    clean: Clean,
) -> CommandVerification:
    """
    Compare the files that the two runs left behind: `straight` without kills, and `interrupted` with kills. `again` is
    a second run without kills; None if none was needed.
    """
    files = LeftFiles(straight, interrupted, clean, again)
    found = gathered(files.differences())
    resumes = resumed(interrupted.state)
    return CommandVerification(
        identical=found.first is None and bool(files.names) and resumes > 0,
        deterministic=not files.vary,
        kills=len(interrupted.kills),
        kills_planned=plan.kills,
        resumes_from_checkpoint=resumes,
        redone_s=redone_s(interrupted.state),
        differences=found,
        likely_cause=None if found.first is None else likely_cause(spec, found.first, resumes),
        compared=tuple(files.compared()),
        not_compared=tuple(files.not_compared()),
        not_carried=interrupted.not_carried,
        straight_s=straight.duration_s,
        interrupted_s=interrupted.duration_s,
        seed=plan.seed,
    )


def resumed(state: RunState) -> int:
    """Return the number of attempts that continued from a checkpoint."""
    begun = [attempt.trainers[0].commit for attempt in state.attempts.values() if attempt.trainers]
    return sum(commit is not None for commit in begun[1:])


def redone_s(state: RunState) -> float:
    assert state.terminal is not None
    spans = timeline(state, state.terminal.at)
    return sum(one.duration.total_seconds() for one in spans if one.kind is Activity.REWORK) / state.created.time_scale


def likely_cause(spec: RunSpec, found: Difference, resumes: int) -> str:
    name = str(found.name)
    if not any(name == path or name.startswith(f"{path}/") for path in spec.train.state_paths):
        return "the file is not part of the state, so no checkpoint has it: name it in train: {state: […]}"
    if not resumes:
        return (
            "the command began from the start after each kill, on another machine: its result depends on the clock, "
            "the process or the files on that machine"
        )
    return (
        "the command resumed from the files of its state, but not exactly: these files lack some of its counters or "
        "random states, or the command writes some content a second time"
    )
