"""Replaces each training and validation loader by an exact loader that starts at the batch that the run has reached."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from spotrun.training import seeds, unsupported
from spotrun.training.data import data_order
from spotrun.training.data.in_workers import notes_of
from spotrun.training.data.loader import ExactLoader, ValidationProxy, exact_loaders, is_indexed
from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.framework import Framework, State
from spotrun.training.hooks import Stage
from spotrun.training.place import PassStart
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.session import Agent

IN_THREAD = "reads in a thread, so its random numbers depend on when that runs; read with num_workers=1 instead"


class Cycled(Protocol):
    """A loader with further data of the training, which the script reads batch by batch (`Loop.cycle`)."""

    @property
    def loader(self) -> Any: ...

    def start(self, loader: ExactLoader) -> PassStart: ...

    def open(self, exact: ExactLoader | None, saved: State | None = None) -> None:
        """Read `exact` from now on. `saved` is what `state` returned in an earlier process."""

    def put_back(self) -> None: ...

    def state(self) -> State: ...


class TrainingData:
    """
    All loaders of one training. The order of their data depends on `seed`.

    `resumed` is None for a fresh start; otherwise it is the result of `state` in an earlier process. `is_carried` and
    `rereading` are arguments for ExactLoader. `share` has this process's virtual ranks, if the number of processes may
    change.
    """

    def __init__(
        self,
        framework: Framework,
        agent: Agent,
        seed: int,
        resumed: dict[str, list[Any]] | None,
        is_carried: Callable[[object], bool],
        share: Share | None = None,
        rereading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._framework = framework
        self._rereading = rereading
        self._share = share
        self._rank = framework.rank if share is None else 0
        self._is_carried = is_carried
        self._agent = agent
        self._seed = seed
        self._resumed = resumed["train"] if resumed else []
        self._resumed_validation = resumed["validate"] if resumed else []
        self._resumed_cycles = resumed.get("cycles", []) if resumed else None
        self._cycles: list[tuple[Cycled, ExactLoader]] = []
        self._said: set[int] = set()

    def exact(self, loader: Any, stage: Stage, *, late: bool = False) -> Any:
        """
        Return the loader that the framework reads instead of `loader` (see `Hooks.exact`). `late` is True if
        the script made `loader` only after the training had begun.
        """
        rank = self._rank
        if stage == "validate":
            return self._exact_validation(loader, rank)
        if is_indexed(loader) and not _has_length(loader):
            reason = "the training DataLoader's sampler has no length"
            unsupported.reject(self._agent, reason, "give the sampler a __len__")
        made = ExactLoader(
            loader,
            self._seed,
            rank,
            self._train_start,
            self._is_carried,
            self._share,
            self._framework.takes_whole_batches,
            self._rereading,
        )
        if late and made.order is not None:
            made.order.samplers.made_late()
        return made.proxy

    def read_beside(self, cycle: Cycled) -> None:
        number = len(self._cycles)
        seed = seeds.derive(self._seed, "cycle", number)
        exact = ExactLoader(cycle.loader, seed, self._rank, cycle.start, self._is_carried)
        self._cycles.append((cycle, exact))
        saved = self._resumed_cycles or []
        cycle.open(exact, saved[number] if number < len(saved) else None)

    def put_cycles_back(self) -> None:
        for cycle, _ in self._cycles:
            cycle.put_back()

    def _exact_validation(self, loader: Any, rank: int) -> Any:
        if not is_indexed(loader):
            seed = seeds.derive(self._seed, "validate")
            return ExactLoader(loader, seed, rank, self._validation_start, self._is_carried).proxy
        if not _has_length(loader):
            return loader
        return ValidationProxy(data_order.exact_copy(loader, self._seed, rank, self._validation))

    def _validation_start(self, loader: ExactLoader) -> PassStart:
        self._resume_validation()
        return PassStart(self._framework.epoch, 0, number=self._framework.batch)

    def _validation(self) -> tuple[tuple[object, ...], int]:
        return ("validate", self._framework.epoch, self._framework.batch), 0

    def _resume_validation(self) -> None:
        """
        Restore the states of the validation loaders at the first call at which these loaders exist. Usually they exist
        when training starts. But if the current epoch has no validation, the framework creates them later.
        """
        if made := self._validation_streams():
            for stream, state in zip(made, self._resumed_validation, strict=False):
                stream.load_between(state)
            self._resumed_validation = []

    def _train_start(self, loader: ExactLoader) -> PassStart:
        epoch, batch = self._framework.pass_begins_at
        every = self._train_loaders()
        number = every.index(loader)
        if number < len(self._resumed):
            loader.resume(self._resumed[number])
        cycling = len(every) > 1 and self._framework.cycles
        return PassStart(epoch, batch, self._framework.passes_before + number, cycling)

    def _train_loaders(self) -> list[ExactLoader]:
        return exact_loaders(self._framework.loaders("train"))

    def _beside(self) -> list[ExactLoader]:
        return [exact for _, exact in self._cycles]

    def _validation_streams(self) -> list[ExactLoader]:
        """Return the streams among the validation loaders. Other loaders have no state."""
        return exact_loaders(self._framework.loaders("validate"))

    def check(self) -> None:
        """
        Check that a resume can find its position in every loader. Some loaders have to reread all data up to that
        position. For each of these, tell the user that its data must be the same each time. (A list of batches is.)

        Raises:
            TrainingUnsupported: this combination of loaders cannot be resumed.
        """
        if self._resumed_cycles is not None and len(self._resumed_cycles) != len(self._cycles):
            unsupported.reject(
                self._agent,
                f"the checkpoint has {len(self._resumed_cycles)} loaders of loop.cycle, and the script now has "
                f"{len(self._cycles)}",
                self._framework.way_out,
            )
        loaders = self._train_loaders()
        if len(loaders) > 1 and self._framework.cycles and not all(_has_length(one.proxy) for one in loaders):
            unsupported.reject(
                self._agent,
                "several loaders are cycled through, and one of them has no length",
                'use CombinedLoader(…, mode="min_size"), or give the dataset a __len__',
            )
        for one in (*loaders, *self._beside()):
            silent = self._framework.rank != 0 or id(one) in self._said or type(one.loader) in (list, tuple)
            if one.replays and not silent:
                self._said.add(id(one))
                print(
                    f"spotrun: {one.name} has no state_dict, so a resume within an epoch rereads the epoch's data "
                    "up to the resumed batch; the data must be the same each time",
                    file=sys.stderr,
                    flush=True,
                )

    def begin_here(self) -> None:
        """
        Restart the loaders if they began at a wrong position, and restore their states.

        A framework may begin to read its loaders before it has restored its own position. The loaders then start at the
        first batch. (Lightning does this if a script reads `estimated_stepping_batches` in configure_optimizers,
        Lightning#20550.)
        """
        here = self._framework.pass_begins_at
        loaders = self._train_loaders()
        if any(one.begun is None or (one.begun.epoch, one.begun.batch) != here for one in loaders):
            self._framework.restart_pass()
        for one, state in zip(loaders, self._resumed, strict=False):
            if one.begun is None:  # its pass has not begun yet
                one.resume(state)
        if loaders:
            self._resumed = []
        self._resume_validation()

    def state(self, epoch: int, batch: int, *, epoch_ended: bool) -> dict[str, list[Any]]:
        """Return the state from which the loaders can continue after `batch`. Do not call this during a validation."""
        return {
            "train": [one.state(epoch, batch, epoch_ended=epoch_ended) for one in self._train_loaders()],
            "validate": [one.state_between() for one in self._validation_streams()] or self._resumed_validation,
            **({"cycles": [one.state() for one, _ in self._cycles]} if self._cycles else {}),
        }

    def news(self) -> list[UntrackedChange]:
        """
        Return the problems that make a resume inexact: each change that a worker made to its copy of the dataset, each
        that a stream's collate function made too early, each stream that returned different batches when it was
        reread, and each that reads in a thread.
        """
        again = [
            UntrackedChange(f"data[{number}]", f"a {one.name} that gives other batches when it is read again")
            for number, one in enumerate((*self._train_loaders(), *self._beside()))
            if one.gave_others
        ]
        again += [
            UntrackedChange(f"data[{number}]", f"a {type(one.loader).__name__} that {IN_THREAD}")
            for number, one in enumerate((*self._train_loaders(), *self._beside()))
            if one.reads_in_thread
        ]
        again += [change for one in self._train_loaders() for change in one.changed_ahead()]
        beside = [one.proxy for one in self._beside()]
        loaders = [*self._framework.loaders("train"), *beside, *self._framework.loaders("validate")]
        return again + [lost for loader in loaders if (notes := notes_of(loader)) is not None for lost in notes.read()]

    @property
    def waited_s(self) -> float:
        """The seconds of system time that the training has spent waiting for its loaders."""
        return sum(one.waited_s for one in self._train_loaders())

    def samples(self, batches: int) -> int:
        """Return the number of samples in the first `batches` batches of this epoch; 0 if unknown."""
        return sum(one.samples(batches) for one in self._train_loaders())

    def samples_by_size(self, batches: int) -> int:
        """Return the same number as `samples`, but assuming that all batches of a stream are full."""
        return sum(one.samples_by_size(batches) for one in self._train_loaders())


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:
        return False
    return True
