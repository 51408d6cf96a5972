"""Forwards the calls of Lightning's hooks to a `Fit`, which makes and restores the snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotrun.lightning.adapter import LightningFramework
from spotrun.lightning.connectors.elastic import ElasticSteps, problem
from spotrun.training.fit import Fit


class SpotrunCallback:
    """
    Adds snapshots and exact resume, including the position in the data, to each fit() under a spotrun agent. Without an
    agent it does nothing.

    factory.py derives the public class from this class and from the Callback class of the Lightning package in use. If
    a Trainer has several of these callbacks, only the first one acts.
    """

    _fit: Fit | None = None
    _framework: LightningFramework | None = None
    elastic: ElasticSteps | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._is_first(trainer):
            framework = LightningFramework(trainer)
            self._fit = Fit.begin(framework)
            self._framework = framework if self._fit else None
            if self._fit and self._fit.ranks.elastic is not None:
                if found := problem(trainer):
                    self._fit.refuse(*found)
                self.elastic = ElasticSteps(trainer, framework, self._fit.ranks.elastic, self._fit)
                self.elastic.open()

    def _is_first(self, trainer: Any) -> bool:
        return next(cb for cb in trainer.callbacks if isinstance(cb, SpotrunCallback)) is self

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.restore()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.start()
        if self.elastic:
            self.elastic.begin()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self._fit:
            self._fit.backward_begins()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.backward_ends()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._fit:
            self._fit.optimizer_steps()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.elastic:
            self.elastic.batch_ends()
        if self._framework:
            self._framework.loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.elastic:
            self.elastic.epoch_ends()

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if self._fit and not trainer.sanity_checking:
            self._fit.validation_batch_ends()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.finish()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._fit:
            self._fit.fail()
        self._close()

    def _close(self) -> None:
        if self.elastic:
            self.elastic.close()
            self.elastic = None
        if self._fit:
            self._fit.close()
            self._fit = self._framework = None
