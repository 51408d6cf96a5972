"""
Defines two iterators that track the position of a training: one over its epochs, and one over the batches of an epoch.

A batch or an epoch counts as ended when the script requests the next one, or when the script leaves the loop. Both
iterators are generators, because Python closes a generator as soon as the script leaves the loop over it.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from types import FrameType, GeneratorType, ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor

from spotrun.loop import prepared
from spotrun.loop.adapter import LoopFramework
from spotrun.loop.cycle import Cycle
from spotrun.loop.frames import UNBOUND, left_well
from spotrun.loop.micro_batches import Batch, ElasticSteps, as_number
from spotrun.trainer_link import VIRTUAL_RANKS
from spotrun.training import unsupported
from spotrun.training.by_name import is_a
from spotrun.training.data.data_order import order_of
from spotrun.training.fit import Fit, claim
from spotrun.training.hooks import Stage
from spotrun.training.python_state.values import is_scalar
from spotrun.training.session import alone
from spotrun.training.trace import of_framework

AROUND = 4
"""
Maximum number of objects between Python's `enumerate` and the pass that it finally reads. Such an object is, for
example, a progress bar or its generator.
"""
_PAIRS = "write it = loop.cycle(other) before the loop, and zip(loop.batches(loader), it) in it"
_ENUMERATE = {
    enumerate: (
        "enumerate() counts the batches from 0 even if the training resumes within the epoch",
        "use `for i, batch in loop.enumerate(loader)`; it accepts start= too",
    )
}
_READERS: dict[type, tuple[str, str]] = {
    zip: ("zip() reads its other iterables from their beginning even if the training resumes within the epoch", _PAIRS),
    itertools.zip_longest: (
        "zip_longest() reads its other iterables from their beginning even if the training resumes within the epoch",
        _PAIRS,
    ),
    itertools.islice: (
        "islice() counts the batches from 0 even if the training resumes within the epoch",
        "leave the loop with `break` at a number that `loop.enumerate(loader)` gives",
    ),
}
"""
Iterators of Python whose own place is in no checkpoint, unlike that of the pass that they read. For each, why it is
refused, and what to do.
"""


class Passes:
    """
    The iterators over the epochs and batches of one fit. They count both, and report each of them to the `Fit`.
    """

    def __init__(self, framework: LoopFramework, local: str | None = None) -> None:
        self._here = framework
        self._fit = Fit.begin_anyway(framework, local)
        self._exact: dict[tuple[int, Stage], tuple[Any, Any]] = {}
        self._loaders: dict[int, Any] = {}
        self._number = -1
        self._reads = False
        self._looked = self._refused = False
        self._fit.built()
        for cycle in framework.own_objects:
            self._fit.read_beside(cycle)
        self._fit.restore()
        self._fit.start()
        share = self._fit.ranks.elastic
        self._trace = of_framework.traced(framework, elastic=share is not None)
        self._elastic: ElasticSteps | None = None
        if share is not None:
            self._elastic = ElasticSteps(framework, share, self._fit, self._trace, self.refuse)
            framework.check_step = self._elastic.step_begins
            self._elastic.begin()

    # --- epochs

    def epochs(self) -> Iterator[int]:
        here, fit = self._here, self._fit
        ended = False
        try:
            while not here.is_done and here.epoch < here.epochs:
                self._epoch_begins()
                yield here.epoch
                self._epoch_ends(last=here.epoch + 1 == here.epochs)
            here.is_done = True
            here.restore()
            fit.finish()
            ended = True
        except unsupported.TrainingUnsupported:
            self._refused = True
            raise
        except GeneratorExit:
            if left_well(sys._getframe(1)):
                self._epoch_ends(last=True)
                fit.finish()
                ended = True
            raise
        finally:
            if not (ended or self._refused):
                self._count_step()
                fit.fail()
            fit.close()
            for cycle in here.own_objects:
                cycle.open(None)
            if ended and self._trace is not None:
                self._trace.ended()

    def _epoch_begins(self) -> None:
        here = self._here
        self._number = -1
        here.ends_epoch = False
        here.frames.epoch_begins()
        if here.entering is not None:
            self._fit.epoch_begins_again()
        else:
            here.batch = here.batches = here.passes_before = 0
            here.restore()
            self._fit.epoch_begins()
            for cycle in here.own_objects:
                cycle.epoch_begins()

    def _epoch_ends(self, *, last: bool) -> None:
        here = self._here
        if here.entering is not None:
            self.refuse(
                f"the checkpoint lies within epoch {here.entering.epoch}, but the script now reads no batch of it",
                "make the code before an epoch's batches depend only on loop.state, so that a resume repeats it",
            )
        self._count_step()
        if self._number < 0:
            self._require_restored_locals()
        if self._trace is not None:
            self._trace.epoch_closes()
        self._fit.epoch_closes()
        here.epoch += 1
        here.is_done, here.ends_epoch = last, False
        self._fit.epoch_ends()

    def _count_step(self) -> bool:
        stepped, self._here.stepped = self._here.stepped, False
        self._here.step += stepped
        return stepped

    # --- the batches of a pass

    def numbered(self, source: Any) -> Iterator[tuple[int, Any]]:
        """
        Yield each batch of a loader with its number in the pass. If `source` is a range, yield its numbers in the same
        way.
        """
        here = self._here
        if self._reads:
            self.refuse(
                "a pass over training data begins within another pass",
                "read all training data with one loader, or read the inner pass's data with loop.validation",
            )
        self._number += 1
        if here.entering is not None and self._number < here.entering_pass:
            return
        self._reads = True
        try:
            self._pass_begins(source)
            for batch in self._batches(source):
                self._fit.batch_begins()
                if self._trace is not None:
                    self._trace.batch_begins(None if self._elastic is not None else batch)
                yield here.batch, batch
                self._batch_ends()
            here.ends_epoch = True
            self._fit.pass_ends(boundary=not any(here.frames.lost(ended=True)))
        except unsupported.TrainingUnsupported:
            self._refused = True
            raise
        except GeneratorExit:
            if left_well(sys._getframe(1)):
                self._batch_ends(left=True)
            raise
        finally:
            self._reads = False

    def _pass_begins(self, source: Any) -> None:
        here, entering = self._here, self._here.entering
        here.batches = len(source) if isinstance(source, Sized) and _has_length(source) else 0
        batches = self._fit.ranks.each(here.batches)
        if len(set(batches)) > 1:  # all ranks take a snapshot after the same batch, so they would wait for each other
            self.refuse(
                f"the processes have different numbers of batches: {', '.join(map(str, batches))}",
                "give each process the same number, for example with a DistributedSampler, in place of Join",
            )
        here.ends_epoch = False
        here.passes_before, here.batch = self._number, 0
        here.train = [] if isinstance(source, range) else [self._inside(source, "train")]
        if entering is not None:
            self._enter(entering.batch)
        self._fit.pass_begins()
        here.frames.pass_begins()
        here.passes_locals(resumed=entering is not None)
        self._require_restored_locals()

    def _enter(self, batch: int) -> None:
        """
        Restore the state at the start of the pass in which the snapshot was made. The script has just repeated the code
        of this epoch that comes before the pass. Restoring the state undoes the changes that this code has made.
        """
        here = self._here
        if here.batches != here.entering_batches:
            self.refuse(
                f"the training data had {here.entering_batches} batches, and has {here.batches}",
                "give the loader the same data and batch size as before",
            )
        here.entering, here.batch = None, batch
        here.restore()
        self._fit.epoch_begins()

    def _batches(self, source: Any) -> Iterator[Any]:
        if isinstance(source, range):
            yield from source[self._here.batch :]
        elif self._elastic is not None:
            yield from self._divided(self._elastic, source)
        else:
            yield from self.exchanged(source, "train")

    def _divided(self, elastic: ElasticSteps, source: Any) -> Iterator[Batch]:
        """Yield the batches of an elastic training, of which this process reads only its own micro-batches."""
        elastic.check(prepared.loader_in(source))
        parts = iter(self.exchanged(source, "train"))
        order = order_of(self._inside(source, "train"))
        assert order is not None
        yield from elastic.batches(order, parts, self._here.batch)

    def micro_batches(self, batch: Any) -> Iterator[Any]:
        if self._elastic is not None:
            return self._elastic.micro_batches(batch)
        if self._fit.ranks.size > 1:
            self.refuse(
                "loop.micro_batches was called in a training with several processes that is not elastic",
                f"write elastic: {{virtual_ranks: {self._fit.ranks.size}}} in the job, or set {VIRTUAL_RANKS}",
            )
        return iter((0 if batch is None else batch,))

    def mean(self, value: Any) -> Tensor:
        """See `Loop.mean`."""
        if self._elastic is not None:
            return self._elastic.mean(value)
        return torch.tensor(as_number(value), dtype=torch.float64)

    def _batch_ends(self, *, left: bool = False) -> None:
        here = self._here
        if self._elastic is not None:
            self._elastic.batch_ends()
        here.batch += 1
        stepped = self._count_step()
        if self._trace is not None:
            self._trace.batch_ends()
        self._fit.batch_ends(boundary=stepped and not left, validation_due=False)
        if stepped and not left and here.batch != here.batches:
            self._fit.step_ends()

    # --- loaders

    def exchanged(self, loader: Any, stage: Stage) -> Any:
        """
        Return the loader that is read in place of the script's `loader`. The same `loader` always gets the same
        replacement.
        """
        return prepared.exchange(loader, lambda inside: self._proxy(inside, stage))

    def _inside(self, loader: Any, stage: Stage) -> Any:
        return self._proxy(prepared.loader_in(loader), stage)

    def _proxy(self, inside: Any, stage: Stage) -> Any:
        loader = self._loaders.get(id(inside), inside)  # a library's wrapper may hold a proxy as its loader
        known = self._exact.get((id(loader), stage))
        if known is None:
            proxy = self._fit.exact(loader, stage)
            known = self._exact[id(loader), stage] = (loader, proxy)
            self._loaders[id(proxy)] = loader
            if stage == "validate":
                self._here.validate = [*self._here.validate, proxy]
        return known[1]

    def give_back(self, loader: Any) -> None:
        """Undo `exchanged`: if `loader` is a library's wrapper, put the script's own loader back into it."""
        prepared.exchange(loader, lambda inside: self._loaders.get(id(inside), inside))

    def validation(self, loader: Any) -> Iterator[Any]:
        try:
            for batch in self.exchanged(loader, "validate"):
                yield batch
                self._fit.validation_batch_ends()
        finally:
            self.give_back(loader)

    # --- refusals

    def look_around(self, *, counts: bool) -> None:
        """
        Reject a script that reads a pass through an iterator of Python that would begin again at a resume, such as
        `enumerate` or `zip`. With `counts`, the pass numbers its batches, so an `enumerate` around it does no harm.

        The check is made only once per fit, because a script that uses such an iterator in one pass uses it in all.
        """
        if self._looked:
            return
        self._looked = True
        refused = _READERS if counts else _READERS | _ENUMERATE
        running = list(self._here.frames.between())
        for one in gc.get_objects():
            if type(one) in refused and _reads(one, running) and not _reads_cycles_after(one):
                self.refuse(*refused[type(one)])

    def _require_restored_locals(self) -> None:
        """
        Reject a script whose loops change local variables that a resume would not restore. Called within the first
        pass, where both the loop over the epochs and the loop over the batches run, it names the variables of both.
        """
        if self._fit.how_exact == "off":
            return
        frames = self._here.frames
        found = [*frames.rebound(), *(frames.read_afterwards() if self._fit.how_exact == "require" else ())]
        if not found:
            return
        places = ", ".join(f"{one.name} ({one.place})" for one in found)
        reading = [one.name for one in found if is_a(one.value, "_BaseDataLoaderIter", "KeptIterator")]
        kept = ", ".join(f"{one.name}={_text(one.value)}" for one in found if one.name not in reading)
        hints = [f"{name} = loop.cycle(loader) before the loop, which never stops" for name in reading]
        if kept:
            first = kept.partition("=")[0]
            known = frames.name_of(self._here.script_state)
            state = (
                f"s = loop.state({kept}) before the loop" if known is None else f"add {kept} to {known} = loop.state(…)"
            )
            hints.append(f"{state}, and {known or 's'}.{first} in place of {first}")
        self.refuse(
            f"the loop assigns local variables that are read later, and no checkpoint holds them: {places}",
            "; ".join([*hints, *(() if claim() is None else ("or set checkpoint: {exact: off}",))]),
        )

    def refuse(self, reason: str, hint: str) -> NoReturn:
        self._refused = True
        unsupported.reject(claim() or alone(), reason, hint)


class Pass:
    """
    A pass over training data. It can be iterated once. For each batch, `give` gets the batch's number and the batch,
    and returns what the script receives.
    """

    def __init__(self, passes: Passes, source: Any, give: Callable[[int, Any], Any], *, counts: bool) -> None:
        self._passes = passes
        self._source = source
        self._give = give
        self._counts = counts

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        return self._items()

    def _items(self) -> Iterator[Any]:
        self._passes.look_around(counts=self._counts)
        try:
            for number, batch in self._passes.numbered(self._source):
                yield self._give(number, batch)
        finally:
            self._passes.give_back(self._source)


def _text(value: object) -> str:
    """Return `value` as a script writes it; "…" if that is long, or not Python."""
    text = "None" if value is UNBOUND else repr(value) if is_scalar(value) else "…"
    return text if len(text) <= 20 else "…"


def _has_length(source: Any) -> bool:
    try:
        len(source)
    except TypeError:
        return False
    return True


def _reads_cycles_after(one: object) -> bool:
    """
    Return True if `one` is a `zip` whose iterators are all of `loop.cycle`, except the first. Its first iterator is
    then the pass: at a snapshot, it has read the same number of batches from all of them.
    """
    if type(one) is not zip:
        return False
    iterators: Any = one.__reduce__()[1]
    others = iterators[1:]
    return bool(others) and all(type(each) is Cycle for each in others)


def _reads(one: object, running: Sequence[FrameType]) -> bool:
    """
    Return True if the iterator `one` reads a generator whose frame is in `running`, directly or through others.
    """
    level: Iterable[object] = [one]
    for _ in range(AROUND):
        level = [each for each in gc.get_referents(*level) if not isinstance(each, type | ModuleType | dict)][:100]
        if any(isinstance(each, GeneratorType) and each.gi_frame in running for each in level):
            return True
    return False
