"""
Compares many small objects at once with their earlier content. The walk over a script's objects that each snapshot
makes can then skip the unchanged ones, which are most of them.

Once an object has changed, it is removed from this cache for good, together with all objects that contain it. From then
on, each walk compares these objects one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain, groupby
from operator import attrgetter, is_, methodcaller
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from spotrun.training.python_state.arrays import is_dense, memory_of
from spotrun.training.python_state.graph import MAPPINGS, SEQUENCES, Node
from spotrun.training.python_state.values import is_scalar

BLOCK = 64
"""
Number of objects that are compared together. If this comparison finds a change, the objects are compared one by one.
"""
SMALL_BYTES = 4096
SMALL_ITEMS = 1000

Look: TypeAlias = Callable[[], tuple[list[Any], list[Any]]]
"""
A function that reads several objects and returns two lists. The first contains values to compare with `==`, the second
contains objects to compare by identity. If one of the objects has changed, one of the lists differs from that of an
earlier call.
"""


class UnchangedCandidate(NamedTuple):
    """An object that an earlier walk found, and a function that tests whether it is unchanged."""

    node: Node
    rests: Callable[[], bool]


class UnchangedObjects:
    """The small objects of an earlier walk that have not changed, and that contain no changed object."""

    def __init__(self, found: Iterable[UnchangedCandidate] = ()) -> None:
        self._blocks = [block for kind, each in _by_kind(found) for block in _blocks(kind, each)]
        self._keys = self._that_hold_no_others()

    def now(self) -> Set[int]:
        """Return the `id` of each unchanged object. An object that has changed once is never returned again."""
        if all(block.rests() for block in self._blocks):
            return self._keys
        self._blocks = [block if block.rests() else block.without_changed() for block in self._blocks]
        self._keys = self._that_hold_no_others()
        return self._keys

    def _that_hold_no_others(self) -> Set[int]:
        left = {id(each.node.value): each.node for block in self._blocks for each in block.objects}
        while moved := [key for key, node in left.items() if not left.keys() >= _inside(node)]:
            for key in moved:
                del left[key]
        return left.keys()


class _Block:
    def __init__(self, kind: str, objects: list[UnchangedCandidate]) -> None:
        self.objects = objects
        self._kind = kind
        self._look = _LOOKS[kind]([each.node.value for each in objects])
        self._values, self._same = self._look()

    def rests(self) -> bool:
        try:
            values, same = self._look()
        except (BufferError, ValueError, RuntimeError):  # an array got another order, or a tensor lost its memory
            return False
        return len(same) == len(self._same) and all(map(is_, same, self._same)) and values == self._values

    def without_changed(self) -> _Block:
        return _Block(self._kind, [each for each in self.objects if each.rests()])


def _by_kind(found: Iterable[UnchangedCandidate]) -> Iterator[tuple[str, list[UnchangedCandidate]]]:
    small = [(kind, each) for each in found if (kind := _kind_of_small(each.node)) and each.rests()]
    for kind, group in groupby(sorted(small, key=lambda one: one[0]), key=lambda one: one[0]):
        yield kind, [each for _, each in group]


def _blocks(kind: str, objects: list[UnchangedCandidate]) -> Iterator[_Block]:
    for start in range(0, len(objects), BLOCK):
        yield _Block(kind, objects[start : start + BLOCK])


def _kind_of_small(node: Node) -> str:
    """
    Return the name of the group of small objects with which `node` can be compared; "" if it has to be compared alone.
    """
    value, cls = node.value, type(node.value)
    if cls in SEQUENCES or cls in MAPPINGS:
        if node.parts is None or len(node.parts) > SMALL_ITEMS:
            return ""
        return "sequences" if cls in SEQUENCES else "mappings"
    if node.kind == "array":
        return (
            "arrays" if value.nbytes <= SMALL_BYTES and value.flags.c_contiguous and not value.dtype.hasobject else ""
        )
    return "tensors" if node.kind == "tensor" and _is_small_tensor(value) else ""


def _is_small_tensor(tensor: Tensor) -> bool:
    known = is_dense(tensor) and tensor.is_cpu and not tensor.is_inference()
    return known and tensor.nbytes <= SMALL_BYTES and tensor.is_contiguous()


def _inside(node: Node) -> set[int]:
    """Return the keys of the mutable objects inside `node`."""
    return {id(part) for part, _ in node.inner if not is_scalar(part)}


def _look_at_sequences(values: list[Any]) -> Look:
    return lambda: (list(map(len, values)), list(chain.from_iterable(values)))


def _look_at_mappings(values: list[Any]) -> Look:
    def look() -> tuple[list[Any], list[Any]]:
        parts = chain(chain.from_iterable(values), chain.from_iterable(map(dict.values, values)))
        return list(map(len, values)), list(parts)

    return look


def _look_at_arrays(values: list[Any]) -> Look:
    return lambda: ([b"".join(values), *map(_shape, values)], list(map(_dtype, values)))


def _look_at_tensors(values: list[Any]) -> Look:
    """
    Return a function that reads the bytes of the tensors through views of their memory. The views are created here,
    once, because creating a view takes longer than comparing the bytes.
    """
    memories: list[Any] = [memory_of(value.detach()) for value in values]

    def look() -> tuple[list[Any], list[Any]]:
        facts = chain(map(_address, values), map(_version, values), map(_shape, values), map(_is_contiguous, values))
        return [b"".join(memories), *facts], []

    return look


_LOOKS: dict[str, Callable[[list[Any]], Look]] = {
    "sequences": _look_at_sequences,
    "mappings": _look_at_mappings,
    "arrays": _look_at_arrays,
    "tensors": _look_at_tensors,
}
_shape, _dtype, _version = attrgetter("shape"), attrgetter("dtype"), attrgetter("_version")
_address, _is_contiguous = methodcaller("data_ptr"), methodcaller("is_contiguous")
