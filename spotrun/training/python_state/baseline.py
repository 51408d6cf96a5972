"""Records the script's Python objects at the start of training. Snapshots contain only changes since then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from itertools import compress
from operator import is_, is_not
from typing import Any, NamedTuple

from torch import Tensor

from spotrun.checkpoint.slots import attributes_of
from spotrun.training.python_state.fingerprints import Budget, Unchanged, unchanged
from spotrun.training.python_state.graph import CONTAINERS, HOLDERS, LEAVES, Before, Node, Walk
from spotrun.training.python_state.library_state import LibraryModuleState
from spotrun.training.python_state.stateful_objects import GENERATORS
from spotrun.training.python_state.unchanged_cache import UnchangedCandidate, UnchangedObjects
from spotrun.training.python_state.values import is_scalar, same

STARTED = "started: "
"""
Prefix of an object's path. It marks an object that the script's hooks made after `Baseline.add`, but before the first
epoch began.
"""

LATE = "late: "
"""
Prefix of an object's path. It marks a part that the script added to the trained module during training. A resume makes
such a part before it loads the Python state.
"""


class _BaselineObject(NamedTuple):
    """
    An object with its parts, as it was when it was recorded. The reference in `node` keeps the object alive. Objects
    are looked up by `id`, and Python could give the `id` of a dead object to another one.
    """

    node: Node
    unchanged: Unchanged | None


class Change(NamedTuple):
    """
    A change of an object, as a snapshot saves it. If the parts of the object have names, `parts` are the changed parts,
    and `gone` are the names of the removed parts. For any other object, both are empty, and the snapshot saves its
    whole content.
    """

    parts: dict[str, Any]
    gone: tuple[str, ...] = ()


class Baseline:
    """
    The objects that existed at the start of training, by `id` and by path. A resumed process creates the same objects,
    so a path identifies the same object in both processes.
    """

    def __init__(self) -> None:
        self._known: dict[int, _BaselineObject] = {}
        self._paths: dict[int, tuple[str, object]] = {}
        self._by_path: dict[str, object] = {}
        self._tables: dict[int, object] = {}
        self._earlier: dict[int, Node] = {}
        self._budget = Budget()
        self._ignored: dict[int, object] = {}
        self._quiet: dict[int, LibraryModuleState] = {}
        self._registered: dict[int, object] = {}
        self._still = UnchangedObjects()
        self._changing: set[int] = set()
        """Large objects that were once found changed. From then on they are saved without a comparison."""

    def add(self, walk: Walk) -> None:
        """Add the objects of `walk` that the baseline lacks."""
        for key, node in walk.nodes.items():
            if key in self._known or key in self._ignored:
                continue
            self._known[key] = _BaselineObject(
                node, unchanged(node.value, self._budget) if _is_compared(node) else None
            )
            if node.is_closed:
                self._tables[key] = node.value
            elif node.kind in CONTAINERS or node.kind in LEAVES:
                self._earlier[key] = node
            self._name(node.path, node.value)
        for path, rest, value in walk.others.values():
            self._name(path + rest, value)
        self.settle(walk)

    def settle(self, walk: Walk) -> None:
        """
        Record the current state of the trained module: its tensors, and the plain attributes of those parts whose
        classes come from libraries.
        """
        for _, _, value in walk.others.values():
            if issubclass(type(value), Tensor):
                self._registered[id(value)] = value
        for module, names in walk.plain:
            self._quiet[id(module)] = LibraryModuleState.of(module, names)

    def weights(self) -> Iterator[Tensor]:
        """Yield the tensors of modules that have a path, so that a snapshot can refer to them."""
        return (one for one in self._registered.values() if isinstance(one, Tensor) and self.path_of(one) is not None)

    def add_started(self, walk: Walk) -> None:
        """
        Add the objects that the script's hooks have created since `add`. A resumed process creates these objects too.

        However, their content may differ there, because a hook may compute it from the weights. So snapshots always
        contain the full content of these objects, even if it has not changed. An exception is the structure of
        libraries' modules, which cannot depend on weights.
        """
        for node in walk.nodes.values():
            self._name(f"{STARTED}{node.path}", node.value)
        for key in walk.structure():
            self._known.setdefault(key, _BaselineObject(walk.nodes[key], None))
        for path, rest, value in walk.others.values():
            self._name(f"{STARTED}{path}{rest}", value)
        self._still = UnchangedObjects(self._resting())

    def _resting(self) -> Iterator[UnchangedCandidate]:
        """
        Yield the recorded objects that later walks can skip as long as they do not change. These are objects with a
        path: a snapshot refers to a skipped object by its path, and does not contain it.
        """
        for key, (node, compare) in self._known.items():
            if key in self._paths and key in self._earlier:
                yield UnchangedCandidate(node, node.has_same_parts if compare is None else partial(compare, False))

    def ignore(self, values: Iterable[object]) -> None:
        """
        Never record `values`. A restore has created these objects from a checkpoint. A process that starts without this
        checkpoint does not create them, so a snapshot must not refer to them by path.
        """
        self._ignored |= {id(value): value for value in values}

    def _name(self, path: str, value: object) -> None:
        if id(value) in self._paths or id(value) in self._ignored or issubclass(type(value), Enum):
            return
        self._paths[id(value)] = (path, value)
        self._by_path[path] = value

    def generators(self) -> dict[str, Any]:
        """Return the random number generators that existed when training began, by their paths."""
        found = (known.node for known in self._known.values())
        return {node.path: node.value for node in found if isinstance(node.value, GENERATORS)}

    def knows(self, value: object) -> bool:
        return id(value) in self._known

    def path_of(self, value: object) -> str | None:
        """Return the path at which `value` was recorded; None if it is new."""
        found = self._paths.get(id(value))
        return found[0] if found else None

    def at(self, path: str) -> object:
        """
        Return the object at `path`.

        Raises:
            KeyError: there was no object at `path`.
        """
        return self._by_path[path]

    def before(self, *, probe: bool) -> Before:
        """
        Return the results of earlier walks, so that the next walk can skip unchanged objects. With `probe`, long
        containers are compared item by item.
        """
        for key in list(self._tables):
            if not self._is_unchanged(key, probe=probe):
                del self._tables[key]
        return Before(self._quiet, self._registered, self._tables, self._earlier, self._still.now())

    def change_of(self, key: int, node: Node, *, probe: bool) -> Change | None:
        """Return how an object has changed; None if it was recorded and has not changed since."""
        known = self._known.get(key)
        if known is None:
            return Change(node.parts if node.kind in HOLDERS else {})
        if known.node is node and known.unchanged is None:
            return None
        if node.kind in HOLDERS:
            return _change(known.node.parts, node.parts, node.value)
        if known.unchanged is not None:
            return None if self._is_unchanged(key, probe=probe) else Change({})
        if node.kind in ("asked", "iterator"):
            return Change({})
        return None if _same_parts(known.node.parts, node.parts) else Change({})

    def plain_changes(self, walk: Walk) -> Iterator[tuple[Node, dict[str, Any]]]:
        """
        Yield those objects of `walk` with named parts whose plain values have changed, and the values that these parts
        had when the objects were recorded.
        """
        for key in walk.compared:
            node, known = walk.nodes[key], self._known.get(key)
            if known is None or known.node is node or node.kind not in HOLDERS:
                continue
            change, before = _change(known.node.parts, node.parts, node.value), known.node.parts
            plain = {
                name: before[name]
                for name, part in (change.parts.items() if change is not None else ())
                if name in before and is_scalar(part) and is_scalar(before[name])
            }
            if plain:
                yield node, plain

    def _is_unchanged(self, key: int, *, probe: bool) -> bool:
        compare = self._known[key].unchanged
        assert compare is not None
        if key in self._changing:
            return False
        if not compare(probe):
            self._changing.add(key)
            return False
        return True


def _is_compared(node: Node) -> bool:
    """
    Return True if the object is compared as a whole, such as an array or a long container, and False if its parts are
    compared one by one.
    """
    if node.kind in ("asked", "iterator"):
        return isinstance(node.value, GENERATORS)
    return node.kind not in HOLDERS and (node.kind not in CONTAINERS or node.is_closed)


def _change(before: dict[str, Any], now: dict[str, Any], holder: object) -> Change | None:
    """
    Return the change of the parts of `holder` from `before` to `now`; None if nothing has changed.

    A part that is missing in `now` counts as gone only if `holder` no longer has an attribute of that name. For
    example, an attribute of a library's module is a part only while its value is plain. If it gets another value, it is
    missing in `now`, but it still exists.
    """
    if len(before) == len(now) and all(map(is_, before, now)):
        others = compress(now, map(is_not, before.values(), now.values()))  # usually few
        parts = {name: now[name] for name in others if not same(before[name], now[name])}
        return Change(parts) if parts else None
    parts = {name: part for name, part in now.items() if name not in before or not same(before[name], part)}
    gone = tuple(name for name in before if name not in now)
    gone = tuple(name for name in gone if name not in attributes_of(holder)) if gone else ()
    return Change(parts, gone) if parts or gone else None


def _same_parts(before: list[Any], now: list[Any] | None) -> bool:
    return now is not None and len(before) == len(now) and all(map(same, before, now))
