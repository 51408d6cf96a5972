"""
Takes snapshots of a training: decides when one is due, collects the state, and writes it into an arena.

A snapshot is the framework's own checkpoint plus what that checkpoint lacks. Missing weights of the model are in the
additional entry `weights.BESIDE` (weights.py), and all other missing state is in the additional entry "spotrun".
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import NoReturn

from spotrun.checkpoint.objects import InitialObjects
from spotrun.checkpoint.snapshot import ImagePlan, plan_image
from spotrun.checkpoint.staging import CopyTask, Staged
from spotrun.checkpoint.tree import Unsavable
from spotrun.trainer_link import SnapshotTaken
from spotrun.training import machine, module_state, optimizer_parts, tensors, unsupported, weights
from spotrun.training.counting import Counting
from spotrun.training.data.training_data import TrainingData
from spotrun.training.ddp_buckets import DdpBuckets, NamesMoved
from spotrun.training.elastic import refusals as elastic
from spotrun.training.framework import OPTIMIZERS, SCHEDULERS, STEP, WEIGHTS, Framework, State
from spotrun.training.late_parts import LateParts
from spotrun.training.log_files import every_kind
from spotrun.training.overlap import Overlap, Watch
from spotrun.training.place import Boundary
from spotrun.training.progress import finite_metrics
from spotrun.training.python_state.state import PythonState
from spotrun.training.ranks import Ranks
from spotrun.training.session import Agent
from spotrun.training.untracked_report import UntrackedReporter
from spotrun.training.work_folder.freezing import Frozen
from spotrun.training.work_folder.work_files import WorkFiles
from spotrun.version import __version__

LAST_ARENA_WAIT_S = 600.0
"""Maximum system time in seconds that the last snapshot waits for a free arena: an upload may have to finish first."""

KEY = "spotrun"
LENIENT = ("hyper_parameters", "datamodule_hyper_parameters")


@dataclass(frozen=True)
class Dump:
    """
    The state of the training at a boundary, and the files in its work folder at that moment. `files` is None if
    checkpoints include no files.
    """

    state: State
    files: Frozen | None

    def again(self) -> Dump:
        """
        Return a copy for one more snapshot of the same state. Its `files` are duplicated, because each snapshot closes
        its own.
        """
        return Dump(self.state, None if self.files is None else self.files.duplicate())

    def close(self) -> None:
        if self.files is not None:
            self.files.close()


@dataclass(frozen=True)
class _Pending:
    """A snapshot that has not been reported to the agent yet."""

    taken: SnapshotTaken
    files: Frozen | None
    staged: Staged
    watch: Watch
    finite: CopyTask[bool]
    stall_s: float
    step_before: int

    def begin(self) -> None:
        """Make the copying thread first copy the remaining tensors, and then check whether all numbers are finite."""
        self.staged.begin()
        self.finite.begin()

    def done(self) -> bool:
        """
        Return True if the snapshot is complete and can be reported now. Always return False for a snapshot with probes
        (see `overlap.Watch`), whose copies have to be compared with the tensors first. `settle` makes this comparison
        just before the next optimizer step, and then reports the snapshot.
        """
        return self.staged.done() and self.finite.done() and not self.watch.probes


class _Decision(IntEnum):
    NOTHING = 0
    SNAPSHOT = 1
    DRAIN = 2


class Snapshots:
    """Takes a snapshot every `every_steps` optimizer steps, and whenever the agent requests one."""

    def __init__(
        self,
        framework: Framework,
        agent: Agent,
        ranks: Ranks,
        data: TrainingData,
        python: PythonState,
        untracked: UntrackedReporter,
        files: WorkFiles,
        late: LateParts,
        counting: Counting,
        *,
        seed: int,
        every_steps: int | None,
    ) -> None:
        self._framework = framework
        self._agent = agent
        self._ranks = ranks
        self._data = data
        self._python = python
        self._untracked = untracked
        self._files = files
        self._late = late
        self._counting = counting
        self._seed = seed
        self._every_steps = every_steps
        self._step = framework.step
        self._overlap = Overlap(framework)
        self._buckets = DdpBuckets(framework.module, ranks.size)
        self._pending: _Pending | None = None
        self._standing = InitialObjects((OPTIMIZERS, SCHEDULERS), self._saved_elsewhere)

    def begin(self, resumed: State | None) -> None:
        """
        Prepare for snapshots, before the first step. `resumed` is the "spotrun" entry of the resumed snapshot; None for
        a fresh start.
        """
        try:
            self._buckets.begin(() if resumed is None else resumed.get("gradients", ()))
        except NamesMoved as moved:
            unsupported.reject(self._agent, str(moved), "install torch 2.13.0, or a newer spotrun")

    def resumed_at(self, step: int) -> None:
        """
        Record that the training resumed from a snapshot of `step`, so that no second snapshot of the same step is
        taken.
        """
        self._step = step

    def wanted(self) -> bool:
        """
        Return whether a snapshot is due: the agent has requested one, or `every_steps` steps have passed since the last
        one. On ranks other than 0, the result is always False.
        """
        if self._agent.closed.is_set():
            return False
        return self._agent.drain_wanted.is_set() or self._agent.snapshot_wanted.is_set() or self._interval_is_over()

    def _interval_is_over(self) -> bool:
        every = self._every_steps
        return every is not None and self._framework.step // every > self._step // every

    def take_if_wanted(self, place: Boundary, dump: Dump | None = None) -> None:
        """
        Take a snapshot if one is due and an arena is free. If no arena is free, the snapshot stays due. If the agent
        has requested a drain, wait for an arena, take the final snapshot, and never return. Rank 0 decides, and all
        ranks do the same.
        """
        match self._ranks.agree(self._decide()):
            case _Decision.DRAIN:
                self.take(place, dump, final=True, wait_s=LAST_ARENA_WAIT_S)
                _stand_still()
            case _Decision.SNAPSHOT:
                self.take(place, dump)

    def _decide(self) -> int:
        if not self.wanted():
            return _Decision.NOTHING
        if self._agent.drain_wanted.is_set():
            return _Decision.DRAIN
        return _Decision.SNAPSHOT if self._agent.any_room() else _Decision.NOTHING

    def take(self, place: Boundary, dump: Dump | None = None, *, final: bool = False, wait_s: float = 0.0) -> None:
        """
        Take a snapshot now, unless no arena becomes free within `wait_s`.

        If the next step belongs to the same epoch, part of the snapshot may be copied while that step is computed;
        `settle` waits for that copy.
        """
        self.settle()
        started = time.perf_counter()
        dump = dump or self.dump(place, final=final)
        plan = self.plan(dump.state)
        waiting = time.perf_counter()
        if not self._agent.room_for(plan, wait_s):
            dump.close()
            return
        waited_s = time.perf_counter() - waiting
        self._agent.snapshot_wanted.clear()
        before, self._step = self._step, self._framework.step
        later = self._overlap.pieces(plan) if place.overlaps and not final else []
        watch = self._overlap.watch(later)
        parameters = list(self._framework.module.parameters())
        finite = self._agent.aside(partial(tensors.are_finite, self._framework.loss, parameters), parameters)
        overlapped = bool(later) and not watch.probes
        if not overlapped:
            finite.begin()  # another thread checks the numbers while this thread copies
        staged = self._agent.stage(plan, later, overlapped=overlapped)
        stall_s = time.perf_counter() - started - waited_s
        taken = self._told(staged.arena, plan, place, dump.files, final=final)
        self._pending = _Pending(taken, dump.files, staged, watch, finite, stall_s, step_before=before)
        if not later:
            self.settle()

    def batch_begins(self) -> None:
        """Start copying the remaining part of a snapshot, in parallel with the model's computation."""
        if self._pending is not None:
            self._pending.begin()

    def _told(
        self, arena: int, plan: ImagePlan, place: Boundary, files: Frozen | None, *, final: bool
    ) -> SnapshotTaken:
        """
        Return the message that tells the agent about a snapshot. Its `stall_s` and `finite` are not known yet; `settle`
        sets them.
        """
        return SnapshotTaken(
            arena=arena,
            size_bytes=plan.size_bytes,
            epoch=self._counting.epoch(place.epoch),
            batch=place.batch,
            step=self._counting.step(self._framework.step),
            stall_s=0.0,
            finite=True,
            final=final,
            epoch_ended=place.epoch_ended,
            metrics=finite_metrics(self._framework),
            files=None if files is None else files.number,
            fit=self._counting.fit,
        )

    def settle(self, *, wait: bool = True) -> None:
        """
        Finish the newest snapshot, and report it to the agent. Without `wait`, do nothing if it is not complete yet.

        Call this with `wait` before the next step of an optimizer. If the script has written to the tensors while they
        were copied, or an error has ended the copy, the snapshot is discarded, and another one is requested.
        """
        coming = self._pending
        if coming is None or not (wait or coming.done()):
            return
        self._pending = None
        started = time.perf_counter()
        try:
            coming.staged.wait()
            finite = coming.finite.result()
        except BaseException:  # the script may go on, for example after torch.OutOfMemoryError
            self._discard(coming)
            raise
        if coming.watch.sees_writes(coming.staged):
            self._overlap.give_up()
            self._discard(coming)
            return
        if coming.files is not None:
            self._files.send(coming.files)
        stall_s = coming.stall_s + time.perf_counter() - started
        self._agent.tell(replace(coming.taken, stall_s=stall_s, finite=finite))

    def _discard(self, snapshot: _Pending) -> None:
        """Free the arena and the files of a snapshot that is not reported, and request another snapshot."""
        self._step = snapshot.step_before
        self._agent.snapshot_wanted.set()
        self._agent.unstage(snapshot.staged)
        if snapshot.files is not None:
            snapshot.files.close()

    def plan(self, state: State) -> ImagePlan:
        """
        Plan the layout of `state` in an arena.

        Raises:
            TrainingUnsupported: the state contains a value that checkpoints cannot contain.
        """
        meta = state[KEY]["place"] | {
            "step": state[STEP],
            "spotrun": __version__,
            "framework": f"{self._framework.name} {self._framework.version}",
            "work": self._files.of_checkpoints,
            **machine.facts(),
        }
        try:
            return plan_image(state, meta, lenient=LENIENT, standing=self._standing)
        except Unsavable as problem:
            self._reject(problem)

    def _reject(self, problem: Unsavable) -> NoReturn:
        unsupported.reject(self._agent, f"the state holds {problem}", f"leave {problem.where} out of the saved state")

    def dump(self, place: Boundary, *, final: bool = False) -> Dump:
        """Flush the loggers and the script's open files, and return the current state and files."""
        return Dump(self.state(place), self._files.freeze(final=final))

    def state(self, place: Boundary) -> State:
        """
        Return all state on which the rest of the training depends. Report each value that has changed but cannot be
        saved. Tensors are not copied.

        Raises:
            TrainingUnsupported: the model has changed in a way that a resume could not rebuild; or a value that has
                changed cannot be saved, and the job requires exact resumes.
        """
        framework, orders = self._framework, self._buckets.dump()
        state = framework.dump()
        beside = weights.beside(framework.module, state.get(WEIGHTS), framework.base)
        if not place.finished and (misfit := self._late.misfit(beside["modules"])):
            reason = f"a resume could not make the model as it is now, because the training changed it: {misfit}"
            unsupported.reject(self._agent, reason, framework.way_out)
        state[weights.BESIDE] = beside
        state[KEY] = {
            "place": place.to_dict(),
            "seed": self._seed,
            **framework.dump_rest(),
            "optimizers": optimizer_parts.described(framework.optimizers, framework.module),
            **every_kind.dump(framework.loggers),
            "ranks": self._of_all_ranks(place),
        }
        if orders:
            state[KEY]["gradients"] = orders
        if self._ranks.elastic is not None:
            state[KEY][elastic.KEY] = self._ranks.elastic.total
        lost = [*self._python.news(), *self._data.news(), *framework.lost()]
        self._untracked.say(lost, self._counting.step(framework.step))
        if odd := optimizer_parts.by_name(framework.optimizers, framework.module):
            state[optimizer_parts.BY_NAME] = odd
        state[OPTIMIZERS] = state.pop(OPTIMIZERS)  # at the end, because a resume needs it last
        return state

    def _saved_elsewhere(self, value: object) -> bool:
        framework = self._framework
        return any(value is each for each in (*framework.optimizers, *framework.module.modules()))

    def _of_all_ranks(self, place: Boundary) -> list[State]:
        own = self._own(place)
        if self._ranks.elastic is not None:  # the other ranks have the same state
            return [own]
        try:
            return self._ranks.gather_states(own)
        except Unsavable as problem:
            self._reject(problem)

    def _own(self, place: Boundary) -> State:
        """Return the part of the state that may differ between ranks."""
        framework = self._framework
        return {
            "metrics": framework.dump_metrics(),
            "files": self._files.positions(),
            "data": self._data.state(place.epoch, place.batch, epoch_ended=place.epoch_ended),
            "module": module_state.dump(framework.module, gradients=framework.leaves_gradients),
            "python": self._python.dump(),
            "averages": {name: module_state.dump(average) for name, average in framework.averages.items()},
            # Buffers, such as running statistics, differ from rank to rank. Those of rank 0 are saved with the weights,
            # so only the other ranks save theirs here.
            "buffers": dict(framework.module.named_buffers()) if self._ranks.place else {},
        }


def _stand_still() -> NoReturn:
    """Block until the agent ends the process group, so that no further step is trained."""
    while True:
        threading.Event().wait(3600)
