"""
Detects changes to objects of libraries and of Python itself that checkpoints do not contain: an iterator that
advances, an open file, a connection, a library's environment.

An object is compared only by facts that can be read without calling its code (inspection.py). Any other change goes
unnoticed. A connection whose traffic cannot be counted is always reported as changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from spotrun.training.python_state.encoding import HARMLESS, UntrackedChange
from spotrun.training.python_state.inspection import DEPTH, Facts, Inspector
from spotrun.training.python_state.outside import UNKNOWN
from spotrun.training.python_state.values import name_of, same

FACTS_MAX = 20_000
"""
Maximum facts of all objects together. Once this number is reached, the parts of further objects are not inspected.
"""
FEW = 1000
"""
Maximum number of facts that are compared at each snapshot. If there are more facts, they are compared only at every
`PROBE_EVERY`-th snapshot.
"""
OF_DATA = "data["
"""
Prefix of the paths of datasets. Objects inside datasets are not inspected, because they often change without any effect
on the training: generators are seeded again for each sample, and a transform may store the result of its last call.
"""


class UntrackedObjects:
    """
    The objects that existed when training began and that checkpoints do not contain, with the facts about them at that
    time. Objects that checkpoints do contain are left out: those whose `id`s are in `carried`, and files that are open
    for writing below the folder `work`.
    """

    def __init__(self, others: Iterable[tuple[str, str, object]], carried: Container[int] = (), work: str = "") -> None:
        self._work = work
        self._glance = Inspector(carried, HARMLESS, work)
        self._left: list[tuple[str, object, int, Facts]] = []
        self._many = 0
        for path, rest, value in others:
            if self._glance.is_of_use(value):
                depth = DEPTH if self._many < FACTS_MAX and not path.startswith(OF_DATA) else 0
                facts = self._glance.facts(value, depth)
                self._left += [(path + rest, value, depth, facts)] if facts else []
                self._many += len(facts)

    def leave_out(self, carried: Container[int]) -> None:
        """
        From now on, leave out the objects whose `id`s are in `carried`, which include all those that were left out so
        far. Facts about other objects remain as they were, except where these objects hold one that is left out now.
        """
        glance, left = Inspector(carried, HARMLESS, self._work), []
        for path, value, depth, before in self._left:
            if id(value) not in carried:
                facts = glance.facts(value, depth)
                same_parts = same(facts, self._glance.facts(value, depth))
                left.append((path, value, depth, before if same_parts else facts))
        self._glance, self._left = glance, left

    def changed(self, *, probe: bool = True) -> Iterator[UntrackedChange]:
        """
        Yield the path and class of each object that has changed. Each object is reported only once. If there are many
        facts, so that comparing them would be slow, compare nothing unless `probe` is True.
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
