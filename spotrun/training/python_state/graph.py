"""
Walks through the state that a script keeps in Python objects, and finds each mutable object and its path.

An object's path is the first path by which the walk reaches it, such as `module.meters['loss'].history`. The walk
enters containers, and the script's own instances, classes, functions and modules. It does not enter objects of
libraries, but records their paths.
"""

from __future__ import annotations

import argparse
import threading
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import partial
from itertools import chain
from operator import is_
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from spotrun.checkpoint.objects import is_named_tuple
from spotrun.checkpoint.slots import attributes_of, has_attributes
from spotrun.training import module_state
from spotrun.training.python_state.kept_iterator import KeptIterator
from spotrun.training.python_state.library_state import LibraryModuleState
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.stateful_objects import is_asked, parts_of
from spotrun.training.python_state.values import SCALARS, is_scalar

MAPPED_MAX_BYTES = 64 << 20
"""
Maximum bytes of a `numpy.memmap` that is saved. A change of a larger memmap is only reported. Its pages may not all be
in memory, and saving it would read all of them from the disk.
"""
OBJECTS_MAX = 50_000
"""Maximum objects in one walk. Further objects are not saved; their changes are reported."""
TABLE_ITEMS = 1_000
"""
Maximum items of a container that the first walk enters. A longer container is called a table. Later walks enter it only
if it has changed.
"""
ITEMS_MAX = 1 << 20
"""Maximum items of a container that is saved. A change of a longer container is reported, and not saved."""

FLAGS_OF_TORCH = {"training"}
OF_TORCH = frozenset(vars(nn.Module())) - FLAGS_OF_TORCH
TENSORS_OF_TORCH = ("_parameters", "_buffers", "_modules")
"""
Attributes in which a torch module keeps its tensors and inner modules. The walk enters them only in modules that are
not part of the trained module.
"""
CLOSURE = "nonlocal "
"""Prefix of the parts of a function that are variables of its enclosing function."""
FLAGS = "requires_grad of parameters"
"""Name of the one part of a module that is not an attribute: the `requires_grad` flags of its parameters."""

SEQUENCES: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    bytearray: "bytearray",
}
MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter", defaultdict: "defaultdict"}
CONTAINERS = frozenset({*SEQUENCES.values(), *MAPPINGS.values(), "namedtuple"}) - {"bytearray"}
_FILLABLE = CONTAINERS - {"tuple", "frozenset", "namedtuple"}
HOLDERS = frozenset({"object", "bag", "nn", "class", "function", "module"})
"""Kinds of objects whose parts have names. The image can contain single parts of such an object."""
LEAVES = frozenset({"array", "mapped", "masked", "tensor", "bytearray"})
"""Kinds of objects that are compared and saved whole."""
BEHIND: dict[type, tuple[str, ...]] = {
    partial: ("func", "args", "keywords"), ChainMap: ("maps",), UserDict: ("data",), UserList: ("data",),
    memoryview: ("obj",), DataLoader: ("dataset", "generator", "sampler", "batch_sampler", "collate_fn"),
    BatchSampler: ("sampler",),
    RandomSampler: ("generator",), WeightedRandomSampler: ("generator",), SubsetRandomSampler: ("generator",),
}  # fmt: skip
"""
Classes of libraries, each with the attributes in which its objects keep values of the script, such as the generator of
a loader that the script reads itself. If the new process has such an object, a restore fills it. A restore cannot
create such an object.
"""
_BAGS = (SimpleNamespace, argparse.Namespace, threading.local)
"""
Classes of the kind `bag`: objects that only hold named values. For a `threading.local`, only the training thread's
values are saved.
"""


class Node:
    """
    A mutable object.

    `parts` is a dict if the parts have names (HOLDERS), and a list otherwise. For a mapping, this list contains each
    key followed by its value. `parts` is None if the walk does not enter the object.

    `inner` has those parts that can contain objects, each with its path, and the attributes of a container whose class
    is the script's, as one dict. Parts whose `id` is in `still` are unchanged,
    and are left out.
    """

    __slots__ = ("inner", "kind", "parts", "path", "value")

    def __init__(self, kind: str, path: str, value: Any, parts: Any, still: Set[int] = frozenset()) -> None:
        self.kind = kind
        self.path = path
        self.value = value
        self.parts = parts
        self.inner = _named(kind, path, parts, still) if parts else []
        if kind in _FILLABLE and type(value) not in _KINDS and hasattr(value, "__dict__"):
            self.inner.append((vars(value), f"{path}.__dict__"))

    @property
    def is_closed(self) -> bool:
        """True for a container that the walk does not enter, because it is too long."""
        return self.parts is None and self.kind in CONTAINERS

    def has_same_parts(self) -> bool:
        """
        Return True if a container still contains the same objects as during the walk, or if the walk did not read its
        parts. Not implemented for objects with named parts.
        """
        if self.parts is None:
            return True
        pairs = self.kind in OF_PAIRS
        if len(self.value) != (len(self.parts) >> 1 if pairs else len(self.parts)):
            return False
        return all(map(is_, self.parts, chain.from_iterable(pairs_of(self.value)) if pairs else self.value))


class Before(NamedTuple):
    """Results of an earlier walk, with which a later walk can skip unchanged objects."""

    quiet: Mapping[int, LibraryModuleState]
    registered: Mapping[int, object]
    """Tensors that snapshots contain as weights, by `id`."""
    tables: Mapping[int, object]
    earlier: Mapping[int, Node]
    """The containers that the earlier walk entered, and the objects without parts that it found, by `id`."""
    still: Set[int] = frozenset()
    """The `id`s of those objects in `earlier` that have not changed. Nothing inside them has changed either."""


class Walk:
    """
    The objects that one walk finds, by `id`. `nodes` are the objects that the walk enters. `others` are the objects
    that it does not enter, including `stops`, which the caller excludes. To save time, an object's path is stored in
    two parts, which are joined only when the path is needed.

    `before` describes the previous walk. It is None for the first walk, which treats every container of more than
    TABLE_ITEMS items as a table.
    """

    def __init__(self, script: Script, stops: Mapping[int, object], before: Before | None) -> None:
        self._script = script
        self.stops = stops
        self._first = before is None
        self._before = before or Before({}, {}, {}, {})
        self._still = self._before.still
        self._waiting: deque[tuple[Any, str]] = deque()
        self._left = OBJECTS_MAX - len(self._still)
        self.nodes: dict[int, Node] = {}
        self.compared: list[int] = []
        """
        The keys of those `nodes` that have to be compared. A container that still holds the same objects is left out.
        """
        self.others: dict[int, tuple[str, str, object]] = {}
        self.module: nn.Module | None = None
        self.trained_parts: set[int] = set()
        """The `id`s of the trained module and its parts, except the parts in `quiet`, which are unchanged."""
        self.quiet: set[int] = set()
        self.plain: list[tuple[nn.Module, tuple[str, ...]]] = []
        """Parts of the trained module whose class comes from a library, with the names of their plain attributes."""
        self._plain: dict[type, bool] = {}

    def trained(self, module: nn.Module, path: str, own: frozenset[str]) -> None:
        """
        Walk the trained module and all its parts. Their tensors are saved as weights. `own` names the module's
        attributes that belong to the framework.
        """
        self.module = module
        stack = [(path, module)]
        nodes = self.nodes
        while stack:
            where, part = stack.pop()
            if id(part) in nodes or id(part) in self.quiet:
                continue
            quiet = self._before.quiet.get(id(part))
            if quiet is not None and quiet.is_same():
                self.quiet.add(id(part))
                stack += _inner(where, part)
                continue
            self.trained_parts.add(id(part))
            parts = self._plain_of(part) if part is not module else None
            if parts is not None:
                self.plain.append((part, tuple(parts)))
            else:
                parts = self._attributes(part, (OF_TORCH | own) - FLAGS_OF_TORCH if part is module else OF_TORCH)
            parts |= _of_parameters(part)
            self._keep(Node("nn", where, part, parts, self._still))
            if part._parameters:
                parts[FLAGS] = self._registered(where, part._parameters)
            if part._buffers:
                self._registered(where, part._buffers)
            stack += _inner(where, part)
        self._run()

    def _registered(self, where: str, tensors: Mapping[str, Tensor | None]) -> tuple[tuple[str, bool], ...]:
        """
        Record a module's tensors, which snapshots contain as weights. For each tensor, return its name and whether it
        requires gradients.
        """
        flags = []
        for name, tensor in tensors.items():
            if tensor is not None:
                self.others[id(tensor)] = (where, f".{name}", tensor)
                flags.append((name, tensor.requires_grad))
        return _EQUAL_FLAGS.setdefault(tuple(flags), tuple(flags))

    def root(self, value: Any, path: str) -> None:
        """
        Walk an object of the training, such as a callback, as if the script had defined its class. For a dict, walk the
        items.
        """
        if id(value) not in self.nodes and id(value) not in self.stops and hasattr(value, "__dict__"):
            kind = "nn" if isinstance(value, nn.Module) else "dict" if isinstance(value, dict) else "object"
            self._keep(Node(kind, path, value, self._parts(kind, value), self._still))
        self._run()

    def library_object(self, value: Any, path: str) -> None:
        """Walk the attributes that the script has added to an object of a library, such as the optimizer."""
        if id(value) not in self.nodes:
            self._keep(Node("object", path, value, self._script.added_to(value), self._still))
        self._run()

    def modules(self) -> None:
        for name, module in self._script.modules.items():
            if id(module) not in self.nodes:
                own = {name: part for name, part in list(vars(module).items()) if name[:2] != "__"}
                self._keep(Node("module", name, module, own, self._still))
        self._run()

    def hooks(self, found: Sequence[tuple[object, str]]) -> None:
        """Walk functions that the script has given to torch, such as hooks, each with its path."""
        self._waiting.extend(found)
        self._run()

    def structure(self) -> Iterator[int]:
        """
        Yield the `id`s of the objects that define the structure of torch modules outside the trained module: the
        modules whose classes come from libraries, and every module's dicts of tensors and inner modules.
        """
        for key, node in self.nodes.items():
            if node.kind == "nn" and key not in self.trained_parts:
                if self._plain_of(node.value) is not None:
                    yield key
                yield from (id(node.parts[name]) for name in TENSORS_OF_TORCH if name in node.parts)

    # --- the walk

    def _run(self) -> None:
        while self._waiting:
            value, path = self._waiting.popleft()
            key = id(value)
            if key in self.nodes or key in self.others or key in self.quiet or key in self._before.registered:
                continue
            if key in self._still:
                continue
            if self._keep_earlier(key) or (type(value) is tuple and is_scalar(value)):
                continue
            kind = self._kind(value) if key not in self.stops else None
            if kind is None or self._left <= 0:
                self.others[key] = (path, "", value)
                if type(value) in BEHIND and self._left > 0 and key not in self.stops:
                    behind = ((getattr(value, name), f"{path}.{name}") for name in BEHIND[type(value)])
                    self._waiting.extend((part, where) for part, where in behind if part is not None)
                continue
            self._keep(Node(kind, path, value, self._parts(kind, value), self._still))

    def _keep_earlier(self, key: int) -> bool:
        """
        If the object with the id `key` still has the same parts as at the start of training, reuse the Node that was
        made then, and return True. Otherwise return False.
        """
        earlier = self._before.earlier.get(key)
        if earlier is None or self._left <= 0 or key in self.stops or not earlier.has_same_parts():
            return False
        self.nodes[key] = earlier
        if earlier.parts is None:
            self.compared.append(key)
        elif earlier.inner:
            self._left -= len(earlier.inner)
            self._waiting.extend(earlier.inner)
        return True

    def _keep(self, node: Node) -> None:
        key = id(node.value)
        self.nodes[key] = node
        self.compared.append(key)
        if node.kind == "asked":
            self._waiting.extend((part, f"{node.path}.{name}") for name, part in parts_of(node.value))
        if node.kind == "iterator":
            self._waiting.append((node.value.loader, f"{node.path}.loader"))
        if node.inner:
            self._left -= len(node.inner)
            self._waiting.extend(node.inner)

    def _kind(self, value: Any) -> str | None:
        cls = type(value)
        kind = _KINDS.get(cls)
        if kind is not None:
            return kind
        if cls is np.memmap:
            return "mapped" if value.flags.writeable and value.nbytes <= MAPPED_MAX_BYTES else None
        if cls is FunctionType:
            return "function" if self._script.owns(value) else None
        if issubclass(cls, type):  # isinstance() would read `value.__class__`, which may raise for a lazy proxy
            return "class" if self._script.owns(value) and not issubclass(value, Enum) else None
        if issubclass(cls, Enum | ModuleType):
            return None
        return self._kind_of_instance(cls)

    def _kind_of_instance(self, cls: type) -> str | None:
        if is_asked(cls):
            return "asked"
        if issubclass(cls, nn.Module):
            return "nn"
        if cls in _BAGS:
            return "bag"
        if not self._script.owns(cls):
            return None
        if issubclass(cls, tuple):
            return "namedtuple" if is_named_tuple(cls) else None
        for base in cls.__mro__:  # the first known base decides, because an OrderedDict is a dict too
            if base in _KINDS:
                return _KINDS[base] if _KINDS[base] in CONTAINERS else None
        return "object" if has_attributes(cls) else None

    def _parts(self, kind: str, value: Any) -> Any:
        if kind in HOLDERS:
            return self._parts_of_holder(kind, value)
        if kind not in CONTAINERS:
            return None
        is_table = self._first or id(value) in self._before.tables
        if len(value) > (TABLE_ITEMS if is_table else ITEMS_MAX):
            return None
        return [part for pair in list(pairs_of(value)) for part in pair] if kind in OF_PAIRS else list(value)

    def _parts_of_holder(self, kind: str, value: Any) -> dict[str, Any]:
        if kind == "function":
            return _of_function(value)
        if kind == "class":
            return {name: part for name, part in list(vars(value).items()) if name[:2] != "__"}
        if kind == "nn":
            return self._of_other_module(value)
        return self._attributes(value, self._script.set_by_libraries(type(value)))

    def own_parts(self, module: nn.Module) -> dict[str, Any]:
        """
        Return the attributes that the script has set in a torch module, and the module's flag `training`. The
        attributes that torch and other libraries set are left out. If the module's class belongs to a library, return
        the module's public scalar attributes instead.
        """
        parts = self._plain_of(module)
        if parts is not None:
            return parts
        left_out = OF_TORCH | self._script.set_by_libraries(type(module))
        return self._attributes(module, left_out - FLAGS_OF_TORCH)

    def _of_other_module(self, module: nn.Module) -> dict[str, Any]:
        parts = self.own_parts(module)
        if self._plain_of(module) is not None and module_state.is_metric(type(module)):
            values = vars(module)
            states = {name: values[name] for name in (*values["_defaults"], "_computed")}
            parts = states | module_state.values_of(module)
        parts |= {name: vars(module)[name] for name in TENSORS_OF_TORCH if vars(module)[name]}
        return parts | _of_parameters(module)

    def _plain_of(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the public scalar attributes of a library's module; None if the script defines the module's class."""
        cls = type(module)
        is_plain = self._plain.get(cls)
        if is_plain is None:
            is_plain = self._plain[cls] = not self._script.owns(cls)
        if not is_plain:
            return None
        if module_state.is_metric(cls):
            return {}
        return {name: part for name, part in vars(module).items() if type(part) in SCALARS and name[0] != "_"}

    def _attributes(self, value: Any, left_out: frozenset[str]) -> dict[str, Any]:
        parts = attributes_of(value)
        for name in left_out:
            parts.pop(name, None)
        return parts


_KINDS: dict[type, str] = {
    **SEQUENCES, **MAPPINGS, np.ndarray: "array", np.ma.MaskedArray: "masked", Tensor: "tensor", nn.Parameter: "tensor",
    KeptIterator: "iterator",
}  # fmt: skip
_EQUAL_FLAGS: dict[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]] = {}
"""
Tuples of flags, each under itself as key. Equal flags are replaced by the same tuple from here, so they can be compared
by identity, which is faster than any other comparison.
"""
OF_PAIRS = frozenset(MAPPINGS.values())


def pairs_of(mapping: dict[Any, Any]) -> Collection[tuple[Any, Any]]:
    """
    Return a mapping's pairs, in order, without calling the script's code. (`dict.items` would lose an OrderedDict's
    order.)
    """
    return OrderedDict.items(mapping) if isinstance(mapping, OrderedDict) else dict.items(mapping)


def _inner(where: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the inner modules in reverse order, so that a stack returns them in the order of `named_modules`."""
    inner = [(f"{where}.{name}", part) for name, part in module._modules.items() if part is not None]
    inner.reverse()
    return inner


def cells_of(function: FunctionType) -> dict[str, CellType]:
    """Return the cells of the variables that `function` shares with the enclosing function."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _of_parameters(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that were set on the parameters of a module, by names such as `weight.ema`."""
    return {
        f"{name}.{attribute}": value
        for name, parameter in module._parameters.items()
        if parameter is not None and vars(parameter)
        for attribute, value in vars(parameter).items()
    }


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _of_function(function: FunctionType) -> dict[str, Any]:
    parts = dict(vars(function))
    cells = cells_of(function).items() if function.__closure__ else ()
    parts |= {f"{CLOSURE}{name}": cell.cell_contents for name, cell in cells if not _is_empty(cell)}
    if function.__defaults__:
        parts["__defaults__"] = function.__defaults__
    if function.__kwdefaults__:
        parts["__kwdefaults__"] = function.__kwdefaults__
    return parts


def _named(kind: str, path: str, parts: Any, still: Set[int]) -> list[tuple[Any, str]]:
    """Return those of `parts` that can contain further objects, each with its path."""
    if kind in HOLDERS:
        return [
            (part, f"{path}.{name}")
            for name, part in parts.items()
            if type(part) not in SCALARS and id(part) not in still
        ]
    if SCALARS.issuperset(map(type, parts)):
        return []
    if kind not in OF_PAIRS:
        return [(part, f"{path}[{number}]") for number, part in enumerate(parts) if type(part) not in SCALARS]
    return list(_of_pairs(path, parts))


def _of_pairs(path: str, parts: list[Any]) -> Iterator[tuple[Any, str]]:
    for number in range(0, len(parts), 2):
        key, part = parts[number : number + 2]
        if type(key) not in SCALARS:
            yield key, f"{path}[key {number // 2}]"
        if type(part) not in SCALARS:
            yield part, f"{path}[{key!r}]" if type(key) in (str, int) else f"{path}[value {number // 2}]"
