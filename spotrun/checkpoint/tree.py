"""
Encodes the state of a checkpoint, without its tensors, as JSON.

Null, booleans, numbers, strings and lists are encoded as in JSON. Every other value becomes an object with one key, the
value's kind (`{"tuple": […]}`). Decoding is safe: it builds only plain containers and numbers, and never looks up a
class or a function that the encoded bytes name. It takes about as much memory and time as there are encoded bytes.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path as ConcretePath
from pathlib import PurePath
from typing import Any

from spotrun.checkpoint import plain_kinds
from spotrun.checkpoint.plain_kinds import KINDS, Unnamed, filled_mapping, filled_set
from spotrun.errors import CheckpointDamaged

DEPTH_MAX = 200
_INT_PLAIN_MAX = 1 << 62

Path = tuple[object, ...]
Json = Any


class Unsavable(Exception):
    """
    Raised for a value that an image cannot hold. The message names the value's path in the state, such as
    `callbacks.MyCallback.handle`.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.where = ".".join(map(str, path)) or "the state"
        self.what = what
        super().__init__(f"{self.where} is {what}")


_OF_TENSORS = frozenset({"tensor", "permuted", "array", "scalar"})
"""Kinds whose content is a tensor's number in the image, or a list that begins with such a number."""
_AS_IT_IS = frozenset({type(None), bool, str})
_OF_TORCH = frozenset({"torch", "torch.nn.parameter"})
EncodeOther = Callable[[Any, Path], Json]
"""Encodes a value that `encode_tree` does not support, such as a tensor, or raises Unsavable."""
DecodeOther = Callable[[str, Json, int], Any]
"""
Decodes the content of a kind that `decode_tree` does not support, at this depth, or raises CheckpointDamaged.
"""
MALFORMED = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, SystemError, TypeError,
    ValueError, Unnamed,
)  # fmt: skip
"""Errors that a malformed value may cause."""


def encode_tree(value: Any, encode_other: EncodeOther, path: Path = ()) -> Json:
    """
    Return `value` as JSON. An instance of a subclass of a plain type, such as dict, is encoded as the plain type. Only
    enum members and named tuples keep their class.

    Raises:
        Unsavable: `value` contains something that an image cannot hold. The error names the first such part.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        return _encode_int(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if len(path) > DEPTH_MAX:
        raise Unsavable(path[:5], f"nested more than {DEPTH_MAX} levels deep")
    if kind.__module__ in _OF_TORCH:
        return encode_other(value, path)  # first, because nearly all values are of these types
    if kind in KINDS:
        return _encode_kind(value, encode_other, path)
    if kind is dict or isinstance(value, Mapping):
        return _encode_mapping(value, encode_other, path)
    if kind is list:
        return [encode_tree(item, encode_other, (*path, n)) for n, item in enumerate(value)]
    return _encode_rarer(value, encode_other, path)


def _encode_kind(value: Any, encode_other: EncodeOther, path: Path) -> Json:
    kind = KINDS[type(value)]
    try:
        parts = kind.parts(value)
        kind.check(parts)
    except Unnamed as problem:
        raise Unsavable(path, str(problem)) from None
    return {kind.name: [encode_tree(part, encode_other, path) for part in parts]}


def _encode_rarer(value: Any, encode_other: EncodeOther, path: Path) -> Json:
    if isinstance(value, Enum) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return encode_other(value, path)
    if isinstance(value, bool | str | int) and type(value).__module__ != "numpy":
        return _encode_int(int(value)) if isinstance(value, int) else str.__str__(value)
    if isinstance(value, float) and type(value).__module__ != "numpy":
        return encode_tree(float(value), encode_other, path)
    if type(value) is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if type(value).__module__.partition(".")[0] in ("torch", "numpy"):  # torch.Size is a tuple
        return encode_other(value, path)
    if isinstance(value, list | tuple | AbstractSet):
        # A set is encoded in its iteration order. A resume adds the items in this order, so the new set usually has
        # the same iteration order.
        encoded = [encode_tree(item, encode_other, (*path, n)) for n, item in enumerate(value)]
        return encoded if isinstance(value, list) else {_sequence_kind(value): encoded}
    return encode_other(value, path)


def _sequence_kind(value: Any) -> str:
    return "tuple" if isinstance(value, tuple) else "frozenset" if isinstance(value, frozenset) else "set"


def _encode_int(value: int) -> Json:
    return value if abs(value) < _INT_PLAIN_MAX else {"int": hex(value)}


def _encode_mapping(value: Mapping[Any, Any], encode_other: EncodeOther, path: Path) -> Json:
    kind = "counter" if isinstance(value, Counter) else "ordered" if isinstance(value, OrderedDict) else "dict"
    return {
        kind: [
            [
                key if type(key) is str else encode_tree(key, encode_other, (*path, "a key")),
                encode_tree(item, encode_other, (*path, key)),
            ]
            for key, item in value.items()
        ]
    }


def decode_tree(node: Json, decode_other: DecodeOther, depth: int = 0) -> Any:
    """
    Decode a state from the JSON that `encode_tree` returned.

    Raises:
        CheckpointDamaged: `node` is malformed.
    """
    if depth > DEPTH_MAX + 2:
        raise CheckpointDamaged(f"the checkpoint's state is nested more than {DEPTH_MAX} levels deep")
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is list:
        return [decode_tree(item, decode_other, depth + 1) for item in node]
    if type(node) is not dict or len(node) != 1:
        raise CheckpointDamaged("the checkpoint's state contains a value of an unknown kind")
    [(kind, content)] = node.items()
    try:
        if kind in MAPPINGS:
            return filled_mapping(MAPPINGS[kind](), _decode_items(content, decode_other, depth + 1))
        if kind in _SEQUENCES:
            return _SEQUENCES[kind]([decode_tree(item, decode_other, depth + 1) for item in _listed(content)])
        if kind in _SCALARS:
            return _SCALARS[kind](content)
        if kind in plain_kinds.BY_NAME:
            # as deep as their value, because `encode_tree` counts like this
            parts = [decode_tree(part, decode_other, depth) for part in _listed(content)]
            plain_kinds.BY_NAME[kind].check(parts)
            return plain_kinds.BY_NAME[kind].make(*parts)
        return decode_other(kind, content, depth)
    except MALFORMED as error:
        raise CheckpointDamaged(f"the checkpoint's state holds a malformed value of kind {kind[:40]!r}") from error


def _decode_items(content: Json, decode_other: DecodeOther, depth: int) -> list[tuple[Any, Any]]:
    items = []
    for pair in _listed(content):
        key, item = _listed(pair)
        items.append((decode_tree(key, decode_other, depth), decode_tree(item, decode_other, depth)))
    return items


def _listed(content: Json) -> list[Json]:
    if type(content) is not list:
        raise TypeError("not a list")
    return content


def _text(content: Json) -> str:
    if type(content) is not str:
        raise TypeError("not a text")
    return content


def _decode_float(content: Json) -> float:
    value = float(_text(content))
    if math.isfinite(value):
        raise ValueError("a finite float stands for itself")
    return value


def _frozen(items: list[Any]) -> frozenset[Any]:
    filled_set(items)
    return frozenset(items)  # of the set its items would come in another order


MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": filled_set, "frozenset": _frozen}
_SCALARS: dict[str, Callable[[Json], Any]] = {
    "float": _decode_float,
    "int": lambda content: int(_text(content), 16),
    "complex": lambda content: complex(*(float(_text(part)) for part in _listed(content))),
    "bytes": lambda content: base64.b64decode(_text(content), validate=True),
    "path": lambda content: ConcretePath(_text(content)),
}


def tensors_in(node: Json) -> Iterator[int]:
    """Yield the numbers of the tensors in `node`, in the order in which they occur."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            waiting += reversed(node)
        elif type(node) is dict:
            for kind, content in node.items():
                if kind in _OF_TENSORS:
                    number = content[0] if type(content) is list and content else content
                    if type(number) is int and number >= 0:
                        yield number
                else:
                    waiting.append(content)
