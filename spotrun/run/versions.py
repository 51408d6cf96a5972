"""
Immutable sequences and maps. A change returns a new version, and leaves the old version as it was.

The two versions share nearly all their items, so a change takes about as long in a long ledger as in a short one. This
allows a fold to return a separate state after each entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from pyrsistent import PVector, pvector


class HasNumber(Protocol):
    """An item that has the number of an entry."""

    @property
    def number(self) -> int: ...


N = TypeVar("N", bound=HasNumber)
_number = attrgetter("number")


def position(items: Sequence[HasNumber], number: int) -> int | None:
    """Return the index of the item with that number; None if there is none. Items must be sorted by number."""
    at = bisect_left(items, number, key=_number)
    return at if at < len(items) and items[at].number == number else None


class Table(Mapping[int, N]):
    """Items, keyed by their numbers. Each item that is added must have a greater number than all earlier items."""

    __slots__ = ("_items",)

    def __init__(self, items: PVector[N] | None = None) -> None:
        self._items: PVector[N] = pvector() if items is None else items

    def added(self, item: N) -> Table[N]:
        return Table(self._items.append(item))

    def changed(self, item: N) -> Table[N]:
        """Return the table with `item` instead of the old item with the same number."""
        at = position(self._items, item.number)
        assert at is not None, f"there is no {item.number}"
        return Table(self._items.set(at, item))

    def values(self) -> PVector[N]:  # type: ignore[override]
        return self._items

    def __getitem__(self, number: int) -> N:
        at = position(self._items, number)
        if at is None:
            raise KeyError(number)
        return self._items[at]

    def __iter__(self) -> Iterator[int]:
        return map(_number, self._items)

    def __len__(self) -> int:
        return len(self._items)
