"""Wraps one data loader of the framework, so that each pass over it begins at the training's position in the data."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from spotrun.training import seeds
from spotrun.training.data import data_order, generators, stream_attributes, streams
from spotrun.training.data.in_workers import Notes, Watch
from spotrun.training.data.marks import mark_of
from spotrun.training.data.proxy import Proxy
from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.place import KeptPlaces, PassStart, StreamPosition
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.kept_iterator import KeptIterator

KEPT_STATES = 3
"""
Number of a stream's latest states that are kept. A single state would not suffice, because a framework may have read
more batches than it has trained on. (Lightning reads one batch ahead if a loader has no length.)
"""
IN_WORKERS = "in_workers"
"""Entry of a loader's state with what its persistent workers still have (WorkerValues)."""
READ_AHEAD = "by a batch of a stream that was read before the training came to it"


class LoaderProxy(Proxy):
    """
    The loader that the framework reads in place of the user's loader. Each iteration over it is a pass of the
    ExactLoader `exact`.
    """

    def __init__(self, loader: Any, exact: ExactLoader) -> None:
        super().__init__(loader)
        object.__setattr__(self, "exact", exact)

    def __iter__(self) -> Iterator[Any]:
        begun: Iterator[Any] = self.exact.begin()
        return begun

    def __len__(self) -> int:
        return len(self._inner)

    # This method exists only because Lightning would otherwise warn that an epoch cannot be resumed. It returns no
    # position, because Lightning has already read one batch more than it has trained on.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ValidationProxy(Proxy):
    """
    An exact copy of a validation loader that does not change the global random number generators when a pass begins.

    torch's own loader draws a seed from these generators each time it starts workers. With persistent workers, this
    happens once per process, at the first pass. So a training that is resumed in a new process would draw one more seed
    than an uninterrupted one, and its later random numbers would differ.
    """

    def __iter__(self) -> Iterator[Any]:
        with seeds.kept():
            return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class ExactLoader:
    """
    Reads one loader's batches, in passes. A pass is one iteration over the loader. After a resume, a pass may begin in
    the middle of the data.

    At the beginning of each pass, `start(self)` returns where this pass begins. Some frameworks iterate over a short
    loader more than once in an epoch. Each of these passes is a cycle. `is_carried(generator)` is true if checkpoints
    include this random number generator. With `share`, it reads this process's micro-batches of each batch: one
    after another or, if it `holds` them, all of a batch at once. It then returns the last one, and `held` has all of
    them. While batches are read again to reach a position, the context `rereading` is entered: the script's collate
    function may then change the script's state a second time.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        rank: int,
        start: Callable[[ExactLoader], PassStart],
        is_carried: Callable[[object], bool],
        share: Share | None = None,
        holds: bool = False,
        rereading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._user_loader = loader
        self._start = start
        self._rereading = rereading
        self.parts = len(share.virtual_ranks) if share is not None and holds else 0
        self.held: list[Any] = []
        self._is_carried = is_carried
        self._seed = seed
        self._rank = rank
        self._key: tuple[int, ...] = ()
        self._first = 0
        self._current: _Pass | None = None
        self._resumed: StreamPosition | None = None
        self._epoch: int | None = None
        self._cycle = 0
        self.begun: PassStart | None = None
        self.order: data_order.ExactOrder | None = None
        self._stream: streams.Stream | None = None
        self._own = data_order.order_generators(loader)
        self._loader: Any
        if is_indexed(loader):
            self._loader = data_order.exact_copy(loader, seed, rank, self._position, share)
            self.order = data_order.order_of(self._loader)
        else:
            self._stream = streams.stream(loader, seed, rank)
            self._loader = self._stream.loader
        self._once = self.order is None and streams.is_read_once(loader)
        self._earlier: list[tuple[tuple[int, ...], int]] = []
        self._held: tuple[KeptPlaces, stream_attributes.Values] = ({}, {})
        self._worker_values: stream_attributes.WorkerValues | None = None
        if getattr(loader, "persistent_workers", False):
            self._worker_values = stream_attributes.WorkerValues(loader)
        self.proxy = LoaderProxy(self._loader, self)
        self._waits = _Waits()
        self._ahead: Watch | None = None
        self.reads_in_thread = False
        """True if the script's loader reads its batches in a thread, which draws random numbers meanwhile."""
        self.gave_others = False
        """True if a stream, reread after a resume, returned a different batch than before the resume."""

    def _position(self) -> tuple[tuple[object, ...], int]:
        return ("train", *self._key), self._first

    @property
    def loader(self) -> Any:
        """The user's own loader."""
        return self._user_loader

    @property
    def name(self) -> str:
        """The class of the dataset or, without a dataset, of the loader."""
        return type(getattr(self._user_loader, "dataset", self._user_loader)).__name__

    @property
    def replays(self) -> bool:
        """True if a position in this loader can be reached only by reading all batches before the position."""
        return self._stream is not None and self._stream.inside is None

    def resume(self, state: dict[str, Any] | None) -> None:
        """
        Make the next pass continue a pass of an earlier process. `state` is what that process's loader returned from
        its method `state` during the pass.
        """
        if state and self._worker_values is not None:
            self._worker_values.saved = state.get(IN_WORKERS) or {}
        state = {name: value for name, value in (state or {}).items() if name != IN_WORKERS}
        if self.order is None:
            self._resumed = StreamPosition(**state) if state else None
        elif state:
            self.order.samplers.resume(state)

    def state(self, epoch: int, batch: int, *, epoch_ended: bool) -> dict[str, Any] | None:
        """
        Return the state that a new process needs to begin a pass after batch `batch` of epoch `epoch`. Return None if
        these two numbers are sufficient.
        """
        position = self._position_after(epoch, batch, epoch_ended=epoch_ended)
        if position is not None and self._worker_values is not None and (earlier := self._worker_values.earlier()):
            position[IN_WORKERS] = earlier
        return position

    def _position_after(self, epoch: int, batch: int, *, epoch_ended: bool) -> dict[str, Any] | None:
        if self._current is None:
            return None
        if self.order is not None:
            return self.order.samplers.state(next_pass=epoch_ended)
        if epoch_ended:
            earlier = (*self._earlier, (self._key, self._current.number)) if self._once else ()
            return StreamPosition(epoch + 1, 0, False, self.state_between(), earlier, None, *self._held_now()).to_dict()
        self._watch_if_ahead(batch)
        earlier = tuple(self._earlier)
        if self._current.ended and self._current.number == batch:
            return StreamPosition(epoch, batch, True, self.state_between(), earlier, None, *self._held_now()).to_dict()
        state, mark = self._current.states.get(batch), self._current.marks.get(batch)
        then = self._values_mark() if self._current.number == batch else None
        return StreamPosition(epoch, batch, False, state, earlier, mark, *self._held, then).to_dict()

    def _watch_if_ahead(self, batch: int) -> None:
        """
        From now on, look for changes that a stream's collate function makes to itself in this process, if the framework
        has read more batches than it has trained on: snapshots then contain them too early.
        """
        collate = getattr(self._user_loader, "collate_fn", None)
        here = not getattr(self._user_loader, "num_workers", 0)
        if self._current is not None and self._current.number > batch and collate is not None and here:
            self._ahead = self._current.watch = self._ahead or Watch(collate, Notes(1, READ_AHEAD))

    def changed_ahead(self) -> Iterator[UntrackedChange]:
        """Yield the changes that a resume makes twice, because the framework reads this stream ahead."""
        return iter(()) if self._ahead is None else self._ahead.notes.read()

    def state_between(self) -> Any:
        """Return a stream's state between two passes; None if the stream has no state."""
        between = self._stream.between if self._stream else None
        return streams.state_of(between) if between is not None else None

    def load_between(self, state: Any) -> None:
        if self._stream is not None and state is not None:
            self._load(self._stream.between, state)

    @property
    def waited_s(self) -> float:
        """The seconds of system time that the training has spent waiting for batches."""
        return self._waits.total_s

    def samples(self, batches: int) -> int:
        """Return the number of samples in the first `batches` batches of the current epoch; 0 if unknown."""
        if self.order is None or self.begun is None:
            return 0
        cycles, rest = divmod(batches, len(self._loader)) if self.begun.cycling else (0, batches)
        return (cycles * self.order.samples(len(self._loader)) if cycles else 0) + self.order.samples(rest)

    def samples_by_size(self, batches: int) -> int:
        """
        Return the number of samples in the first `batches` batches, like `samples`. For a stream, whose exact number is
        unknown, assume that every batch has the loader's batch size. Return 0 if that size is unknown.
        """
        if self.order is None:
            return batches * (getattr(self._user_loader, "batch_size", None) or 0)
        return self.samples(batches)

    def begin(self) -> Iterator[Any]:
        start = self.begun = self._start(self)
        before = self._current, self._key
        self._count_cycle(start)
        self._key = (start.epoch, start.number, self._cycle)
        with seeds.kept():
            if self._once and self._stream:
                self._current = self._begin_once(self._stream, *before)
            elif self._stream:
                self._current = self._begin_stream(self._stream, self._seed_pass(self._key))
            else:
                self._current = self._begin_indexed()
        self._current.waits = self._waits  # set only here, so that the reads above do not count as waits
        return self._current

    def _begin_indexed(self) -> _Pass:
        """
        Begin a pass, and draw its order.

        Before the order is drawn, the random number generators that determine it are seeded. The dataset may use the
        same generator as the sampler. In the first pass after a resume, such a generator already has its state from the
        checkpoint, and seeding overwrites this state. So this method restores it once the order has been drawn.
        """
        shared = {path: one for path, one in self._own.items() if self._first and self._is_carried(one)}
        before = generators.states(shared)
        self._seed_pass(self._key)
        begun = _HeldPass(self._iterate(), self) if self.parts else _Pass(self._iterate())
        if self.order is not None and self.order.is_drawn:
            generators.set_states(shared, before)
        return begun

    def _iterate(self) -> Iterator[Any]:
        before = set(threading.enumerate())
        with self._worker_values.put_back() if self._worker_values is not None else nullcontext():
            begun: Iterator[Any] = iter(self._loader)
        if self.order is None and not getattr(self._user_loader, "num_workers", 0):
            self.reads_in_thread |= not before.issuperset(threading.enumerate())
        return begun

    def _seed_pass(self, key: tuple[int, ...]) -> int:
        root = seeds.derive(self._seed, "pass", *key)
        seeds.seed_cpu(root)
        generators.seed(self._own, root)
        return root

    def _begin_once(self, stream: streams.Stream, before: _Pass | None, last: tuple[int, ...]) -> _Pass:
        """
        Begin a pass over data that each process can read only once. A resumed process first reads and drops the batches
        of all earlier passes.
        """
        resumed = self._resumed
        if self._resumed is not None:
            if not self._resumed.begins(self._epoch, self._first):
                return _Pass(iter(()))  # the framework restarts the pass at the framework's restored position
            self._earlier = [(tuple(key), count) for key, count in self._resumed.earlier]
            with self._rereading():
                for key, count in self._earlier:
                    self._pass_once(stream, key).skip(count)
            self._resumed = None
        elif isinstance(before, _OncePass):
            if last == self._key and before.begins_again():
                return before
            self._earlier.append((last, before.number))
        begun = self._pass_once(stream, self._key)
        with self._rereading() if self._first else nullcontext():
            begun.skip(self._first)
        self._compare(begun, resumed)
        return begun

    def _pass_once(self, stream: streams.Stream, key: tuple[int, ...]) -> _OncePass:
        stream.place[:] = stream.place.new_tensor(key)
        root = self._seed_pass(key)
        return _OncePass(self._iterate(), root, self._rank, None, number=0)

    def _count_cycle(self, start: PassStart) -> None:
        if not start.cycling:
            self._cycle, self._first = 0, start.batch
        elif self._epoch == start.epoch and self._current is not None and self._current.ended:
            self._cycle, self._first = self._cycle + 1, 0
        else:
            self._cycle, self._first = divmod(start.batch, len(self._loader)) if start.batch else (0, 0)
        self._epoch = start.epoch

    def _begin_stream(self, stream: streams.Stream, root: int) -> _Pass:
        stream.place[:] = stream.place.new_tensor(self._key)
        resumed = self._resumed if self._resumed and self._resumed.begins(self._epoch, self._first) else None
        self._begin_with(resumed)
        if resumed and resumed.ended:
            self._load(stream.between, resumed.state)
            return _StreamPass(iter(()), root, self._rank, None, number=self._first)
        if resumed is None or resumed.state is None:
            begun = _StreamPass(self._iterate(), root, self._rank, stream.inside, number=0)
            with self._rereading() if self._first else nullcontext():
                for _ in range(self._first):
                    next(begun, None)
            self._compare(begun, resumed)
            return begun
        self._load(stream.inside if self._first else stream.between, resumed.state)
        return _StreamPass(self._iterate(), root, self._rank, stream.inside, number=self._first)

    def _begin_with(self, resumed: StreamPosition | None) -> None:
        """
        Record what the user's loader keeps from pass to pass: its iterators' places, and plain values. To read a pass
        again, first put back what there was at its beginning.
        """
        kept = self._kept_iterators()
        for name, place in ((resumed and resumed.kept) or {}).items():
            if name in kept:
                kept[name].move(kept[name].loader, *place)
        if resumed and resumed.values:
            stream_attributes.put_back(self._user_loader, resumed.values)
        self._held = self._held_now()

    def _held_now(self) -> tuple[KeptPlaces, stream_attributes.Values]:
        kept = {name: (one.key, one.number) for name, one in self._kept_iterators().items()}
        return kept, stream_attributes.values_of(self._user_loader) if self.replays else {}

    def _values_mark(self) -> int | None:
        _, values = self._held_now()
        return stream_attributes.mark_of_values(values) if values else None

    def _kept_iterators(self) -> dict[str, KeptIterator]:
        there = getattr(self._user_loader, "__dict__", {})
        return {name: one for name, one in there.items() if type(one) is KeptIterator}

    def _compare(self, begun: _Pass, resumed: StreamPosition | None) -> None:
        if resumed is not None:
            self.gave_others |= resumed.mark not in (None, begun.marks.get(self._first))
            self.gave_others |= resumed.then not in (None, self._values_mark())

    def _load(self, holder: Any, state: Any) -> None:
        if holder is not None:
            holder.load_state_dict(state)


class _Waits:
    total_s = 0.0


class _Pass(Iterator[Any]):
    """One pass over a loader, and whether it has ended."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.number = 0
        self.ended = False
        self.waits = _Waits()
        self.watch: Watch | None = None
        self.states: dict[int, Any] = {}
        self.marks: dict[int, int] = {}

    def __next__(self) -> Any:
        began_s = time.perf_counter()
        try:
            return self._read()
        except StopIteration:
            self.ended = True
            raise
        finally:
            self.waits.total_s += time.perf_counter() - began_s

    def _read(self) -> Any:
        return next(self._batches)


class _HeldPass(_Pass):
    """A pass that reads all of this process's micro-batches of a batch at once, into `loader.held`."""

    def __init__(self, batches: Iterator[Any], loader: ExactLoader) -> None:
        super().__init__(batches)
        self._loader = loader

    def _read(self) -> Any:
        self._loader.held = list(islice(self._batches, self._loader.parts))
        if not self._loader.held:
            raise StopIteration
        return self._loader.held[-1]


class _StreamPass(_Pass):
    """
    A pass over a stream. Before each batch is read, the global random number generators are seeded with the batch's
    number. Afterwards their earlier states are restored, because the training uses the same generators.

    `holder` is the object that holds the stream's state; None if the stream has no state. `states` has this state after
    each of the last KEPT_STATES batches. Without a holder, `marks` has the mark (marks.py) of each of these batches
    instead.
    """

    def __init__(self, batches: Iterator[Any], root: int, rank: int, holder: Any, number: int) -> None:
        super().__init__(batches)
        self._rank = rank
        self._root = root
        self._holder = holder
        self.number = number
        self._keep_state()

    def _read(self) -> Any:
        with seeds.kept():
            # Before the first batch, some streams shuffle all data on every rank, and then each rank reads its share.
            # The shuffles must be equal on all ranks, so the seed of the first batch does not include the rank.
            seeds.seed_cpu(seeds.derive(self._root, self.number, self._rank if self.number else 0))
            batch = super()._read()
        if self.watch is not None:
            self.watch.batch_is_read(0)
        self.number += 1
        self._keep_state()
        if self._holder is None:
            self.marks[self.number] = mark_of(batch)
            self.marks.pop(self.number - KEPT_STATES, None)
        return batch

    def _keep_state(self) -> None:
        if self._holder is not None:
            self.states[self.number] = streams.state_of(self._holder)
            self.states.pop(self.number - KEPT_STATES, None)


class _OncePass(_StreamPass):
    """
    A pass over a stream whose batches can be read only once. A framework may read a few batches ahead and then start
    the pass again. So the first batches are kept, and returned again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.skip(0)

    def skip(self, count: int) -> None:
        """Read and drop the next `count` batches. The pass begins after them."""
        self._kept: deque[Any] = deque()
        self._again: deque[Any] = deque()
        self._first = self.number + count
        for _ in range(count):
            next(self, None)

    def begins_again(self) -> bool:
        """Restart the pass from the kept batches. Return False if more batches were read than are kept."""
        if self.number - self._first != len(self._kept):
            return False
        self._again, self.number, self.ended = self._kept.copy(), self._first, False
        return True

    def _read(self) -> Any:
        if self._again:
            self.number += 1
            return self._again.popleft()
        batch = super()._read()
        if self._first < self.number <= self._first + KEPT_STATES:
            self._kept.append(batch)
        return batch


def exact_loaders(loaders: Iterable[object]) -> list[ExactLoader]:
    return [loader.exact for loader in loaders if type(loader) is LoaderProxy]


def is_indexed(loader: object) -> bool:
    """
    Return whether `loader` is a DataLoader over a map-style dataset that uses the `__iter__` of torch's or torchdata's
    class. (The user's subclass may define its own.)
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    iterate = type(loader).__iter__
    return iterate is DataLoader.__iter__ or iterate.__module__.startswith("torchdata.")
