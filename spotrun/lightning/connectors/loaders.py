"""The loaders that a Trainer makes ready and reads from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotrun.training.framework import Stage


def exchange(trainer: Any, exact: Callable[[Any, Stage], Any]) -> None:
    """Every loader that fit() makes ready goes through `exact(loader, "train" or "validate")`."""
    original = trainer._data_connector._prepare_dataloader

    def prepare(dataloader: Any, shuffle: bool, mode: Any) -> Any:
        stage: Stage = "train" if mode.value == "train" else "validate"
        return exact(original(dataloader, shuffle=shuffle, mode=mode), stage)

    trainer._data_connector._prepare_dataloader = prepare


def exchange_no_more(trainer: Any) -> None:
    trainer._data_connector.__dict__.pop("_prepare_dataloader", None)


def train_loaders(trainer: Any) -> list[Any]:
    combined = trainer.fit_loop._combined_loader
    return list(combined.flattened) if combined is not None else []


def validation_loaders(trainer: Any) -> list[Any]:
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    return list(combined.flattened) if combined is not None else []


def mode(trainer: Any) -> str:
    """How the training loaders are combined: "min_size", "max_size", "max_size_cycle"."""
    return str(trainer.fit_loop._combined_loader._mode)


def restart(trainer: Any) -> None:
    """Throw the iterator over the training data away, and begin a new one at `next_position`."""
    iter(trainer.fit_loop._data_fetcher)
