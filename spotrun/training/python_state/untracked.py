"""
Watches objects that are in no checkpoint and change without a sign in the script's own objects: an iterator that goes
on, an open file, a connection, an environment of a library.

Each is compared by what inspection shows without a call of its code (glance.py), so one that changes in silence is not
reported. A connection whose traffic cannot be seen counts as used.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from spotrun.training.python_state.encoding import HARMLESS, UntrackedChange
from spotrun.training.python_state.inspection import DEPTH, Facts, Glance
from spotrun.training.python_state.outside import UNKNOWN
from spotrun.training.python_state.values import name_of, same

FACTS_MAX = 20_000
"""Maximum facts of all objects together. What comes later in the walk is inspected without its parts."""
FEW = 1000
"""Maximum facts that are compared at each snapshot; more of them only at each `PROBE_EVERY`-th."""
OF_DATA = "data["
"""Prefix of paths of data sets. Place seeds the generators there, and transforms note what they did last."""


class Unseen:
    """
    The objects that existed when training began. `carried` are the objects that images hold, by `id`; files that are
    written below the folder `work` are in checkpoints too.
    """

    def __init__(self, others: Iterable[tuple[str, str, object]], carried: Container[int] = (), work: str = "") -> None:
        self._glance = Glance(carried, HARMLESS, work)
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
        Yield each changed object once: its place, and what it is. Without `probe`, yield none if that would take long.
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
