"""
Trains a job once on the local cloud for `spotrun verify`, with a SIGKILL at each planned step. Such a training is
called a rehearsal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from spotrun.autoload import SEED_VARIABLE, STARTED_VARIABLE
from spotrun.clock import ScaledClock
from spotrun.errors import RunEnded, SpotrunError
from spotrun.exactness.folders import Folder
from spotrun.exactness.trace import Trace
from spotrun.exactness.trace_file import FILE_VARIABLE, HOLD_VARIABLE, INSTANCES_VARIABLE, TraceFile, read_ranks
from spotrun.folder.keys import OwnersKey
from spotrun.folder.ledger import Ledger, first_object
from spotrun.folder.work_files import remembered, survey
from spotrun.run.events import Uncarried
from spotrun.run.fold import begin
from spotrun.run.reasons import in_one_line
from spotrun.run.state import RunState
from spotrun.runner.creation import prepare_run
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from spotrun.spec.model import RunSpec
from spotrun.spec.patterns import chooser
from spotrun.store.opening import open_store
from spotrun.units import count_of, format_duration
from spotrun.verify.kills import PlannedKill
from spotrun.verify.sandbox import Sandbox, environment, market_of

LOOK_EVERY_S = 0.1
"""Seconds of system time between two checks of the run and its trace."""
SEED = "1"
STARTED = "2025-01-01T12:00:00+00:00"
"""
The start time that is given to each training. A script may use the start time, so both trainings have to get the same
one. (In a real run, all attempts get the same start time too.)
"""
LEFT_OUT = "checkpoint.files.exclude names it"


class RehearsalProgress(msgspec.Struct, frozen=True, kw_only=True):
    """
    Progress of a rehearsal. `step` is None for a command. `held_up` is the runner's reason if nothing trains at
    present.
    """

    name: str
    step: int | None
    kills: int
    kills_planned: int
    elapsed_s: float
    held_up: str | None = None


Watch = Callable[[RehearsalProgress], None]


class RehearsalResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result of a completed training: each rank's trace, and the files that the training left behind.

    `refused` contains the files that checkpoints do not include, each with the reason. `not_carried` names state of the
    script that changed during the training, but that checkpoints do not contain.
    """

    ranks: dict[int, Trace]
    work: Folder
    refused: dict[str, str]
    not_carried: tuple[Uncarried, ...]
    kills: tuple[PlannedKill, ...]
    duration_s: float
    state: RunState

    @property
    def has_trace(self) -> bool:
        """True if a training by a Trainer or a Loop has completed."""
        return bool(self.trace.ended)

    @property
    def trace(self) -> Trace:
        return self.ranks[0]


class Rehearsal:
    """`worlds` are the numbers of accelerators of the first instance, of the one after the first kill, and so on."""

    def __init__(
        self,
        sandbox: Sandbox,
        spec: RunSpec,
        name: str,
        plan: Sequence[PlannedKill] = (),
        worlds: Sequence[int] = (),
    ) -> None:
        self._sandbox, self._spec = sandbox, spec
        self._name = name
        self._plan = plan
        self._worlds = worlds
        self._counts_steps = not spec.train.state
        self._kills: list[PlannedKill] = []
        self._instances = sandbox.instances
        self._excluded = spec.checkpoint.files.exclude
        self._path = sandbox.folder / f"{name}.trace"
        self._file = TraceFile(self._path)
        self._began_s = time.monotonic()
        self._uri = uri = prepare_run(spec, "verify-resume").create()
        store = open_store(uri)
        first = first_object(store)
        created = begin(first[0]).created
        clock = self._clock = ScaledClock(created.clock_epoch, created.time_scale)
        sign = OwnersKey(lambda: open_store(spec.checkpoint.uri), created.uid, created.public_key)
        self._ledger = Ledger(store, created.uid, f"verify-resume:{os.getpid()}", clock, first=first, sign=sign)
        self._open_market()

    def _open_market(self) -> None:
        """Open the market for the current number of kills, with a runner that rents in it."""
        world = self._worlds[len(self._kills)] if self._worlds else None
        self._cloud = self._sandbox.cloud(self._clock, market_of(self._spec.local.boot.total_seconds(), world))
        store = open_store(self._uri)
        self._runner = Runner(self._ledger, store, self._cloud, self._clock, self._spec, self._uri)

    def run(self, within: timedelta, watch: Watch) -> RehearsalResult:
        """
        Train to the end, with the planned kills.

        Raises:
            RunEnded: the training failed.
            SpotrunError: the training took longer than `within` (system time).
        """
        variables = {
            FILE_VARIABLE: str(self._path),
            HOLD_VARIABLE: ",".join(str(kill.step) for kill in self._plan),
            INSTANCES_VARIABLE: str(self._instances),
            SEED_VARIABLE: SEED,
            STARTED_VARIABLE: STARTED,
        }
        with environment(variables):
            while not (tick := self._runner.tick()).done:
                trace = self._file.read()
                watch(self._progress(tick, trace))
                self._refuse_overtime(within, trace)
                if not self._kill_if_due(trace):
                    time.sleep(LOOK_EVERY_S)
        self._refuse_failure(tick)
        work, refused = self._files()
        state = self._ledger.refresh()
        return RehearsalResult(
            ranks=read_ranks(self._path),
            work=work,
            refused=refused,
            not_carried=tuple(Uncarried(place=one.place, what=one.what) for one in state.not_carried),
            kills=tuple(self._kills),
            duration_s=self._elapsed_s,
            state=state,
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _progress(self, tick: Tick, trace: Trace) -> RehearsalProgress:
        return RehearsalProgress(
            name=self._name,
            step=trace.steps if self._counts_steps else None,
            kills=len(self._kills),
            kills_planned=len(self._plan),
            elapsed_s=self._elapsed_s,
            held_up=tick.waiting_for,
        )

    # -- kills -------------------------------------------------------------------------------------------------------

    def _kill_if_due(self, trace: Trace) -> bool:
        """If the trainer waits at the step of the next kill, kill the trainer or its instance, and return True."""
        held_at = trace.held_at
        if len(held_at) <= len(self._kills):
            return False
        kill = self._plan[len(self._kills)]
        self._kills.append(kill)
        if kill.victim == "trainer":
            with contextlib.suppress(ProcessLookupError):
                os.kill(trace.begun[-1].pid, signal.SIGKILL)
        else:
            self._kill_instance()
        if self._worlds:
            self._open_market()
        return True

    def _kill_instance(self) -> None:
        if (current := self._ledger.refresh().current) is not None:
            self._cloud.interrupt(current.instance_id, notice=None)

    # -- failures --------------------------------------------------------------------------------------------

    def _refuse_overtime(self, within: timedelta, trace: Trace) -> None:
        if self._elapsed_s > within.total_seconds():
            raise SpotrunError(
                f"the {self._name} training was {_where(trace)} after {format_duration(within)}, and had not finished",
                hint="allow more time with --within, or train less: spotrun verify-resume train.py -- --epochs 1",
            )

    def _refuse_failure(self, tick: Tick) -> None:
        end = tick.state.terminal
        assert end is not None
        if end.outcome != "completed":
            raise failure(self._name, self._kills, end.outcome, in_one_line(end.detail))

    def _files(self) -> tuple[Folder, dict[str, str]]:
        """
        Return the files that the script has written. Also return each file that no checkpoint includes, with the
        reason.
        """
        last = list(self._ledger.refresh().attempts.values())[-1]
        disk = self._cloud.folder(last.instance_id)
        seen = survey(disk / "work", remembered(disk / "files-before.json"), lambda _: True)
        excluded, there = chooser(self._excluded), {*seen.files, *seen.links}
        refused = {path: why for path, why in seen.refused.items() if path not in seen.links}
        refused |= {path: LEFT_OUT for path in there if excluded(path)}
        return Folder(disk / "work", frozenset({*there, *seen.gone})), refused


def _where(trace: Trace) -> str:
    return f"at step {trace.steps}" if trace.begun else "under way"


def require_steps(rehearsed: RehearsalResult, name: str) -> None:
    """
    Check that the training left a trace with at least one step.

    Raises:
        SpotrunError: the training left no trace that could be compared, or trained no step.
    """
    if not rehearsed.has_trace:
        raise SpotrunError(
            f"the {name} training left no trace: no Trainer of Lightning or transformers and no Loop has finished",
            hint="verify-resume compares trainings by one of these, and commands that keep their state in files. If "
            "this is such a command, name its files by train: {state: [out/]}, or let it write into $SPOTRUN_STATE_DIR",
        )
    if not any(trace.steps for trace in rehearsed.ranks.values()):
        raise SpotrunError(
            f"the {name} training finished without a step, so no resume can be compared",
            hint="let it train: max_epochs, max_steps and limit_train_batches above 0, and data for at least a batch",
        )


def require_worlds(rehearsed: RehearsalResult, worlds: Sequence[int]) -> None:
    """
    Check that each trainer had as many processes as its instance had accelerators. `worlds` are these numbers.

    Raises:
        SpotrunError: the script does not start a process for each accelerator.
    """
    for begun, world in zip(rehearsed.trace.begun, worlds, strict=False):
        if begun.processes != world:
            raise SpotrunError(
                f"{count_of(begun.processes, 'process', 'processes')} trained on an instance with {world} accelerators",
                hint="start a process for each: run: torchrun --nproc-per-node $SPOTRUN_NUM_GPUS_PER_NODE train.py",
            )


def failure(name: str, kills: Sequence[PlannedKill], outcome: str, detail: str) -> RunEnded:
    """
    Return the error for a training that did not complete. `kills` are those that took place; none in an
    uninterrupted training. If spotrun refused the training, `detail` ends with advice, and the advice becomes the
    error's hint.
    """
    told, _, advice = detail.partition(ADVICE)
    after = f" after a kill (of the {kills[-1].victim}, at step {kills[-1].step:,})" if kills else ""
    if advice:
        return RunEnded(f"spotrun refuses the {name} training{after}: {told}", hint=advice)
    if not kills:
        return RunEnded(
            f"the {name} training {outcome}: {detail}",
            hint="resumes can be compared only if the script trains to its end; --keep keeps the logs",
        )
    return RunEnded(
        f"the uninterrupted training finished, but the interrupted one {outcome}{after}: {detail}",
        hint="check what only a restarted script finds, such as files from its first start; --keep keeps the logs",
    )


ADVICE = "; try: "
"""The separator between spotrun's message and the advice after it."""
