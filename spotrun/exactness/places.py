"""
Generalizes from places that vary to similar places. For example, if a column of a table varies in most rows, the whole
column is taken to vary, but no other column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations

Indices = tuple[int, ...]
"""The numbers of items and rows in a place, outermost first."""
Kept = tuple[int, ...]
"""
Those positions in a place's indices whose numbers matter, such as the number of a column. The numbers at the other
positions only count rows.
"""
_NUMBER = re.compile(r"\[(\d+)\]|\b(row|line|step|statement|object) (\d+)")
LONG = 16
"""
Maximum length of a list that may be a record, such as `[time, epoch, loss]`. A longer list is taken to have one item
per step.
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
    A set of places of one family. A place is in the set if its numbers at the positions `kept` are one of `values`. Its
    other numbers do not matter.
    """

    def __init__(self, kept: Kept, values: Collection[Indices]) -> None:
        self.kept = kept
        self.values = frozenset(values)

    def has(self, place: Indices) -> bool:
        return tuple(place[axis] for axis in self.kept) in self.values

    def names(self, kind: str) -> Iterator[str]:
        """
        Yield a text for each of `values`: the name of the family `kind`, in which only the numbers at the positions
        `kept` are given.
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
    Return the pattern for the places of the family `kind` that vary. The pattern leaves out as many positions as
    possible from `kept`. `known` has all places of the family, and `varying` those that vary.

    A position is left out if, for most of its numbers, most places with this number vary. The rule is stricter in two
    cases: if several positions are left out, and if the place is in a record. Then the places must vary for each of the
    position's numbers (unless there are more than LONG). A place whose last index is a position in a list counts as in
    a record; with `is_record`, every place does.
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
    Yield the sets of positions that a pattern can leave out, in the order in which they are tried: large sets first.
    Among sets of the same size, inner positions come first, because the rule for them is stricter.
    """
    for size in range(count, 0, -1):
        yield from reversed(list(combinations(range(count), size)))


def _slabs(
    kept: Kept, values: Collection[Indices], varying: Collection[Indices], known: Collection[Indices]
) -> list[dict[Indices, bool]]:
    """
    Return a mapping for each of `values`. Its keys are the places whose numbers at the positions `kept` are that value;
    True means that the place varies.
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
