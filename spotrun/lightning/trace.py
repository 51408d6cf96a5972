"""
Records a trace of the training, batch by batch, for `spotrun verify-resume` (see spotrun/training/trace).

factory.py adds this callback next to SpotrunCallback if an environment variable names a trace file. Another variable
may list steps at which the trainer is to be killed. When the trainer first reaches one of these steps, it waits to be
killed. So it is killed at the same step on fast and slow machines.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from torch import Tensor

from spotrun.lightning.adapter import LightningFramework
from spotrun.lightning.callback import SpotrunCallback
from spotrun.lightning.connectors.state import last_metrics
from spotrun.training.data.data_order import ExactOrder, order_of
from spotrun.training.trace import places as trace_places
from spotrun.training.trace.digests import digest, digests
from spotrun.training.trace.of_framework import FrameworkTrace, of_this_process
from spotrun.training.trace.places import Places

SCORES = ("best_model_score", "best_score")
"""Attributes in which Lightning's callbacks keep the best value of their metric."""


class TraceCallback:
    """Passes Lightning's hooks on to a trace. factory.py derives a class from this one and Lightning's Callback."""

    _framework: LightningFramework
    _trace: LightningTrace

    def __init__(self) -> None:
        self._best: tuple[str, ...] = ()
        self._predictions = sha256()
        self._process = of_this_process()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """
        Start the trace before anything is restored, so that the trace records the counters with which this fit() began.
        """
        elastic = next((one.elastic for one in trainer.callbacks if isinstance(one, SpotrunCallback)), None)
        self._process.open(None if elastic and trainer.global_rank else trainer.global_rank)
        if stage == "fit":
            self._framework = LightningFramework(trainer)
            self._trace = LightningTrace(self._framework, trainer)
            if elastic:
                elastic.trace = self._trace

    # -- training ----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._best = _best(trainer)
        self._trace.begins()
        self._trace.note("the start")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._look_for_improvement(trainer)
        self._trace.batch_begins(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._framework.loss = outputs
        self._trace.batch_ends()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        if trainer.state.fn.value == "fit":
            self._trace.validated()
        else:
            self._process.evaluated("validate", last_metrics(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._trace.epoch_ends()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """
        Record the end of the training. This runs after SpotrunCallback's teardown, so the recorded state of the random
        number generators is what the code after fit() finds.
        """
        if stage == "fit":
            self._look_for_improvement(trainer)
            self._trace.ended()

    # -- evaluations outside training --------------------------------------------------------------------------------

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._process.evaluated("test", last_metrics(trainer))

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any, **__: Any) -> None:
        self._predictions.update(digest(outputs).encode())

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._process.evaluated("predict", {}, self._predictions.hexdigest())
        self._predictions = sha256()

    # -- the best so far --------------------------------------------------------------------------------------------

    def _look_for_improvement(self, trainer: Any) -> None:
        if (best := _best(trainer)) != self._best:
            self._best = best
            self._trace.improved()


class LightningTrace(FrameworkTrace):
    """The trace of one fit(). It includes objects of Lightning's own classes that belong to the Trainer."""

    def __init__(self, framework: LightningFramework, trainer: Any) -> None:
        super().__init__(framework, counted=(trainer.current_epoch, trainer.global_step))
        self._trainer = trainer

    @property
    def _epoch(self) -> int:
        """
        The current epoch. In the last hooks of an epoch, Lightning's own counter is already one higher.
        """
        return int(self._trainer.current_epoch) + self._ahead[0]

    def _order(self) -> ExactOrder | None:
        return order_of(self._trainer.train_dataloader)

    def _add_all(self, places: Places) -> None:
        trainer, script = self._trainer, self.process.script
        places.loggers(trainer.loggers)
        self._add_roots(places)
        for number, callback in enumerate(trainer.callbacks):
            if not (isinstance(callback, TraceCallback) or trace_places.is_bar(callback)):
                found = trace_places.of_library(script, callback)
                places.found |= {f"callbacks[{number}].{name}": text for name, text in found}
        self._add_data(places)
        places.frames()
        places.modules()
        for number, config in enumerate(trainer.lr_scheduler_configs):
            states = digests(config.scheduler.state_dict())
            places.found |= {f"schedulers[{number}].{name}": text for name, text in states.items()}
        scaler = digests(trainer.precision_plugin.state_dict())
        places.found |= {f"precision.{name}": text for name, text in scaler.items()}


def _best(trainer: Any) -> tuple[str, ...]:
    scores = (getattr(callback, name, None) for callback in trainer.callbacks for name in SCORES)
    return tuple(float(score).hex() for score in scores if isinstance(score, Tensor) and score.numel() == 1)
