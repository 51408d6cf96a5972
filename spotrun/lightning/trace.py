"""
Traces what a training did, batch by batch, for `spotrun verify-resume` (see spotrun/exactness/trace.py).

A second callback next to SpotrunCallback, added only if the environment names a file for it (trace_file.py). The
environment may also list steps to hold at: the trainer stands still after each of them, once, until it is killed. So a
kill hits the intended step on a fast and on a slow machine.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from spotrun.exactness.trace import Begun, Ended, Evaluated, Improved, Left, Noted, Trained, Validated
from spotrun.exactness.trace_file import FILE_VARIABLE, TraceFile, path_of_rank
from spotrun.lightning.adapter import LightningFramework
from spotrun.lightning.connectors.position import Position
from spotrun.lightning.connectors.state import last_metrics
from spotrun.training.data import data_order
from spotrun.training.python_state.script import Script
from spotrun.training.trace import places as trace_places
from spotrun.training.trace.digests import digest, digests, generators, metrics
from spotrun.training.trace.of_framework import EARLY_BATCHES, Holds, exact_loss, learning_rates
from spotrun.training.trace.outside_files import OutsideFiles
from spotrun.training.trace.places import Places

SCORES = ("best_model_score", "best_score")
"""Attributes in which a callback of Lightning has the best value of its metric."""


class TraceCallback:
    """
    Writes the trace. factory.py mixes it with the Callback of the Lightning package in use, behind SpotrunCallback.
    Epochs and steps count on over the fits of a process.
    """

    fits = 0
    ended_at = 0, 0
    """Number of fits of all Trainers of this process, and the epoch and step at which the last one has ended."""
    _file: TraceFile
    _holds: Holds
    leaves = False
    """True once the end of this process will be recorded."""
    outside: OutsideFiles | None = None
    """The outside files of all Trainers of this process."""

    def __init__(self) -> None:
        self._is_first_pass = False
        self._data = ""
        self._lr: tuple[tuple[str, ...], ...] = ()
        self._best: tuple[str, ...] = ()
        self._predictions = sha256()
        self._script = Script.of_this_process()
        self._framework: LightningFramework | None = None
        self._loaders: Sequence[Any] = ()
        self._ahead = 0, 0
        TraceCallback.outside = TraceCallback.outside or OutsideFiles()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Set counters before anything is restored: they are where this fit() begins, whatever it resumes from."""
        if stage == "fit":
            TraceCallback.fits += 1
            epoch, step = TraceCallback.ended_at
            self._ahead = epoch - trainer.current_epoch, step - trainer.global_step
            self._framework, self._loaders = None, ()
        self._file = TraceFile(path_of_rank(Path(os.environ[FILE_VARIABLE]), trainer.global_rank))
        if not TraceCallback.leaves:
            TraceCallback.leaves = True
            atexit.register(self._leave)

    def _step(self, trainer: Any) -> int:
        return int(trainer.global_step) + self._ahead[1]

    def _epoch(self, trainer: Any) -> int:
        return int(trainer.current_epoch) + self._ahead[0]

    # -- training ----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        before = self._file.read()
        self._holds = Holds(self._file, before.held_at if trainer.is_global_zero else None)
        self._is_first_pass = not before.begun
        self._best = _best(trainer)
        self._file.append(Begun(pid=os.getpid(), step=self._step(trainer)))
        self._note(trainer, "the start")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._look_for_improvement(trainer)
        self._holds.batch_begins()
        self._data = digest(batch)
        self._lr = learning_rates(trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        order = data_order.order_of(trainer.train_dataloader)
        self._file.append(
            Trained(
                epoch=self._epoch(trainer),
                batch=batch_idx,
                step=self._step(trainer),
                samples=None if order is None else repr(order.indices(batch_idx)),
                data=self._data,
                lr=self._lr,
                loss=exact_loss(outputs),
                rng=digest(list(generators().values())),
            )
        )
        if self._epoch(trainer) == 0 and batch_idx < EARLY_BATCHES:
            self._note(trainer, f"batch {batch_idx + 1}")
        self._holds.reached(self._step(trainer))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        if trainer.state.fn.value != "fit":
            self._evaluated("validate", trainer)
            return
        known = metrics(last_metrics(trainer))
        self._file.append(
            Validated(
                epoch=self._epoch(trainer), batch=Position(trainer).batch - 1, step=self._step(trainer), metrics=known
            )
        )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._epoch(trainer) == 0:
            self._note(trainer, "the first epoch's end")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Record the end after SpotrunCallback's, which leaves the generators as the rest of the script finds them."""
        if stage != "fit":
            return
        TraceCallback.ended_at = self._epoch(trainer), self._step(trainer)
        self._look_for_improvement(trainer)
        states = [optimizer.state_dict() for optimizer in trainer.optimizers]
        shown = pl_module.state_dict()
        places = self._places(trainer)
        self._file.append(
            Ended(
                fit=TraceCallback.fits,
                step=self._step(trainer),
                weights=digests(shown | dict(pl_module.named_parameters()) | dict(pl_module.named_buffers())),
                optimizer=digests(states),
                rng=digests(generators()),
                metrics=metrics(last_metrics(trainer)),
                places=places.found,
                unread=places.unread,
            )
        )

    # -- what comes around and after it ------------------------------------------------------------------------------

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._evaluated("test", trainer)

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any, **__: Any) -> None:
        self._predictions.update(digest(outputs).encode())

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._evaluated("predict", trainer, self._predictions.hexdigest())
        self._predictions = sha256()

    def _evaluated(self, stage: str, trainer: Any, predictions: str | None = None) -> None:
        known = metrics(last_metrics(trainer)) if predictions is None else {}
        self._file.append(Evaluated(pid=os.getpid(), stage=stage, metrics=known, predictions=predictions))

    def _leave(self) -> None:
        places = Places(self._script)
        places.modules()
        outside = () if TraceCallback.outside is None else TraceCallback.outside.written()
        self._file.append(Left(pid=os.getpid(), places=places.found, unread=places.unread, outside=outside))

    # -- objects -----------------------------------------------------------------------------------------------------

    def _note(self, trainer: Any, moment: str) -> None:
        if self._is_first_pass:
            self._file.append(Noted(moment=moment, places=self._places(trainer).found))

    def _places(self, trainer: Any) -> Places:
        framework = self._framework = self._framework or LightningFramework(trainer)
        self._loaders = framework.loaders("train") or self._loaders
        module = framework.module
        weights = (*module.parameters(), *module.buffers())
        stops = (*framework.optimizers, *self._loaders, *weights)
        places = Places(self._script, stops, framework.own_attributes)
        places.loggers(trainer.loggers)
        places.add("module", module)
        for path, root in framework.roots().items():
            places.add(path, root)
        for number, callback in enumerate(trainer.callbacks):
            if not (isinstance(callback, TraceCallback) or trace_places.is_bar(callback)):
                found = trace_places.of_library(self._script, callback)
                places.found |= {f"callbacks[{number}].{name}": text for name, text in found}
        for number, loader in enumerate(self._loaders):
            places.add(f"data[{number}]", getattr(loader, "dataset", None))
        places.frames()
        places.modules()
        for number, config in enumerate(trainer.lr_scheduler_configs):
            states = digests(config.scheduler.state_dict())
            places.found |= {f"schedulers[{number}].{name}": text for name, text in states.items()}
        scaler = digests(trainer.precision_plugin.state_dict())
        places.found |= {f"precision.{name}": text for name, text in scaler.items()}
        return places

    # -- the best so far --------------------------------------------------------------------------------------------

    def _look_for_improvement(self, trainer: Any) -> None:
        if (best := _best(trainer)) != self._best:
            self._best = best
            self._file.append(Improved(step=self._step(trainer)))


def _best(trainer: Any) -> tuple[str, ...]:
    scores = (getattr(callback, name, None) for callback in trainer.callbacks for name in SCORES)
    return tuple(float(score).hex() for score in scores if isinstance(score, Tensor) and score.numel() == 1)
