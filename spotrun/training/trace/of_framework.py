"""
Traces a training in any framework. Each time the framework calls one of the `Hooks`, the trace records what the
training's `Framework` object returns at that moment: the batch, the loss, the metrics, the weights.

A training is traced only if the environment names a trace file (trace_file.py). The environment may also list steps
after which `spotrun verify-resume` kills the training. A trainer that reaches such a step stops and waits for the kill.
The next trainer does not stop there again.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from spotrun.exactness.trace import (
    Begun,
    Ended,
    Evaluated,
    Improved,
    ObjectsRecorded,
    ProcessEnded,
    StoppedForKill,
    Trained,
    Validated,
)
from spotrun.exactness.trace_file import FILE_VARIABLE, HOLD_VARIABLE, TraceFile, path_of_rank
from spotrun.training.data.data_order import ExactOrder, order_of
from spotrun.training.framework import Framework
from spotrun.training.python_state.script import Script
from spotrun.training.trace.digests import digest, digests, generators, metrics
from spotrun.training.trace.outside_files import OutsideFiles
from spotrun.training.trace.places import Places

SLOW_STEPS = 40
"""
Number of steps that are slowed down, to `SLOW_STEP_S` seconds each, before each step at which the process stops to be
killed. This gives a checkpoint time to become durable before the kill.
"""
SLOW_STEP_S = 0.05
EARLY_BATCHES = 2
"""
The trace records all of the script's objects after each of the first `EARLY_BATCHES` batches, and once more at the end
of the first epoch. Only the first traced process of a training does this.
"""


class Holds:
    """
    The steps after which this process stops and waits to be killed. It does not stop at the steps in `held_at`, because
    an earlier process has stopped there. If `held_at` is None, it never stops.
    """

    def __init__(self, file: TraceFile, held_at: Collection[int] | None) -> None:
        wanted = {int(step) for step in os.environ.get(HOLD_VARIABLE, "").split(",") if step}
        self._steps = [] if held_at is None else sorted(wanted - set(held_at))
        self._file = file
        self._began_s = 0.0

    def batch_begins(self) -> None:
        self._began_s = time.monotonic()

    def reached(self, step: int) -> None:
        if not self._steps:
            return
        if step >= self._steps[0]:
            self._file.append(StoppedForKill(step=self._steps[0]))
            while True:
                threading.Event().wait(3600)
        if step >= self._steps[0] - SLOW_STEPS:
            time.sleep(max(0.0, self._began_s + SLOW_STEP_S - time.monotonic()))


class ProcessTrace:
    """
    The state that all traces in one process share: the trace file, and the epoch and step at the end of the last fit. A
    process can run several fits, and each has its own trace.
    """

    file: TraceFile

    def __init__(self) -> None:
        self.script = Script.of_this_process()
        self.fits = 0
        self.ended_at = 0, 0
        self._outside = OutsideFiles()
        self._leaves = False

    def open(self, rank: int | None) -> None:
        """Write to the trace file of `rank` from now on, or nowhere if it is None."""
        self.file = TraceFile(_path(rank) if rank is not None else Path(os.devnull))
        if not self._leaves:
            self._leaves = True
            atexit.register(self._leave)

    def evaluated(self, stage: str, known: Mapping[str, Any], predictions: str | None = None) -> None:
        """Record the result of a test or prediction outside the training. `predictions` is a digest."""
        self.file.append(Evaluated(pid=os.getpid(), stage=stage, metrics=metrics(known), predictions=predictions))

    def _leave(self) -> None:
        places = Places(self.script)
        places.modules()
        outside = self._outside.written()
        self.file.append(ProcessEnded(pid=os.getpid(), places=places.found, unread=places.unread, outside=outside))


@cache
def of_this_process() -> ProcessTrace:
    return ProcessTrace()


def _path(rank: int) -> Path:
    return path_of_rank(Path(os.environ[FILE_VARIABLE]), rank)


def traced(framework: Framework, *, elastic: bool = False) -> FrameworkTrace | None:
    """
    Return the trace of a fit that is about to start; None if the environment does not request a trace. Call this after
    the fit has loaded its state.

    In an elastic training, all ranks do the same, so only rank 0 writes its trace. But each rank writes what its
    virtual ranks train into the trace files of these, apart from that of virtual rank 0.
    """
    if FILE_VARIABLE not in os.environ:
        return None
    of_this_process().open(None if elastic and framework.rank else framework.rank)
    trace = FrameworkTrace(framework)
    trace.begins()
    return trace


class FrameworkTrace:
    """
    The trace of one fit.

    The trace counts epochs and steps across all fits of a process, but a framework may count from 0 in each fit. So the
    trace adds an offset to the framework's counts: its own counts at the end of the last fit, minus the framework's
    counts at the start of this fit. `counted` has the latter, as they were before a checkpoint was loaded.
    """

    def __init__(self, framework: Framework, counted: tuple[int, int] = (0, 0)) -> None:
        self._here = framework
        self.process = of_this_process()
        self.process.fits += 1
        self._ahead = tuple(ended - begun for ended, begun in zip(self.process.ended_at, counted, strict=True))
        self._file = self.process.file
        self._data = ""
        self._micro: dict[int, list[str]] = {}
        self._lr: tuple[tuple[str, ...], ...] = ()

    def begins(self) -> None:
        before = self._file.read()
        self._holds = Holds(self._file, before.held_at if self._here.rank == 0 else None)
        self._is_first_pass = not before.begun
        self._file.append(Begun(pid=os.getpid(), step=self._step, processes=self._here.ranks))

    @property
    def _step(self) -> int:
        return self._here.step + self._ahead[1]

    @property
    def _epoch(self) -> int:
        return self._here.epoch + self._ahead[0]

    def batch_begins(self, batch: Any) -> None:
        self._holds.batch_begins()
        self._data = digest(batch)
        self._micro.clear()
        self._lr = learning_rates(self._here.optimizers)

    def micro_batch_begins(self, virtual_rank: int, batch: Any) -> None:
        self._micro.setdefault(virtual_rank, []).append(digest(batch))

    def micro_batch_ends(self, virtual_rank: int) -> None:
        self._micro[virtual_rank].append(digest(list(generators().values())))

    def batch_ends(self) -> None:
        """
        Record a batch. Call this after the framework has counted the batch. The record includes the states of the
        random number generators, so call it before spotrun seeds them for the code that runs after the batch.
        """
        here, number = self._here, self._here.batch - 1
        order = self._order()
        trained = Trained(
            epoch=self._epoch,
            batch=number,
            step=self._step,
            samples=None if order is None else repr(order.indices(number)),
            data=digest(self._micro[0]) if 0 in self._micro else self._data,
            lr=self._lr,
            loss=exact_loss(here.loss),
            rng=digest(list(generators().values())),
        )
        self._file.append(trained)
        for virtual_rank in self._micro.keys() - {0}:
            of_it = replace(trained, samples=None, data=digest(self._micro[virtual_rank]), loss=None)
            TraceFile(_path(virtual_rank)).append(of_it)
        if self._epoch == 0 and number < EARLY_BATCHES:
            self.note(f"batch {number + 1}")
        self._holds.reached(self._step)

    def _order(self) -> ExactOrder | None:
        return next((found for one in self._here.loaders("train") if (found := order_of(one)) is not None), None)

    def validated(self) -> None:
        """Record the end of a validation, with all metrics logged so far, including those of the validation."""
        known = metrics(self._here.metrics())
        self._file.append(Validated(epoch=self._epoch, batch=self._here.batch - 1, step=self._step, metrics=known))

    def improved(self) -> None:
        self._file.append(Improved(step=self._step))

    def epoch_closes(self) -> None:
        self.validated()
        self.epoch_ends()

    def epoch_ends(self) -> None:
        if self._epoch == 0:
            self.note("the first epoch's end")

    def ended(self) -> None:
        """
        Record the end of training, including the states of the random number generators. So call this only after
        they have got the states with which the script continues after the training.
        """
        here, module = self._here, self._here.module
        self.process.ended_at = self._epoch, self._step
        shown = module.state_dict() | dict(module.named_parameters()) | dict(module.named_buffers())
        places = self._places()
        self._file.append(
            Ended(
                fit=self.process.fits,
                step=self._step,
                weights=digests(shown),
                optimizer=digests([optimizer.state_dict() for optimizer in here.optimizers]),
                rng=digests(generators()),
                metrics=metrics(here.metrics()),
                places=places.found,
                unread=places.unread,
            )
        )

    def note(self, moment: str) -> None:
        """
        Record all of the script's objects, with `moment` as the name of this point of the training. Only the first
        traced process records them, because later ones have resumed after a kill.
        """
        if self._is_first_pass:
            self._file.append(ObjectsRecorded(moment=moment, places=self._places().found))

    def _places(self) -> Places:
        here = self._here
        weights = (*here.module.parameters(), *here.module.buffers())
        stops = (*here.optimizers, *here.own_objects, *here.loaders("train"), *weights)
        places = Places(self.process.script, stops, here.own_attributes)
        self._add_all(places)
        return places

    def _add_all(self, places: Places) -> None:
        """
        Add all values of the script that verify-resume compares.

        Plain values in local variables of functions are left out, because they may depend on how much of the training
        this process did: a process that resumes at the end trains no batch. Objects in local variables are added if
        they can be reached from the framework's `roots()`.
        """
        places.loggers(self._here.loggers)
        self._add_roots(places)
        self._add_data(places)
        places.modules()

    def _add_roots(self, places: Places) -> None:
        places.add("module", self._here.module)
        for path, root in self._here.roots().items():
            places.add(path, root)

    def _add_data(self, places: Places) -> None:
        for number, loader in enumerate(self._here.loaders("train")):
            places.add(f"data[{number}]", getattr(loader, "dataset", None))
            places.add(f"data[{number}].collate_fn", getattr(loader, "collate_fn", None))


def learning_rates(optimizers: Iterable[Optimizer]) -> tuple[tuple[str, ...], ...]:
    """Return the learning rate of each group of each optimizer, as an exact text."""
    return tuple(tuple(float(group["lr"]).hex() for group in optimizer.param_groups) for optimizer in optimizers)


def exact_loss(loss: Any) -> str | None:
    loss = loss.get("loss") if isinstance(loss, Mapping) else loss
    return float(loss.detach()).hex() if isinstance(loss, Tensor) and loss.numel() == 1 else None
