"""Reads and replaces the data loaders of a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotrun.training.hooks import Stage


class Loaders:
    """Implements those methods of `Framework` that concern loaders. They are documented there."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def loaders(self, stage: Stage) -> Sequence[Any]:
        fit_loop = self._trainer.fit_loop
        combined = (fit_loop if stage == "train" else fit_loop.epoch_loop.val_loop)._combined_loader
        return list(combined.flattened) if combined is not None else []

    @property
    def cycles(self) -> bool:
        return bool(self._trainer.fit_loop._combined_loader._mode == "max_size_cycle")

    def restart_pass(self) -> None:
        iter(self._trainer.fit_loop._data_fetcher)

    def exchange_loaders(self, exact: Callable[[Any, Stage], Any]) -> None:
        """Pass every loader that fit() prepares through `exact(loader, stage)`."""
        original = self._trainer._data_connector._prepare_dataloader

        def prepare(dataloader: Any, shuffle: bool, mode: Any) -> Any:
            stage: Stage = "train" if mode.value == "train" else "validate"
            return exact(original(dataloader, shuffle=shuffle, mode=mode), stage)

        self._trainer._data_connector._prepare_dataloader = prepare

    def exchange_loaders_no_more(self) -> None:
        self._trainer._data_connector.__dict__.pop("_prepare_dataloader", None)
