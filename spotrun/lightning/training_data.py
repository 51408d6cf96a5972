"""The training and validation data of one run: its loaders exchanged for exact ones, and where they begin."""

from __future__ import annotations

import sys
from typing import Any

from spotrun.lightning import data_position, feed
from spotrun.lightning.connectors import loaders, position
from spotrun.lightning.feed import Passes, Where
from spotrun.lightning.refusal import refuse
from spotrun.lightning.session import Agent


class TrainingData:
    """The data of one Trainer, in an order that `seed` decides. `resumed` is the `state` of an earlier process."""

    def __init__(self, trainer: Any, agent: Agent, seed: int, resumed: list[Any]) -> None:
        self._trainer = trainer
        self._agent = agent
        self._seed = seed
        self._resumed = resumed

    def open(self) -> None:
        """From now on every loader that the Trainer makes ready is an exact one."""
        loaders.exchange(self._trainer, self._exact)

    def close(self) -> None:
        loaders.exchange_no_more(self._trainer)

    def _exact(self, loader: Any, stage: str) -> Any:
        rank = self._trainer.global_rank
        if stage == "validate":
            exact = feed.is_indexed(loader) and _has_length(loader)
            return data_position.exact_loader(loader, self._seed, rank, self._validation) if exact else loader
        if feed.is_indexed(loader) and not _has_length(loader):
            refuse(self._agent, "the training DataLoader's sampler has no length", "give the sampler a __len__")
        return Passes(loader, self._seed, rank, self._where).feed

    def _validation(self) -> tuple[tuple[object, ...], int]:
        return ("validate", position.epoch(self._trainer), position.batches_done(self._trainer)), 0

    def _where(self, passes: Passes) -> Where:
        epoch, batch = position.next_position(self._trainer)
        every = self._passes()
        number = every.index(passes)
        if number < len(self._resumed):
            passes.resume(self._resumed[number])
        return Where(epoch, batch, number, cycling=len(every) > 1 and loaders.mode(self._trainer) == "max_size_cycle")

    def _passes(self) -> list[Passes]:
        return [loader.passes for loader in loaders.train_loaders(self._trainer)]

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
            if one.replays:
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

    def state(self, epoch: int, batch: int, *, epoch_ended: bool) -> list[Any]:
        """What the loaders need to begin after that place, besides its numbers."""
        return [one.state(epoch, batch, epoch_ended=epoch_ended) for one in self._passes()]

    def samples(self, batches: int) -> int:
        """How many samples the first `batches` batches of this epoch hold; 0 where that is unknown."""
        return sum(one.samples(batches) for one in self._passes())


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:
        return False
    return True
