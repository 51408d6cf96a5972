"""The callback that makes a training survive: Lightning's hooks, handed on to a `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotrun.training.fit import Run


class SpotrunCallback:
    """
    Snapshots, exact resume and exact data position for the one fit() that runs under a spotrun agent; elsewhere
    nothing.

    Mixed with the Callback of the Lightning package in use (see factory.py). Only the first of several in a Trainer
    acts.
    """

    _run: Run | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._is_first(trainer):
            self._run = Run.begin(trainer)

    def _is_first(self, trainer: Any) -> bool:
        return next(cb for cb in trainer.callbacks if isinstance(cb, SpotrunCallback)) is self

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.restore()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.start()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self._run:
            self._run.snapshots.settle(wait=False)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.snapshots.settle()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._run:
            self._run.complete_optimizers()
            self._run.snapshots.settle()  # a training_step that gave nothing had no backward

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._run:
            self._run.snapshots.loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self._run:
            self._run.validation_batch_ends()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.finish()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._run:
            self._run.tell_where_it_failed()
        self._close()

    def _close(self) -> None:
        if self._run:
            self._run.close()
            self._run = None
