"""
Watches objects that no checkpoint holds, and whose changes the script's own objects do not show: an iterator that
advances, an open file, a connection, a library's environment.

Each object is compared by facts that can be read without calling its code (inspection.py). A change that alters no such
fact is not reported. A connection whose traffic cannot be counted is taken as used.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from spotrun.training.python_state.encoding import HARMLESS, UntrackedChange
from spotrun.training.python_state.inspection import DEPTH, Facts, Inspector
from spotrun.training.python_state.outside import UNKNOWN
from spotrun.training.python_state.values import name_of, same

FACTS_MAX = 20_000
"""Maximum facts of all objects together. Once there are as many, further objects are inspected without their parts."""
FEW = 1000
"""Maximum facts compared at each snapshot. If there are more, only every `PROBE_EVERY`-th snapshot compares them."""
OF_DATA = "data["
"""
Prefix of the paths of datasets. Parts of datasets are not inspected: their generators are seeded by position, and
transforms record their last action.
"""


class UntrackedObjects:
    """
    Objects that existed when training began. `carried` has the `id`s of the objects that images hold. Files that are
    open for writing below the folder `work` are not watched, because checkpoints include them.
    """

    def __init__(self, others: Iterable[tuple[str, str, object]], carried: Container[int] = (), work: str = "") -> None:
        self._glance = Inspector(carried, HARMLESS, work)
        self._left: list[tuple[str, object, int, Facts]] = []
        self._many = 0
        for path, rest, value in others:
            if self._glance.is_of_use(value):
                depth = DEPTH if self._many < FACTS_MAX and not path.startswith(OF_DATA) else 0
                facts = self._glance.facts(value, depth)
                self._left += [(path + rest, value, depth, facts)] if facts else []
                self._many += len(facts)

    def changed(self, *, probe: bool = True) -> Iterator[UntrackedChange]:
        """
        Yield each changed object once, with its path and class. Without `probe`, yield nothing if the comparison would
        take long.
        """
        if not probe and self._many > FEW:
            return
        left = []
        for path, value, depth, before in self._left:
            now = self._glance.facts(value, depth)
            if same(before, now) and not any(fact is UNKNOWN for fact in now):
                left.append((path, value, depth, before))
            else:
                yield UntrackedChange(path, name_of(value))
        self._left = left
