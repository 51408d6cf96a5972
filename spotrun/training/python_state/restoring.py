"""
Restores the Python state that an image describes (see encoding.py).

Some objects are created whenever the script starts. A restore changes these in place, because other objects may refer
to them. Objects that the script created later do not exist in the new process, so the restore creates them:
containers, arrays, tensors, and instances of classes that exist in the script's modules. It never imports or calls
anything that an image names.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, Flag
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spotrun.checkpoint.plain_kinds import WHOLE_BITS_MAX
from spotrun.checkpoint.slots import has_attributes, set_attributes
from spotrun.errors import CheckpointDamaged
from spotrun.training.python_state import stateful_objects, values
from spotrun.training.python_state.arrays import array_of, fill_masked, new_masked
from spotrun.training.python_state.baseline import LATE, Baseline
from spotrun.training.python_state.copies import made_like
from spotrun.training.python_state.encoding import FACTORIES, FORMAT, METADATA
from spotrun.training.python_state.graph import CLOSURE, FLAGS, HOLDERS, Node, cells_of
from spotrun.training.python_state.kept_iterator import KeptIterator
from spotrun.training.python_state.script import Script, is_name_of_python

_CONTAINERS: dict[str, Any] = {
    "list": list, "set": set, "deque": deque, "bytearray": bytearray, "dict": dict, "OrderedDict": OrderedDict,
    "Counter": Counter, "defaultdict": defaultdict,
}  # fmt: skip
_BAGS = {
    "types:SimpleNamespace": SimpleNamespace,
    "argparse:Namespace": argparse.Namespace,
    "_thread:_local": threading.local,
}
_ARRAYS = {"array": np.ndarray, "mapped": np.memmap, "masked": np.ma.MaskedArray}
_MALFORMED = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SystemError, TypeError, ValueError,
)  # fmt: skip
"""Errors that a malformed image causes. Any other error is one of the script's methods."""
_BUILT = ("tuple", "frozenset", "namedtuple")
"""Kinds of objects that cannot be filled later. So they are created only once all of their parts exist."""
_HASHING = ("set", "dict", "OrderedDict", "Counter", "defaultdict")
"""
Kinds of objects that are filled after all others. An object of these kinds hashes its parts when it is filled. This
calls methods of the parts, so the parts must be complete.
"""


Changed = tuple[Node, dict[str, Any]]
"""An object, and earlier values of some of its parts."""


class _Missing(Exception):
    """Raised if an object can be neither found nor created in this process."""


class Restorer:
    """
    Restores one image. After the restore, the attribute `lost` contains the paths of the values that could not be
    restored, because this process has no object for them.

    The argument `late` contains the current parts of the trained module, by their paths.
    """

    def __init__(
        self, script: Script, baseline: Baseline, image: dict[str, Any], late: Mapping[str, object] | None = None
    ) -> None:
        if image.get("format") != FORMAT:
            raise CheckpointDamaged(f"the checkpoint's Python state has an unknown format: {image.get('format')!r}")
        self._script = script
        self._baseline = baseline
        self._late = late or {}
        self._objects: list[tuple[str, str, bool, Any]] = image["objects"]
        self._made: list[Any] = []
        self._missing: set[int] = set()
        self._gone: set[int] = set()
        self._refs: set[int] = set()
        self._anew: set[int] = set()
        """Numbers of the instances of the script's classes that the restore has made."""
        self.lost: list[str] = []
        self.new: list[Any] = []

    def load(self, changed: Iterable[Changed] = ()) -> None:
        """
        Restore the image. `changed` has objects whose plain values the script has changed in this process, and the
        values that they had. Where the image lacks such a value, it is put back.

        Raises:
            CheckpointDamaged: the image is malformed.
        """
        try:
            self._undo(changed)
            self._load()
        except _MALFORMED as error:
            raise CheckpointDamaged(f"the checkpoint's Python state is malformed: {error!r}") from error

    def _undo(self, changed: Iterable[Changed]) -> None:
        """
        Put back plain values that the image lacks, because they were as at the beginning at the snapshot. The code at
        the beginning of an epoch, which a resume repeats, may set them, and the epoch may change them back.
        """
        saved = {path: content["parts"] for kind, path, known, content in self._objects if known and kind in HOLDERS}
        for node, before in changed:
            owner = node.value if node.kind in ("class", "function") else type(node.value)
            if node.kind == "module" or self._script.owns(owner):
                kept = saved.get(self._baseline.path_of(node.value) or "", {})
                _fill_holder(node.kind, node.value, {n: v for n, v in before.items() if n not in kept}, ())

    def _load(self) -> None:
        for number, (kind, path, known, content) in enumerate(self._objects):
            self._made.append(self._place(number, kind, path, known, content))
        contents = self._contents()
        for number in sorted(contents, key=lambda number: self._rank(number)):
            if number not in self._missing:
                kind, _, _, content = self._objects[number]
                self._fill(kind, self._made[number], content, contents[number])
        self.lost += [self._objects[n][1] for n in sorted(self._missing | self._gone) if n not in self._refs]

    def _rank(self, number: int) -> int:
        kind = self._objects[number][0]
        return 0 if kind in HOLDERS else 2 if kind in _HASHING else 3 if kind == "asked" else 1

    # --- where each object is

    def _place(self, number: int, kind: str, path: str, known: bool, content: Any) -> Any:
        """
        Find or create the object for entry `number` of the image, and return it. Its content is restored later. Return
        None for an immutable container, which is created only once its parts exist. Also return None if this process
        cannot create the object.
        """
        if kind in _BUILT:
            return None
        if known:
            try:
                standing = self._late[path] if path.startswith(LATE) else self._baseline.at(path)
            except KeyError:
                standing = None
            if standing is not None and self._fits(kind, standing, content):
                return standing
            self._gone.add(number)
        try:
            made = self._make(kind, content)
        except _Missing:
            self._missing.add(number)
            return None
        self.new.append(made)
        if kind == "object":
            self._anew.add(number)
        return made

    def _fits(self, kind: str, standing: Any, content: Any) -> bool:
        if kind in HOLDERS:
            return self._is_holder(kind, standing, content["class"])
        if kind == "deque":
            return isinstance(standing, deque) and standing.maxlen == content[0]
        if kind in _ARRAYS:
            return type(standing) is _ARRAYS[kind] and _is_array(standing, *content[1:3])
        if kind == "tensor":
            return _is_tensor(standing, content)
        if kind == "iterator":
            return type(standing) is KeptIterator
        if kind == "asked":
            return stateful_objects.is_asked(type(standing)) and type(standing).__name__ == content[0]
        return isinstance(standing, _CONTAINERS[kind])

    def _is_holder(self, kind: str, standing: Any, name: str) -> bool:
        if self._script.class_name(type(standing)) != name:
            return False
        match kind:
            case "class":
                return isinstance(standing, type)
            case "function":
                return isinstance(standing, FunctionType)
            case "module":
                return isinstance(standing, ModuleType)
            case "bag":
                return True
        return has_attributes(type(standing))

    def _make(self, kind: str, content: Any) -> Any:
        match kind:
            case "array":
                return array_of(*content)
            case "masked":
                return new_masked(*content[:3])
            case "tensor":
                return _new_tensor(*content)
            case "deque":
                return deque(maxlen=content[0])
            case "defaultdict":
                return defaultdict(self._value(content[0]))
            case "bag":
                return _BAGS[content["class"]]()
            case "object":
                return self._instance(content)
            case "iterator":
                return KeptIterator(self._loader(content[0]), *content[1:])
            case "copy":
                return self._copy(content)
            case "weight":
                return self._weight(content)
        if kind not in _CONTAINERS:
            raise _Missing
        return _CONTAINERS[kind]()

    def _loader(self, encoded: Any) -> Any:
        """Return the loader of an iterator. If it was made during training, make one like it, over the same dataset."""
        kind, *content = encoded
        return DataLoader(self._value(content[0]), **content[1]) if kind == "loader" else self._value(encoded)

    def _weight(self, encoded: Any) -> Tensor:
        """Return a tensor that shares its memory with a weight."""
        weight = self._value(encoded)
        if not isinstance(weight, Tensor):
            raise _Missing
        return weight.detach()

    def _instance(self, content: dict[str, Any]) -> Any:
        cls = self._class(content["class"], content.get("at"))
        if not content["whole"] or not self._script.can_make(cls):
            raise _Missing
        return object.__new__(cls)

    def _class(self, name: str, path: str | None) -> type:
        """
        Return the script's class of this name; if `path` is not None, the one at that path, which has the name too.

        Raises:
            _Missing: there is none.
        """
        cls: object = self._script.find(name) if path is None else self._value(("at", path))
        if not isinstance(cls, type) or self._script.class_name(cls) != name or not self._script.owns(cls):
            raise _Missing
        return cls

    def _copy(self, content: dict[str, Any]) -> nn.Module:
        part = self._late.get(f"{LATE}module.{content['like']}")
        if not isinstance(part, nn.Module):
            raise _Missing
        try:
            return made_like(part, content)
        except (KeyError, ValueError, RuntimeError):
            raise _Missing from None

    # --- contents

    def _contents(self) -> dict[int, Any]:
        """
        Return the parts of each object, by the object's number, without restoring any of them yet. If one part of a
        container is missing, the container counts as missing too.
        """
        holders = {n: item for n, item in enumerate(self._objects) if item[0] in HOLDERS}
        others = {n: item for n, item in enumerate(self._objects) if item[0] not in HOLDERS and item[0] not in _BUILT}
        built = [n for n, item in enumerate(self._objects) if item[0] in _BUILT]
        contents: dict[int, Any] = {}
        before = -1
        while before != len(self._missing):  # even an object that exists in this process may have a missing part
            before = len(self._missing)
            for number, (kind, _, _, content) in others.items():
                if number not in self._missing:
                    try:
                        contents[number] = self._parts(kind, content)
                    except _Missing:
                        self._missing.add(number)
            self._missing |= {number for number in self._anew - self._missing if self._lacks_a_part(number)}
            for number in built:
                self._made[number] = None  # to be built again: a part may be missing by now
        for number, (_, path, _, content) in holders.items():
            if number not in self._missing:
                contents[number] = dict(self._parts_of_holder(path, content))
        return contents

    def _lacks_a_part(self, number: int) -> bool:
        """
        Return True if object `number` must not be created, because one of its parts is missing. This applies only to
        new instances of the script's classes, which the script's own code could not have created without that part. An
        existing instance is restored without the missing part.
        """
        try:
            for encoded in self._objects[number][3]["parts"].values():
                self._value(encoded)
        except _Missing:
            return True
        return False

    def _parts(self, kind: str, content: Any) -> Any:
        match kind:
            case "array" | "mapped" | "masked" | "tensor" | "copy" | "weight":
                return None
            case "bytearray":
                return content
            case "asked":
                return content[1]
            case "iterator":
                return (self._loader(content[0]), *content[1:])
            case "deque" | "defaultdict":
                return self._items(content[1])
            case "OrderedDict" if type(content) is tuple:
                return self._items(content[0])
        return self._items(content)

    def _items(self, encoded: Any) -> list[Any]:
        if isinstance(encoded, Tensor):
            numbers: list[Any] = encoded.tolist()
            return numbers
        return [self._value(item) for item in encoded]

    def _parts_of_holder(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, encoded in content["parts"].items():
            try:
                yield name, self._value(encoded)
            except _Missing:
                self.lost.append(f"{path}.{name}")

    def _value(self, encoded: Any) -> Any:
        if type(encoded) is not tuple:
            return encoded
        kind, *content = encoded
        match kind:
            case "ref":
                return self._referred(content[0])
            case "at":
                try:
                    return self._baseline.at(content[0])
                except KeyError:
                    raise _Missing from None
            case "factory":
                return FACTORIES[content[0]]
            case "enum":
                return _member(*content)
            case "flag":
                return _flag(*content)
        return values.decode(encoded)

    def _referred(self, number: int) -> Any:
        self._refs.add(number)
        if number in self._missing:
            raise _Missing
        kind, _, _, content = self._objects[number]
        if kind in _BUILT and self._made[number] is None:
            self._made[number] = self._build(kind, content)
            self.new.append(self._made[number])
        return self._made[number]

    def _build(self, kind: str, content: Any) -> Any:
        if kind != "namedtuple":
            return (tuple if kind == "tuple" else frozenset)(self._items(content))
        name, items, *path = content  # images of earlier versions have no path
        cls = self._class(name, path[0] if path else None)
        if not issubclass(cls, tuple):
            raise _Missing
        return tuple.__new__(cls, self._items(items))

    # --- filling

    def _fill(self, kind: str, value: Any, content: Any, parts: Any) -> None:
        match kind:
            case "list":
                list.__setitem__(value, slice(None), parts)
            case "bytearray":
                value[:] = parts
            case "deque":
                deque.clear(value)
                deque.extend(value, parts)
            case "set":
                set.clear(value)
                set.update(value, parts)
            case "dict" | "OrderedDict" | "Counter" | "defaultdict":
                base = OrderedDict if kind == "OrderedDict" else dict
                base.clear(value)
                for key, part in zip(parts[::2], parts[1::2], strict=True):
                    base.__setitem__(value, key, part)
                if type(content) is tuple and kind == "OrderedDict":
                    vars(value)[METADATA] = OrderedDict(content[1])
            case "array" | "mapped":
                value[...] = array_of(*content)
            case "masked":
                fill_masked(value, content)
            case "tensor":
                _fill_tensor(value, *content)
            case "asked":
                stateful_objects.load(value, parts)
            case "iterator":
                value.move(*parts)
            case "copy" | "weight":
                pass  # made with its content
            case _:
                _fill_holder(kind, value, parts, content["gone"])


def _fill_holder(kind: str, holder: Any, parts: dict[str, Any], gone: tuple[str, ...]) -> None:
    """Restore an object's attributes without calling its class's `__setattr__`, which may be the script's code."""
    if kind == "nn":
        _set_flags(holder, parts.pop(FLAGS, ()))
        _set_on_parameters(holder, {name: parts.pop(name) for name in list(parts) if "." in name}, gone)
    own = {name: part for name, part in parts.items() if not is_name_of_python(name)}
    if kind == "class":
        for name, part in own.items():
            type.__setattr__(holder, name, part)
        for name in gone:
            if name in vars(holder):
                type.__delattr__(holder, name)
        return
    if kind == "function":
        for name, cell in cells_of(holder).items():
            if f"{CLOSURE}{name}" in own:
                cell.cell_contents = own.pop(f"{CLOSURE}{name}")
    set_attributes(holder, own, gone)


def _set_on_parameters(module: nn.Module, parts: dict[str, Any], gone: tuple[str, ...]) -> None:
    """Restore the attributes of a module's parameters, which have names such as `weight.ema`."""
    for path in (*parts, *gone):
        name, dot, attribute = path.partition(".")
        parameter = module._parameters.get(name)
        if not dot or parameter is None or is_name_of_python(attribute):
            continue
        if path in parts:
            vars(parameter)[attribute] = parts[path]
        else:
            vars(parameter).pop(attribute, None)


def _set_flags(module: nn.Module, flags: tuple[tuple[str, bool], ...]) -> None:
    for name, flag in flags:
        parameter = module._parameters.get(name)
        if parameter is not None and parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


def _is_array(standing: Any, dtype: str, shape: tuple[int, ...]) -> bool:
    alike: bool = standing.dtype == np.dtype(dtype) and standing.shape == tuple(shape)
    return alike and standing.flags.writeable


def _is_tensor(standing: Any, content: Any) -> bool:
    saved, device, _, is_parameter, *_ = content
    return (
        type(standing) is (nn.Parameter if is_parameter else Tensor)
        and standing.shape == saved.shape
        and standing.dtype == saved.dtype
        and str(standing.device) == device
        and not standing.is_inference()
        and (0 not in standing.stride() or standing.numel() <= 1)
    )


def _new_tensor(
    saved: Tensor, device: str, requires_grad: bool, is_parameter: bool, grad: Tensor | None = None
) -> Tensor:
    tensor = saved.to(device, copy=True)
    if is_parameter:
        tensor = nn.Parameter(tensor, requires_grad)
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.requires_grad_(requires_grad)
    if grad is not None:
        tensor.grad = grad.to(device, copy=True)
    return tensor


@torch.no_grad()
def _fill_tensor(
    tensor: Tensor, saved: Tensor, device: str, requires_grad: bool, _is_parameter: bool, grad: Tensor | None = None
) -> None:
    tensor.copy_(saved)
    if not tensor.is_leaf:
        return
    if tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)
    if tensor.grad is not None or grad is not None:
        tensor.grad = None if grad is None else grad.to(device, copy=True)


def _member(name: str, member: str) -> Enum:
    found = _enum(name)
    if member not in found.__dict__["_member_map_"]:
        raise _Missing
    value: Enum = found.__dict__["_member_map_"][member]
    return value


def _flag(name: str, number: int) -> Flag:
    """
    Return the flag with this number. It may be a combination of several members, which has no name, and which Python
    creates only when it is first used.
    """
    found = _enum(name)
    if Flag not in found.__mro__:
        raise _Missing
    if number.bit_length() > WHOLE_BITS_MAX:  # Python visits each bit, and copies the number for it
        raise ValueError("a flag with too many bits")
    known: Flag | None = found.__dict__["_value2member_map_"].get(number)
    return Flag.__dict__["_missing_"].__func__(found, number) if known is None else known


def _enum(name: str) -> type:
    """
    Return the enum class `name` (`module:class`) without importing anything.

    Raises:
        _Missing: this process does not have the class.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if not isinstance(found, type) or Enum not in found.__mro__:
        raise _Missing
    return found
