"""
Writes the trace of one train() for `spotrun verify-resume`, at the points where the Trainer calls its callbacks.

Both this module and TrainerLoop wrap methods of the Trainer. This module's wrappers are called first, so they record
each batch before TrainerLoop seeds the random number generators for the code that follows the batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from spotrun.exactness.trace_file import FILE_VARIABLE
from spotrun.training.framework import Framework
from spotrun.training.taps import Taps
from spotrun.training.trace.digests import digest
from spotrun.training.trace.of_framework import FrameworkTrace, ProcessTrace, traced
from spotrun.transformers.state import numbers

IS_TRACED = "is_traced_by_spotrun"


def begin(framework: Framework, trainer: Any) -> TrainerTrace | None:
    """Return the trace of a training; None if no trace is requested. Call this once the training's state is loaded."""
    return TrainerTrace(framework, trainer) if FILE_VARIABLE in os.environ else None


class TrainerTrace:
    """
    Traces one training. Once the training has ended, call `close` of this trace, then `close` of the framework, and
    then `ended` of this trace.
    """

    def __init__(self, framework: Framework, trainer: Any) -> None:
        self._here = framework
        self._trainer = trainer
        self._trace: FrameworkTrace | None = None
        self._in_batch = self._closing = False
        self._best = trainer.state.best_metric
        self._taps = Taps()
        handler = trainer.callback_handler
        for owner, name, function in (
            (handler, "on_train_begin", self._on_train_begin),
            (trainer, "training_step", self._on_batch),
            (handler, "on_substep_end", self._on_batch_end),
            (trainer, "_maybe_log_save_evaluate", self._on_step_end),
            (trainer, "_evaluate", self._on_evaluate),
            (handler, "on_epoch_end", self._on_epoch_end),
        ):
            self._taps.around(owner, name, function)

    def close(self) -> None:
        self._taps.close()

    def ended(self) -> None:
        """
        Record the end of the training. If the script calls `evaluate` or `predict` later, record their results too.
        """
        assert self._trace is not None
        self._trace.ended()
        for stage in ("evaluate", "predict"):
            method = getattr(self._trainer, stage)
            if not hasattr(method, IS_TRACED):
                setattr(self._trainer, stage, traced_result(self._trace.process, self._trainer, method, stage))

    # --- its hooks

    def _on_train_begin(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        control = original(*args, **kwargs)
        self._trace = traced(self._here)
        self._best = self._trainer.state.best_metric
        return control

    def _on_batch(self, original: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._trace is not None
        self._trace.batch_begins(inputs)
        self._in_batch = True
        return original(model, inputs, *args, **kwargs)

    def _batch_ends(self) -> None:
        """
        Record the end of a batch, unless it is already recorded. This may be called twice for a batch, because the
        Trainer handles the end of a step again at the end of an epoch and after a resume.
        """
        if self._in_batch:
            assert self._trace is not None
            self._in_batch = False
            self._trace.batch_ends()

    def _on_batch_end(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._batch_ends()
        return original(*args, **kwargs)

    def _on_epoch_end(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._closing = True
        return original(*args, **kwargs)

    def _on_step_end(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._batch_ends()
        original(*args, **kwargs)
        assert self._trace is not None
        if self._trainer.state.best_metric != self._best:
            self._best = self._trainer.state.best_metric
            self._trace.improved()
        if self._closing:
            self._closing = False
            self._trace.epoch_closes()

    def _on_evaluate(self, original: Any, *args: Any, skip_scheduler: bool = False, **kwargs: Any) -> Any:
        metrics = original(*args, skip_scheduler=skip_scheduler, **kwargs)
        if not skip_scheduler:  # set only in the evaluation before the first step (`eval_on_start`)
            assert self._trace is not None
            self._trace.validated()
        return metrics


def traced_result(process: ProcessTrace, trainer: Any, original: Any, stage: str) -> Any:
    """
    Wrap the Trainer's method `original` (`evaluate` or `predict`), to record the results of calls outside a training.
    """

    @functools.wraps(original)
    def result(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not trainer.is_in_train:
            metrics = found if isinstance(found, Mapping) else found.metrics
            predictions = None if found is metrics else digest([found.predictions, found.label_ids])
            process.evaluated(stage, numbers(metrics), predictions)
        return found

    setattr(result, IS_TRACED, True)
    return result
