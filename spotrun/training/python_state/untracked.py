"""
Watches objects that are in no checkpoint and change without a trace in the script's own objects: an iterator that
advances, an open file, a connection, a library's environment.

Each is compared by facts that inspection can read without calling its code (inspection.py). So a change that leaves no
such fact is not reported. A connection whose traffic cannot be seen counts as used.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from spotrun.training.python_state.encoding import HARMLESS, UntrackedChange
from spotrun.training.python_state.inspection import DEPTH, Facts, Glance
from spotrun.training.python_state.outside import UNKNOWN
from spotrun.training.python_state.values import name_of, same

FACTS_MAX = 20_000
"""Maximum facts of all objects together. Objects that come later in the walk are inspected without their parts."""
FEW = 1000
"""
Maximum facts that are compared at each snapshot. If there are more, they are compared at every `PROBE_EVERY`-th one.
"""
OF_DATA = "data["
"""Prefix of the paths of data sets. The place seeds generators there, and transforms record their last action."""


class Unseen:
    """
    The objects that existed when training began. `carried` are the objects that images hold, by `id`. Files open for
    writing below the folder `work` are in checkpoints too.
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
        Yield each changed object once: its place and its class. Without `probe`, yield nothing if that would take long.
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
