"""
Generalizes from the values that differ between two trainings. A value's path, such as `row 3, loss`, is called its
place. A place varies if the two trainings have different values there.

From the places that vary, this module finds patterns. All places that match a pattern count as varying. For example, if
a column of a table varies in most rows, the whole column counts as varying.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations

Indices = tuple[int, ...]
"""The numbers of items, rows and lines that occur in a place, outermost first."""
Kept = tuple[int, ...]
"""
The positions at which a pattern compares the indices of places. For example, a pattern may compare the column's number
and ignore the row's number. It ignores the indices at all positions that are not listed here.
"""
_NUMBER = re.compile(r"\[(\d+)\]|\b(row|line|step|statement|object) (\d+)")
LONG = 16
"""
Maximum length of a list that is treated as a record, in which each item has a meaning of its own, such as `[time,
epoch, loss]`. A longer list is assumed to have one item per step.
"""
AXES_MAX = 5
"""Maximum number of indices in a place. Places with more indices are not generalized."""


def family(place: str) -> str:
    """Return the family of a place: its text without the numbers of items and rows."""
    return _NUMBER.sub(lambda found: f"{found[2]} #" if found[2] else "[]", place)


def indices(place: str) -> Indices:
    return tuple(int(found[1] or found[3]) for found in _NUMBER.finditer(place))


class Pattern:
    """
    A set of places whose paths differ only in their numbers. A place is in the set if its numbers at the positions
    `kept` are one of the tuples in `values`. Its other numbers do not matter. For example, with `kept` (1,) and
    `values` {(2,)}, the set contains `[0][2]` and `[7][2]`.
    """

    def __init__(self, kept: Kept, values: Collection[Indices]) -> None:
        self.kept = kept
        self.values = frozenset(values)

    def has(self, place: Indices) -> bool:
        return tuple(place[axis] for axis in self.kept) in self.values

    def names(self, kind: str) -> Iterator[str]:
        """
        Yield a name for each tuple in `values`. For example, with `kept` (1,), the tuple (2,) and the family `[][]`
        give the name `[][2]`.
        """
        for values in sorted(self.values):
            numbers = dict(zip(self.kept, values, strict=True))
            yield named(kind, numbers)


def named(kind: str, numbers: dict[int, int]) -> str:
    """Return the name of the family `kind`, with each of `numbers` filled in at its position."""
    parts = re.split(r"(\[\]|\b(?:row|line|step|statement|object) #)", kind)
    for at in range(1, len(parts), 2):
        if (number := numbers.get(at // 2)) is not None:
            parts[at] = f"[{number}]" if parts[at] == "[]" else parts[at].replace("#", str(number))
    return "".join(parts)


def pattern_of(
    kind: str, varying: Collection[Indices], known: Collection[Indices], *, is_record: bool = False
) -> Pattern:
    """
    Return a pattern for the places of the family `kind` that vary. `known` has the indices of all places of the family,
    and `varying` has the indices of the places that were seen to vary. The pattern generalizes from them: it ignores as
    many positions as this rule allows.

    A number at a position *varies* if most of the places that have this number there vary. A position may be ignored if
    most of its numbers vary. In two cases, a position with at most LONG numbers may be ignored only if all its numbers
    vary: if several positions are ignored, or if the position numbers the items of a record. The last position is
    assumed to do the latter if it is an index of a list, or if `is_record` is True.
    """
    is_record = is_record or kind.endswith("[]")
    count = len(next(iter(varying)))
    if count <= AXES_MAX:
        for left_out in _choices(count):
            kept = tuple(axis for axis in range(count) if axis not in left_out)
            values = {tuple(one[axis] for axis in kept) for one in varying}
            strict = len(left_out) > 1 or (left_out == (count - 1,) and is_record)
            if all(_is_rule(left_out, slab, strict) for slab in _slabs(kept, values, varying, known)):
                return Pattern(kept, values)
    return Pattern(tuple(range(count)), varying)


def _choices(count: int) -> Iterator[tuple[int, ...]]:
    """
    Yield the sets of positions that a pattern can ignore, in the order in which `pattern_of` tries them. Larger sets
    come before smaller sets. Among sets of the same size, sets with later positions come first, because the rule for
    the last position is stricter.
    """
    for size in range(count, 0, -1):
        yield from reversed(list(combinations(range(count), size)))


def _slabs(
    kept: Kept, values: Collection[Indices], varying: Collection[Indices], known: Collection[Indices]
) -> list[dict[Indices, bool]]:
    """
    Group the places by their numbers at the positions `kept`. Return one group for each tuple in `values`. A group maps
    each of its places to True if the place varies, and otherwise to False.
    """
    slabs: dict[Indices, dict[Indices, bool]] = {each: {} for each in values}
    differing = frozenset(varying)
    for place in differing.union(known):
        if (slab := slabs.get(tuple(place[axis] for axis in kept))) is not None:
            slab[place] = place in differing
    return list(slabs.values())


def _is_rule(left_out: tuple[int, ...], slab: dict[Indices, bool], strict: bool) -> bool:
    for axis in left_out:
        total, varying = Counter[int](), Counter[int]()
        for place, varies in slab.items():
            total[place[axis]] += 1
            varying[place[axis]] += varies
        share = sum(2 * varying[number] > total[number] for number in total)
        if share < len(total) if strict and len(total) <= LONG else 2 * share <= len(total):
            return False
    return True


class VaryingPlaces:
    """The places that vary, one pattern for each family."""

    def __init__(self, varying: Collection[str], known: Collection[str]) -> None:
        families, all_of = _by_family(varying), _by_family(known)
        self._patterns = {kind: pattern_of(kind, each, all_of.get(kind, ())) for kind, each in families.items()}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __contains__(self, place: str) -> bool:
        pattern = self._patterns.get(family(place)) if self._patterns else None
        return pattern is not None and pattern.has(indices(place))

    def names(self) -> list[str]:
        return sorted(name for kind, pattern in self._patterns.items() for name in pattern.names(kind))


def _by_family(places: Collection[str]) -> dict[str, set[Indices]]:
    found: dict[str, set[Indices]] = {}
    for place in places:
        found.setdefault(family(place), set()).add(indices(place))
    return found
