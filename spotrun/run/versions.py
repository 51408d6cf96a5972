"""
Immutable sequences and maps: a change returns a new version, and the old one stays as it was.

Versions share nearly all their items. So a fold may return the state after each entry of a long ledger, and a change
costs about as much in a long one as in a short one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, TypeVar, overload

LEAF = 256
"""This many items share a tuple. A change copies one such tuple, and the tuple that holds all of them."""
BUCKETS = 256


class HasNumber(Protocol):
    """An item that is named by the number of its entry."""

    @property
    def number(self) -> int: ...


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=HasNumber)
_number = attrgetter("number")


def _first_number(leaf: tuple[Any, ...]) -> int:
    number: int = leaf[0].number
    return number


class Log(Sequence[T]):
    """A sequence that mostly grows. Equal to any sequence of the same items."""

    __slots__ = ("_leaves", "_tail")

    def __init__(self, items: Iterable[T] = ()) -> None:
        whole = tuple(items)
        full = len(whole) - len(whole) % LEAF
        self._leaves = tuple(whole[at : at + LEAF] for at in range(0, full, LEAF))
        self._tail = whole[full:]

    @classmethod
    def _of(cls, leaves: tuple[tuple[T, ...], ...], tail: tuple[T, ...]) -> Log[T]:
        made: Log[T] = cls.__new__(cls)
        made._leaves, made._tail = leaves, tail
        return made

    def appended(self, item: T) -> Log[T]:
        tail = (*self._tail, item)
        return Log._of((*self._leaves, tail), ()) if len(tail) == LEAF else Log._of(self._leaves, tail)

    def replaced(self, index: int, item: T) -> Log[T]:
        """Return the log with another item at `index`, which counts from the front."""
        at, inside = divmod(index, LEAF)
        if at == len(self._leaves):
            return Log._of(self._leaves, _with(self._tail, inside, item))
        return Log._of(_with(self._leaves, at, _with(self._leaves[at], inside, item)), self._tail)

    def truncated(self, length: int) -> Log[T]:
        """Return the first `length` items."""
        at, inside = divmod(length, LEAF)
        tail = self._tail if at == len(self._leaves) else self._leaves[at]
        return Log._of(self._leaves[:at], tail[:inside])

    def position(self, number: int) -> int | None:
        """Return the index of the item with that number, or None. For items that have numbers, in ascending order."""
        leaf, at = self._tail, len(self._leaves)
        if not leaf or number < _first_number(leaf):
            at = bisect_right(self._leaves, number, key=_first_number) - 1
            if at < 0:
                return None
            leaf = self._leaves[at]
        inside = bisect_left(leaf, number, key=_number)
        found = inside < len(leaf) and _number(leaf[inside]) == number
        return at * LEAF + inside if found else None

    def __len__(self) -> int:
        return len(self._leaves) * LEAF + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        length = len(self)
        if not -length <= index < length:
            raise IndexError(index)
        at, inside = divmod(index % length, LEAF)
        return self._tail[inside] if at == len(self._leaves) else self._leaves[at][inside]

    def __iter__(self) -> Iterator[T]:
        return chain(chain.from_iterable(self._leaves), self._tail)

    def __reversed__(self) -> Iterator[T]:
        return chain(reversed(self._tail), chain.from_iterable(map(reversed, reversed(self._leaves))))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Log):
            return self._tail == other._tail and self._leaves == other._leaves
        if isinstance(other, list | tuple):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __repr__(self) -> str:
        return f"Log({list(self)!r})"


class Table(Mapping[int, N]):
    """Items by their numbers. A new one has a greater number than all before it."""

    __slots__ = ("_items",)

    def __init__(self, items: Log[N] | None = None) -> None:
        self._items: Log[N] = Log() if items is None else items

    def added(self, item: N) -> Table[N]:
        return Table(self._items.appended(item))

    def changed(self, item: N) -> Table[N]:
        """Return the table with `item` in place of the one with its number."""
        at = self._items.position(item.number)
        assert at is not None, f"there is no {item.number}"
        return Table(self._items.replaced(at, item))

    def values(self) -> Log[N]:  # type: ignore[override]
        return self._items

    def __getitem__(self, number: int) -> N:
        at = self._items.position(number)
        if at is None:
            raise KeyError(number)
        return self._items[at]

    def __iter__(self) -> Iterator[int]:
        return map(_number, self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Table) else super().__eq__(other)

    def __repr__(self) -> str:
        return f"Table({dict(self)!r})"


class Index(Mapping[K, T]):
    """A map from hashable keys. Its order is arbitrary, and differs between processes."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: tuple[Mapping[K, T], ...] = ({},) * BUCKETS

    def changed(self, key: K, value: T | None) -> Index[K, T]:
        """Return the index with `value` under `key`, or without the key if the value is None."""
        at = hash(key) % BUCKETS
        bucket = {each: there for each, there in self._buckets[at].items() if each != key}
        if value is not None:
            bucket[key] = value
        made: Index[K, T] = Index()
        made._buckets = _with(self._buckets, at, bucket)
        return made

    def __getitem__(self, key: K) -> T:
        return self._buckets[hash(key) % BUCKETS][key]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return sum(map(len, self._buckets))


def _with(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
