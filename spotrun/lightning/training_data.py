"""The training and validation data of one run: its loaders exchanged for exact ones, and where they begin."""

from __future__ import annotations

import sys
from typing import Any

from spotrun.lightning.connectors import loaders, position
from spotrun.lightning.unsupported import refuse
from spotrun.training import seeds
from spotrun.training.data import data_order
from spotrun.training.data.loader import Passes, Where, is_indexed
from spotrun.training.session import Agent


class TrainingData:
    """The data of one Trainer, in an order that `seed` decides. `resumed` is the `state` of an earlier process."""

    def __init__(self, trainer: Any, agent: Agent, seed: int, resumed: dict[str, list[Any]] | None) -> None:
        self._trainer = trainer
        self._agent = agent
        self._seed = seed
        self._resumed = resumed["train"] if resumed else []
        self._resumed_validation = resumed["validate"] if resumed else []

    def open(self) -> None:
        """From now on every loader that the Trainer makes ready is an exact one."""
        loaders.exchange(self._trainer, self._exact)

    def close(self) -> None:
        loaders.exchange_no_more(self._trainer)

    def _exact(self, loader: Any, stage: str) -> Any:
        rank = self._trainer.global_rank
        if stage == "validate":
            return self._exact_validation(loader, rank)
        if is_indexed(loader) and not _has_length(loader):
            refuse(self._agent, "the training DataLoader's sampler has no length", "give the sampler a __len__")
        return Passes(loader, self._seed, rank, self._where).feed

    def _exact_validation(self, loader: Any, rank: int) -> Any:
        if not is_indexed(loader):
            return Passes(loader, seeds.derive(self._seed, "validate"), rank, self._validation_where).feed
        if not _has_length(loader):
            return loader
        return data_order.exact_loader(loader, self._seed, rank, self._validation)

    def _validation_where(self, passes: Passes) -> Where:
        self._resume_validation()
        return Where(position.epoch(self._trainer), 0, number=position.batches_done(self._trainer))

    def _validation(self) -> tuple[tuple[object, ...], int]:
        return ("validate", position.epoch(self._trainer), position.batches_done(self._trainer)), 0

    def _resume_validation(self) -> None:
        """Once its loaders are made: on_train_start, or later where the epoch has no validation."""
        if made := self._validation_passes():
            for passes, state in zip(made, self._resumed_validation, strict=False):
                passes.load_between(state)
            self._resumed_validation = []

    def _where(self, passes: Passes) -> Where:
        epoch, batch = position.next_position(self._trainer)
        every = self._passes()
        number = every.index(passes)
        if number < len(self._resumed):
            passes.resume(self._resumed[number])
        return Where(epoch, batch, number, cycling=len(every) > 1 and loaders.mode(self._trainer) == "max_size_cycle")

    def _passes(self) -> list[Passes]:
        return [loader.passes for loader in loaders.train_loaders(self._trainer)]

    def _validation_passes(self) -> list[Passes]:
        """Of the streams among the validation loaders; the others have no state."""
        made = loaders.validation_loaders(self._trainer)
        return [passes for loader in made if (passes := getattr(loader, "passes", None)) is not None]

    def check(self) -> None:
        """
        Say what a resume will cost.

        Raises:
            TrainingRefused: these loaders together cannot be resumed.
        """
        passes = self._passes()
        if len(passes) > 1 and loaders.mode(self._trainer) == "max_size_cycle":
            endless = [one for one in passes if not _has_length(one.feed)]
            if endless:
                refuse(
                    self._agent,
                    "a loader without a length is one of several that are cycled through",
                    'use CombinedLoader(…, mode="min_size"), or give the dataset a __len__',
                )
        for one in passes:
            if one.replays and self._trainer.is_global_zero:
                print(
                    f"spotrun: {one.name} has no state_dict, so a resume within an epoch reads the epoch's data again "
                    "up to its place; it must be the same on each pass",
                    file=sys.stderr,
                    flush=True,
                )

    def begin_here(self) -> None:
        """
        Who reads `estimated_stepping_batches` in configure_optimizers has the loaders begun before the loops are
        restored (Lightning#20550): begin again, at the right place.
        """
        here = position.next_position(self._trainer)
        if any(one.begun is None or (one.begun.epoch, one.begun.batch) != here for one in self._passes()):
            loaders.restart(self._trainer)
        self._resumed = []
        self._resume_validation()

    def state(self, epoch: int, batch: int, *, epoch_ended: bool) -> dict[str, list[Any]]:
        """What the loaders need to begin after that place, besides its numbers. Not asked for within a validation."""
        return {
            "train": [one.state(epoch, batch, epoch_ended=epoch_ended) for one in self._passes()],
            "validate": [one.state_between() for one in self._validation_passes()] or self._resumed_validation,
        }

    def samples(self, batches: int) -> int:
        """How many samples the first `batches` batches of this epoch hold; 0 where that is unknown."""
        return sum(one.samples(batches) for one in self._passes())


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:
        return False
    return True
