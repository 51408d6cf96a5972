"""
Saves and restores the attributes of samplers. Also draws the order of the batches in one pass over a sampler, even if
the sampler never ends.

A sampler may keep values from one pass to the next: it may count its passes, change its batch size, or get new weights
from one of the script's hooks. To repeat a pass, for example at a resume, the sampler needs the values from the
beginning of that pass. So a snapshot includes each such value that has changed since the process started.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sized
from itertools import islice
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from spotrun.training import seeds
from spotrun.training.python_state.arrays import packed_numbers

Values = dict[str, Any]
"""Plain values by their paths, such as `sampler.epoch`."""
State = dict[str, Values]

SCALARS = (bool, int, float, str, bytes, type(None))
FLAT = frozenset(SCALARS)
SEQUENCES = (list, tuple)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
DRAWN_AT_ONCE = 1 << 16
"""Number of batches that are drawn at once. Nearly all epochs have fewer batches."""
LONG = 64
PACKED = " as an array"
"""Ending of the names of lists that are saved as arrays. No attribute's name has a blank."""
DEPTH = 3
"""Maximum depth of nested samplers."""


class Samplers:
    """A sampler or batch sampler, and the samplers in its attributes."""

    def __init__(self, sampler: Any) -> None:
        self._samplers = dict(_within("sampler", sampler, DEPTH))
        self._first = self._copies()
        self._pass: object = None
        self._before: Values = {}
        self._begun_with: Values = {}
        self._drawn: Values = {}
        self._resumed: State | None = None

    def made_late(self) -> None:
        """
        From now on, save every value of these samplers. Usually only changed values are saved, because a new process
        creates the samplers with the same initial values. But these samplers were created during the training, so their
        initial values may differ in a new process.
        """
        self._first = {}

    @property
    def divides(self) -> bool:
        """True if a sampler yields only one process's share of the data, as DistributedSampler does."""
        return any(hasattr(sampler, "num_replicas") for sampler in self._samplers.values())

    def set_epoch(self, epoch: object) -> None:
        for sampler in self._samplers.values():
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)

    def resume(self, state: State) -> None:
        """Make the next pass repeat the pass in which `state` was saved."""
        self._resumed = {when: _unpacked(values) for when, values in state.items()}

    def begin(self, key: object) -> None:
        """
        Prepare to draw the order of the pass `key`. Drawing may change values of the samplers. So if this order was
        drawn before, first restore the values from before that draw. Values that the script's hooks have changed since
        the draw are kept.
        """
        if self._resumed is not None:
            self._set(self._first | self._resumed["before"])
        elif key == self._pass:
            since = self._since()
            self._set({name: value for name, value in self._before.items() if name not in since})
        self._pass, self._before = key, self._copies()
        self._begun_with = self._to_save(self._before)

    def drawn(self) -> None:
        """
        Record the samplers' values immediately after the order of a pass has been drawn.

        If this pass was begun by an earlier process, the script's hooks may have changed some values there after the
        draw. Restore these values too.
        """
        self._drawn = self._copies()
        if self._resumed is not None:
            self._set(self._resumed["since"])
            self._resumed = None

    def state(self, *, next_pass: bool) -> State:
        """
        Return the values that a resume needs to repeat this pass: those that the samplers had when it began, and those
        that hooks have changed since the draw. With `next_pass`, return the current values, because the resume then
        begins with the next pass.
        """
        if next_pass:
            return {"before": _packed(self._to_save(self._copies())), "since": {}}
        since = self._since()
        # The script may share a long value that it has changed since, so a new process may not have it as it was.
        shared = {name: self._before[name] for name in since if name in self._before}
        return {"before": _packed(self._begun_with | shared), "since": _packed(since)}

    def _to_save(self, values: Values) -> Values:
        """
        Return `values` without long values that are unchanged since the process started, because a new process will
        have the same values.
        """
        return {n: value for n, value in values.items() if not _is_long(value) or not same(self._first.get(n), value)}

    def _since(self) -> Values:
        """Return the values that have changed since the order of the pass was drawn."""
        living = ((name, value) for name, value in self._living() if not _has_same_items(value, self._drawn.get(name)))
        return {n: copied(v) for n, v in living if is_plain(v) and not same(self._drawn.get(n), v)}

    def _living(self) -> Iterator[tuple[str, Any]]:
        for path, sampler in self._samplers.items():
            for name, value in _attributes(sampler).items():
                yield f"{path}.{name}", value

    def _copies(self) -> Values:
        return {name: copied(value) for name, value in self._living() if is_plain(value)}

    def _set(self, values: Values) -> None:
        """
        Set the values that differ. Equal objects are not replaced, because other parts of the script may use them.
        """
        living = dict(self._living())
        for name, value in values.items():
            path, _, attribute = name.rpartition(".")
            if path in self._samplers and not (name in living and same(living[name], value)):
                _fill(self._samplers[path], attribute, copied(value))


def _within(path: str, sampler: Any, depth: int) -> Iterator[tuple[str, Any]]:
    yield path, sampler
    for name, value in _attributes(sampler).items() if depth else ():
        if isinstance(value, Sampler) or name == "sampler":
            yield from _within(f"{path}.{name}", value, depth - 1)


def _attributes(value: Any) -> Values:
    found = vars(value) if hasattr(value, "__dict__") else {}
    return {name: list(item) if type(item) is deque else item for name, item in found.items()}


def _fill(sampler: Any, name: str, value: Any) -> None:
    """
    Change the attribute's object in place if possible, because another part of the script may use the same object.
    """
    held = getattr(sampler, name, None)
    if isinstance(held, list | deque):
        held.clear()
        held.extend(value)
    elif isinstance(held, dict):
        held.clear()
        held.update(value)
    elif isinstance(held, Tensor) and isinstance(value, Tensor) and held.shape == value.shape:
        held.copy_(value)
    else:
        setattr(sampler, name, value)


def _is_long(value: Any) -> bool:
    return (value.numel() if isinstance(value, Tensor) else len(value) if isinstance(value, Sized) else 1) > LONG


def _has_same_items(value: Any, drawn: Any) -> bool:
    """
    Return True if a list has the very objects that its copy `drawn` has, and they cannot have changed. For a long list,
    this takes a fraction of the time of `same`.
    """
    if type(value) is not list or type(drawn) is not list or len(value) != len(drawn):
        return False
    return all(map(is_, value, drawn)) and _is_flat(drawn)


def _packed(values: Values) -> Values:
    """
    Return the values with each long list of numbers of one type in an array, because a checkpoint stores the items of a
    list as text. `_unpacked` undoes this.
    """
    lists = {name: value for name, value in values.items() if type(value) is list}
    arrays = {name: array for name, value in lists.items() if (array := packed_numbers(value, LONG + 1)) is not None}
    rest = {name: value for name, value in values.items() if name not in arrays}
    return rest | {f"{name}{PACKED}": array for name, array in arrays.items()}


def _unpacked(values: Values) -> Values:
    lists = {name: array.tolist() for name, array in values.items() if name.endswith(PACKED)}
    rest = {name: value for name, value in values.items() if name not in lists}
    return rest | {name.removesuffix(PACKED): value for name, value in lists.items()}


def _is_flat(values: Any) -> bool:
    return FLAT.issuperset(map(type, values))


def is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in SCALARS or kind is Tensor:
        return True
    if kind is np.ndarray:
        return not value.dtype.hasobject
    if kind in SEQUENCES:
        return _is_flat(value) or all(map(is_plain, value))
    if kind in (set, frozenset):
        return _is_flat(value)
    return kind in MAPPINGS and all(map(is_plain, value)) and all(map(is_plain, value.values()))


def copied(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor:
        return value.detach().clone()
    if kind in (np.ndarray, set):
        return value.copy()
    if kind in MAPPINGS:
        copy = value.copy()
        copy.update({key: copied(item) for key, item in value.items()})
        return copy
    return kind(value if _is_flat(value) else map(copied, value)) if kind in SEQUENCES else value


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return (one.shape, one.dtype) == (other.shape, other.dtype) and one.tobytes() == other.tobytes()
    if isinstance(one, SEQUENCES):
        return len(one) == len(other) and (one == other if _is_flat(one) else all(map(same, one, other)))
    if isinstance(one, MAPPINGS):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other) or one != one


class Drawn:
    """
    The order of a pass: the indices of each batch. Most orders are drawn completely at the beginning. The order of a
    sampler that never ends is drawn in parts. The states of the random number generators at the end of each part are
    kept, because the next part is drawn from them.
    """

    def __init__(self, indices: Iterator[Any]) -> None:
        self._rest = indices
        self.known = list(islice(indices, DRAWN_AT_ONCE))
        self._state = seeds.state() if len(self.known) == DRAWN_AT_ONCE else None
        self._counted = (0, 0)

    @property
    def is_whole(self) -> bool:
        return self._state is None

    def at(self, number: int) -> Any:
        """
        Return the indices of batch `number`.

        Raises:
            IndexError: the pass ended before this batch.
        """
        while number >= len(self.known) and self._state is not None:
            with seeds.kept():
                seeds.set_state(self._state)
                more = list(islice(self._rest, DRAWN_AT_ONCE))
                self._state = seeds.state() if more else None
            self.known += more
        return self.known[number]

    def samples(self, batches: int) -> int:
        """
        Return the number of samples in the first `batches` batches. Each batch must be a list of indices. The training
        calls this after each batch, so only the batches since the previous call are counted.
        """
        counted, samples = self._counted if self._counted[0] <= batches else (0, 0)
        samples += sum(len(batch) for batch in islice(self.known, counted, batches))
        self._counted = (min(batches, len(self.known)), samples)
        return samples
