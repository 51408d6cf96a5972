"""
Encodes the changes to a script's Python state for a checkpoint. The result is called an image.

An image is a list of objects. An object that existed when training began is listed with its path. The resumed process
has the same object at this path, so the restore only sets its content. An object that was created later does not exist
in the resumed process, so the restore creates it. A value refers to an object by the object's number in the list, or by
its path. This preserves shared objects and cycles. A value that cannot be encoded is left out and reported.
"""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from enum import Enum, Flag
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import memory_key
from spotrun.training.python_state import stateful_objects
from spotrun.training.python_state.arrays import bytes_of, content_of_masked, is_storable, packed_numbers
from spotrun.training.python_state.baseline import LATE, Baseline, Change
from spotrun.training.python_state.copies import Copies, content_of
from spotrun.training.python_state.graph import CONTAINERS, HOLDERS, MAPPINGS, SEQUENCES, Node, Walk
from spotrun.training.python_state.kept_iterator import KeptIterator, options_of
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.values import Encoded, NotPlain, encode, is_scalar, name_of

FORMAT = 1
BYTES_MAX = 8 << 30
"""Maximum bytes of all tensors and arrays in an image together."""
PACKED_FROM = 64
"""Minimum length of a list of numbers of one type that is stored as a tensor."""
FACTORIES = {kind.__name__: kind for kind in (bool, int, float, str, tuple, list, dict, set)}
METADATA = "_metadata"
"""Attribute in which torch keeps the versions of the modules' formats in the result of `state_dict()`."""
_EXACT = {**SEQUENCES, **MAPPINGS}


HARMLESS = (
    "_thread.", "threading.", "_threading_local.", "logging.", "tqdm.", "rich.", "lightning.", "lightning_fabric.",
    "lightning_utilities.", "pytorch_lightning.", "tensorboard.", "tensorboardX.", "torch.utils.tensorboard.",
    "torch.profiler.", "wandb.", "mlflow.", "matplotlib.", "spotrun.", "accelerate.",
)  # fmt: skip
"""
Packages and modules, each with a dot at the end, whose objects are not reported if spotrun cannot save them. Most of
these objects, such as locks, logs, progress bars and pictures, have no influence on a training step. Others have a
state that matters, but their package saves it itself.
"""


HOLDS = "it holds "


def _is_harmless(value: object) -> bool:
    """Return True if a resume may lose `value`: an object of HARMLESS, or a file that is closed."""
    cls = type(value)
    if issubclass(cls, io.IOBase):
        return bool(cast(io.IOBase, value).closed)
    return f"{cls.__module__}.".startswith(HARMLESS)


NewFunctions = dict[CodeType, tuple[FunctionType | None, bool]]
"""The newest function of each code, and whether there was another one before it."""


class UntrackedChange(NamedTuple):
    """
    A change that a resume would lose: the path of the changed object, and a description of its value. `saved` says why
    it would be lost. If False, no checkpoint contains the change. If True, the checkpoint contains it, but the resumed
    process has no object at that path.
    """

    path: str
    what: str
    saved: bool = False

    def of(self, path: str) -> UntrackedChange:
        """
        Return the change as one of the container at `path`. The items of a container come and go, so naming them would
        report the same container again and again.
        """
        if path == self.path:
            return self
        return UntrackedChange(path, self.what if self.what.startswith(HOLDS) else f"{HOLDS}{self.what}", self.saved)

    def __str__(self) -> str:
        if self.saved:
            return f"{self.path} cannot be restored, because {self.what}"
        return f"{self.path} has changed and is in no checkpoint: {self.what}"


class Encoder:
    """
    Makes an image of all objects of `walk` that differ from `baseline`. Afterwards `lost` has the changes that the
    image does not contain. `functions` are the new functions that earlier images have met; the image adds its own.
    """

    def __init__(
        self,
        script: Script,
        baseline: Baseline,
        walk: Walk,
        copies: Copies,
        functions: NewFunctions,
        *,
        probe: bool,
    ) -> None:
        self._script = script
        self._baseline = baseline
        self._walk = walk
        self._copies = copies
        self._left_bytes = BYTES_MAX
        self._states: dict[int, tuple[str, Encoded]] = {}
        self._dead: dict[int, UntrackedChange] = {}
        self._numbers: dict[int, int] = {}
        self._weights: dict[object, Tensor] | None = None
        self._waiting: deque[int] = deque()
        self.lost: list[UntrackedChange] = []
        self._functions = functions
        self._changes: dict[int, Change] = {}
        for key in walk.compared:
            if (change := baseline.change_of(key, walk.nodes[key], probe=probe)) is not None:
                self._changes[key] = change

    def image(self) -> dict[str, Any]:
        self._find_dead()
        for key in self._changes:
            node = self._walk.nodes[key]
            if self._is_carried_for_itself(key, node):
                if key in self._dead:
                    self.lost.append(self._dead[key].of(node.path))
                else:
                    self._number(key)
        objects = []
        while self._waiting:
            objects.append(self._object(self._walk.nodes[self._waiting.popleft()]))
        return {"format": FORMAT, "objects": objects}

    def _is_carried_for_itself(self, key: int, node: Node) -> bool:
        """Return True if the image has to contain this changed object even if no other changed object refers to it."""
        if self._baseline.knows(node.value) or key in self._walk.trained_parts:
            return True
        return node.kind in ("nn", "tensor") and self._baseline.path_of(node.value) is not None

    # --- values without an encoding

    def _find_dead(self) -> None:
        """
        Find the containers that cannot be saved. A container is saved completely or not at all. So if one of its items
        cannot be saved, neither can the container, nor any larger container around it that did not exist when training
        began.
        """
        held_by: dict[int, list[int]] = {}
        for key in self._changes:
            node = self._walk.nodes[key]
            if node.kind in HOLDERS:
                continue
            if (lost := self._lost_in(node)) is not None:
                self._dead[key] = lost
            for part in node.parts or ():
                held_by.setdefault(id(part), []).append(key)
        waiting = list(self._dead)
        while waiting:
            dead = waiting.pop()
            if self._baseline.knows(self._walk.nodes[dead].value):
                continue  # the containers that hold this object refer to it by its path
            for holder in held_by.get(dead, ()):
                if holder not in self._dead:
                    self._dead[holder] = self._dead[dead]
                    waiting.append(holder)

    def _lost_in(self, node: Node) -> UntrackedChange | None:
        """
        Return the reason why this object cannot be saved, or None if it can. Only the object and its direct parts are
        checked.
        """
        value = node.value
        if node.is_closed:
            return UntrackedChange(node.path, f"a {name_of(value)} of {len(value)} items")
        if isinstance(value, Tensor | np.ndarray):
            return self._lost_array(node, value)
        if node.kind == "asked":
            return self._lost_state(node)
        if node.kind == "iterator":
            return self._lost_iterator(node)
        if not self._baseline.knows(value) and not self._can_be_made(node):
            return UntrackedChange(node.path, name_of(value))
        return next((lost for part in node.parts or () if (lost := self._lost_value(node, part))), None)

    def _lost_value(self, node: Node, value: Any) -> UntrackedChange | None:
        if self._baseline.path_of(value) is not None:
            return None
        if (found := self._walk.nodes.get(id(value))) is not None:
            can_be = (found.kind not in HOLDERS and found.kind != "asked") or id(value) in self._walk.trained_parts
            can_be = can_be or self._can_be_made_anew(found) or self._part_like(found) is not None
            return None if can_be else UntrackedChange(found.path, f"a new {name_of(value)}")
        try:
            self._plain(value)
        except NotPlain:
            return UntrackedChange(
                node.path, f"{HOLDS}a {name_of(value)}" if node.kind in CONTAINERS else name_of(value)
            )
        return None

    def _can_be_made(self, node: Node) -> bool:
        if node.kind == "namedtuple":
            return self._is_findable(type(node.value))
        if node.kind == "defaultdict":
            factory = node.value.default_factory
            known = factory is None or _is_factory(factory) or self._baseline.path_of(factory) is not None
            return type(node.value) in _EXACT and known
        return type(node.value) in _EXACT

    def _lost_array(self, node: Node, array: Any) -> UntrackedChange | None:
        if not is_storable(array) or (node.kind == "mapped" and not self._baseline.knows(array)):
            return UntrackedChange(node.path, f"a {name_of(array)} of {array.dtype}")
        self._left_bytes -= array.nbytes
        return UntrackedChange(node.path, f"an array of {array.nbytes} bytes") if self._left_bytes < 0 else None

    def _lost_iterator(self, node: Node) -> UntrackedChange | None:
        loader = node.value.loader
        if self._baseline.path_of(loader) is not None:
            return None
        if options_of(loader) is not None and self._baseline.path_of(loader.dataset) is not None:
            return None
        return UntrackedChange(node.path, "an iterator over a DataLoader that was made during training")

    def _lost_state(self, node: Node) -> UntrackedChange | None:
        try:
            state = stateful_objects.state_of(node.value)
        except NotPlain as problem:
            return UntrackedChange(node.path, f"a {name_of(node.value)}, and {problem}")
        self._states[id(node.value)] = (type(node.value).__name__, state)
        return None

    # --- objects

    def _number(self, key: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._waiting.append(key)
        return self._numbers[key]

    def _object(self, node: Node) -> tuple[Any, ...]:
        if node.kind == "asked":
            for _, part in stateful_objects.parts_of(node.value):
                if id(part) in self._states:
                    self._number(id(part))
        known = self._baseline.path_of(node.value)
        if known is None and id(node.value) in self._walk.trained_parts:
            known = f"{LATE}{node.path}"
        path = node.path if known is None else known
        if known is None and (like := self._part_like(node)) is not None:
            return ("copy", path, False, content_of(node.value, like, self._walk.own_parts))
        if known is None and (weight := self._weight_behind(node.value)) is not None:
            return ("weight", path, False, self._value(weight))
        return (node.kind, path, known is not None, self._content(node))

    def _weight_behind(self, value: Any) -> Tensor | None:
        """
        Return the weight of a module whose memory the tensor shares, as those in a `state_dict()` do; None if there is
        none. Such a tensor changes with the weight.
        """
        if type(value) is not Tensor or value.requires_grad or not is_storable(value):
            return None
        if self._weights is None:
            self._weights = {memory_key(one): one for one in self._baseline.weights() if is_storable(one)}
        return self._weights.get(memory_key(value))

    def _content(self, node: Node) -> Any:
        value = node.value
        if node.kind in HOLDERS:
            return self._of_holder(node)
        match node.kind:
            case "tensor":
                kind = (str(value.device), value.requires_grad, type(value) is torch.nn.Parameter)
                return (value.detach(), *kind, *_gradient_of(value))
            case "array" | "mapped":
                return (bytes_of(value), value.dtype.str, tuple(value.shape))
            case "masked":
                return content_of_masked(value)
            case "bytearray":
                return bytes(value)
            case "asked":
                return self._states[id(value)]
            case "iterator":
                return (self._loader(value.loader), value.key, value.number)
            case "deque":
                return (value.maxlen, self._items(node.parts))
            case "defaultdict":
                return (self._factory(value.default_factory), self._items(node.parts))
            case "namedtuple":
                return (self._script.class_name(type(value)), self._items(node.parts), self._path_of(type(value)))
            case "OrderedDict" if versions := _versions_of(value):
                return (self._items(node.parts), versions)
        return self._items(node.parts)

    def _loader(self, loader: Any) -> Encoded:
        if self._baseline.path_of(loader) is not None:
            return self._value(loader)
        return ("loader", self._value(loader.dataset), options_of(loader))

    def _is_findable(self, cls: type) -> bool:
        """Return True if a restore finds this class of the script: by its name, or where the script keeps it."""
        return self._script.find(self._script.class_name(cls)) is cls or self._path_of(cls) is not None

    def _path_of(self, cls: type) -> str | None:
        """
        Return the path of a class that is no attribute of a module, but a variable of a function, for example. None for
        any other class.
        """
        if self._script.find(self._script.class_name(cls)) is cls:
            return None
        return self._baseline.path_of(cls)

    def _factory(self, factory: Any) -> Encoded:
        if _is_factory(factory):
            return ("factory", factory.__name__)
        return self._value(factory) if factory is None or self._baseline.path_of(factory) is not None else None

    def _of_holder(self, node: Node) -> dict[str, Any]:
        change = self._changes[id(node.value)]
        known = self._baseline.knows(node.value)
        carried, whole = {}, known or self._can_be_made_anew(node)
        for name, part in change.parts.items():
            if type(part) is MethodType and part.__self__ is node.value:
                if getattr(type(node.value), name, None) is not part.__func__:
                    whole = False
                    self.lost.append(UntrackedChange(f"{node.path}.{name}", "a method of the object itself"))
                continue  # otherwise, it is the class's own method, which a framework has put back
            lost = self._lost_part(f"{node.path}.{name}", node, part)
            if lost is None:
                carried[name] = self._value(part)
            else:
                whole = False
                if type(part) is KeptIterator or not (_is_harmless(part) or self._is_remade(part)):
                    self.lost.append(lost)
        return {
            "class": self._script.class_name(type(node.value)),
            "whole": whole,
            "parts": carried,
            "gone": change.gone,
            "at": None if known else self._path_of(type(node.value)),
        }

    def _is_remade(self, part: object) -> bool:
        """
        Return True for a function that no earlier image has met: a loop may define it again in each step. If another
        function with the same code comes later, the loop does so.
        """
        if type(part) is not FunctionType:
            return False
        before, is_remade = self._functions.get(part.__code__, (None, False))
        is_new = before is not part
        self._functions[part.__code__] = part, is_remade or (is_new and before is not None)
        return is_new or is_remade

    def _part_like(self, node: Node) -> str | None:
        if node.kind != "nn" or self._walk.module is None or self._baseline.path_of(node.value) is not None:
            return None
        return self._copies.part_like(node.value, self._walk.module, self._walk.own_parts)

    def _can_be_made_anew(self, node: Node) -> bool:
        cls = type(node.value)
        found = node.kind == "object" and self._is_findable(cls)
        return node.kind == "bag" or (found and self._script.can_make(cls))

    def _lost_part(self, path: str, node: Node, part: Any) -> UntrackedChange | None:
        dead = self._dead.get(id(part))
        if dead is not None and not self._baseline.knows(part):
            return dead.of(path)
        lost = self._lost_value(node, part)
        return UntrackedChange(path, lost.what) if lost else None

    # --- values

    def _items(self, parts: list[Any]) -> Any:
        packed = packed_numbers(parts, PACKED_FROM)
        return [self._value(part) for part in parts] if packed is None else torch.from_numpy(packed)

    def _value(self, value: Any) -> Encoded:
        key = id(value)
        if key in self._changes and key not in self._dead:
            return ("ref", self._number(key))
        path = self._baseline.path_of(value)
        return self._plain(value) if path is None else ("at", path)

    def _plain(self, value: Any) -> Encoded:
        cls: Any = type(value)
        if issubclass(cls, Flag):
            return ("flag", self._script.class_name(cls), int(value.value))
        if issubclass(cls, Enum):
            if cls.__members__.get(value.name or "") is not value:
                raise NotPlain(value)
            return ("enum", self._script.class_name(cls), value.name)
        if not is_scalar(value):
            raise NotPlain(value)
        return encode(value)


def _is_factory(value: object) -> bool:
    return type(value) is type and value in FACTORIES.values()


def _versions_of(weights: OrderedDict[Any, Any]) -> dict[str, dict[str, int]]:
    """Return the versions of the modules' formats, which a `state_dict()` has as an attribute; {} without any."""
    found = getattr(weights, METADATA, None)
    if not isinstance(found, dict):
        return {}
    return {name: dict(of_module) for name, of_module in found.items() if set(map(type, of_module.values())) <= {int}}


def _gradient_of(tensor: Tensor) -> tuple[Tensor, ...]:
    grad = tensor.grad if tensor.is_leaf else None
    return () if grad is None or not is_storable(grad) else (grad.detach(),)
