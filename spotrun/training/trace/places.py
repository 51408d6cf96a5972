"""
Describes, as text, each value in the script's Python objects. Each description is listed under the value's path.

Checkpoints find such values with the code in spotrun/training/python_state. This module does not use that code, and
also describes objects that checkpoints skip: closures, iterators, generators, local variables of running functions,
library objects. A library object is described by the content of its pickle or, if it has none, by its plain attributes.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import io
import itertools
import operator
import pickle
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spotrun.checkpoint.slots import attributes_of
from spotrun.exactness.arrays import slices
from spotrun.exactness.file_content import digest_of_parts
from spotrun.exactness.pickled import no_memory, parts_of_pickle
from spotrun.exactness.trace import MEMBERS
from spotrun.training.by_name import is_a
from spotrun.training.python_state.encoding import HARMLESS
from spotrun.training.python_state.graph import OF_TORCH, pairs_of
from spotrun.training.python_state.script import Script, is_name_of_python
from spotrun.training.python_state.stateful_objects import GENERATORS, is_asked, state_of
from spotrun.training.python_state.values import NotPlain, is_scalar, name_of
from spotrun.training.trace.digests import clean, digest, digest_of_leaf, digests, shown

PLACES_MAX = 50_000
"""Maximum number of places (values with a path). Further places are reported as not inspected."""
PICKLE_MAX_BYTES = 64 << 20
PACKED_FROM = 256
"""Minimum length of a list of plain values that is described by one text. A shorter list gets a text for each item."""
TABLE_ITEMS = 1_000
"""
Maximum items of a container that gets a text for each item. A longer container is described by one text: a digest of
its pickle.
"""
ELSEWHERE = ("pytorch_lightning", "lightning", "lightning_fabric", "transformers", "accelerate", "spotrun")
"""
Packages of training loops. Objects of their classes are not described here. The trace compares their effects instead:
losses, metrics, weights, optimizers and the state of their callbacks.
"""
NOT_LOOKED_INTO = (*(name for name in HARMLESS if "thread" not in name), "torch.utils.data.sampler.")
OF_DATA = ("dataset", "datasets", "indices", "tensors")
"""
The only attributes of torch's datasets and loaders that are described. The others are not needed, because the trace
also compares the batches themselves.
"""
_CODE = (
    BuiltinFunctionType, ModuleType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    WrapperDescriptorType, ClassMethodDescriptorType,
)  # fmt: skip
_CACHE = type(functools.lru_cache(len))
_BAGS = (SimpleNamespace, argparse.Namespace, threading.local)
_OF_CLASSES = "_abc_impl"
"""Attribute in which an abstract class caches the results of `isinstance` and `issubclass`."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition)


class Places:
    """
    The values of a script, by their paths. `found` has a description of each value. `unread` has the class of each
    object that could not be inspected.
    """

    def __init__(self, script: Script, stops: Iterable[object] = (), own: frozenset[str] = frozenset()) -> None:
        self._script = script
        self._stops = {id(one): one for one in stops}
        self._own = own
        self._first: dict[int, tuple[str, object]] = {}
        self._waiting: deque[tuple[str, Any]] = deque()
        self.found: dict[str, str] = {}
        self.unread: dict[str, str] = {}

    def add(self, path: str, value: object) -> None:
        """Add all objects that can be reached from `value`, which is at `path`."""
        self._waiting.append((path, value))
        while self._waiting:
            where, one = self._waiting.popleft()
            if len(self.found) >= PLACES_MAX:
                self.unread[where] = name_of(one)
                continue
            try:
                self._look(clean(where), one)
            except Exception:  # noqa: BLE001 - an inspection must not end the training that it inspects
                self.unread[clean(where)] = name_of(one)

    def loggers(self, loggers: Iterable[object]) -> None:
        """
        Make `add` skip each logger whose class comes from a library. Report these loggers as not inspected, except
        those of training frameworks (ELSEWHERE).
        """
        for number, logger in enumerate(loggers):
            if not self._script.owns(type(logger)):
                self._stops[id(logger)] = logger
                if type(logger).__module__.partition(".")[0] not in ELSEWHERE:
                    self.unread[f"loggers[{number}]"] = name_of(logger)

    def modules(self) -> None:
        own = reversed(self._script.modules.items())
        # A module may be imported under two names. It is described once.
        for name, module in {id(module): (name, module) for name, module in own}.values():
            for variable, value in sorted(vars(module).items()):
                if not is_name_of_python(variable):
                    self.add(f"{name}.{variable}", value)

    def frames(self) -> None:
        """Add the local variables of the script's running functions. The innermost function comes last."""
        frame: FrameType | None = inspect.currentframe()
        running = []
        while frame is not None:
            if frame.f_globals.get("__name__") in self._script.modules and frame.f_code.co_name != "<module>":
                running.append(frame)
            frame = frame.f_back
        for each in reversed(running):
            for name, value in sorted(each.f_locals.items()):
                self.add(f"{each.f_code.co_name}().{name}", value)

    # -- one object --------------------------------------------------------------------------------------------------

    def _look(self, path: str, value: Any) -> None:
        if id(value) in self._stops:
            return
        if is_scalar(value):
            self.found[path] = shown(value)
        elif issubclass(type(value), Enum):
            self.found[path] = f"{type(value).__qualname__}.{value.name}"
        elif id(value) in self._first:
            self.found[path] = f"the same as {self._first[id(value)][0]}"
        else:
            self._first[id(value)] = (path, value)
            self._look_into(path, value)

    def _look_into(self, path: str, value: Any) -> None:
        cls = type(value)
        if issubclass(cls, Tensor | np.ndarray):
            self._array(path, value)
        elif issubclass(cls, FunctionType):
            self._function(path, value)
        elif issubclass(cls, classmethod | staticmethod):
            self._holder(path, value, {"__func__": value.__func__})
        elif issubclass(cls, property):
            self._holder(path, value, {"fget": value.fget, "fset": value.fset})
        elif issubclass(cls, MethodType):
            self._holder(path, value, {"__self__": value.__self__, "__func__": value.__func__})
        elif issubclass(cls, type):
            self._class(path, value)
        elif issubclass(cls, _CODE):
            self.found[path] = str(getattr(value, "__qualname__", getattr(value, "__name__", name_of(value))))
        elif cls.__module__.partition(".")[0] in ELSEWHERE and not issubclass(cls, nn.Module):
            return
        elif is_asked(cls):
            self._state(path, value)
        elif issubclass(cls, nn.Module):
            self._holder(path, value, self._parts_of_module(value))
        elif issubclass(cls, dict | MappingProxyType):
            self._mapping(path, value)
        elif issubclass(cls, list | tuple | set | frozenset | deque):
            self._items(path, value)
        else:
            self._instance(path, value)

    def _array(self, path: str, value: Tensor | np.ndarray[Any, Any]) -> None:
        """
        Add the description of an array: a digest for each row and each column. Parameters, and tensors that are not in
        plain CPU memory, get only one digest of all their values.
        """
        if isinstance(value, np.ndarray):
            names = value.dtype.names
        elif type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu":
            value, names = value.detach(), None
        else:
            self.found[path] = digest_of_leaf(value)
            return
        found = {path: f"{value.dtype} {tuple(value.shape)}"}
        if names is not None:
            found |= {f"{path}[{name!r}]": digest_of_leaf(value[name]) for name in names}
        else:
            for name, (row, column) in slices(tuple(value.shape)):
                part = value if row is column is None else value[row] if row is not None else value[..., column]
                found[f"{path}{name}"] = digest_of_leaf(np.asarray(part) if isinstance(value, np.ndarray) else part)
        self.found |= found

    def _holder(self, path: str, value: Any, parts: Mapping[str, Any]) -> None:
        self.found[path] = name_of(value)
        self._waiting.extend((f"{path}.{name}", parts[name]) for name in sorted(parts, key=str))

    def _function(self, path: str, function: FunctionType) -> None:
        self.found[path] = f"{function.__module__}.{function.__qualname__}"
        if not self._script.owns(function):
            return
        parts: dict[str, Any] = dict(vars(function))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        parts |= {name: _content(cell) for name, cell in cells}
        parts |= {f"__defaults__[{number}]": part for number, part in enumerate(function.__defaults__ or ())}
        parts |= dict(function.__kwdefaults__ or {})
        self._waiting.extend((f"{path}.{name}", parts[name]) for name in sorted(parts))

    def _class(self, path: str, cls: type) -> None:
        self.found[path] = f"{cls.__module__}.{cls.__qualname__}"
        if self._script.owns(cls) and not issubclass(cls, Enum):
            own = {name: part for name, part in vars(cls).items() if name != _OF_CLASSES}
            parts = {name: part for name, part in own.items() if not is_name_of_python(name)}
            self._waiting.extend((f"{path}.{name}", parts[name]) for name in sorted(parts))

    def _state(self, path: str, value: Any) -> None:
        """Add the state of a random number generator, a scheduler or an optimizer that the script holds."""
        try:
            state = state_of(value)
        except NotPlain:
            self.unread[path] = name_of(value)
            return
        if isinstance(value, GENERATORS):
            self.found[path] = f"{name_of(value)} {digest(state)}"
        else:
            self.found |= {f"{path}.{name}": text for name, text in digests(state).items()}

    def _parts_of_module(self, module: nn.Module) -> dict[str, Any]:
        parts = attributes_of(module)
        left_out = OF_TORCH | self._own | self._script.set_by_libraries(type(module))
        kept = {name: part for name, part in parts.items() if name not in left_out or name == "training"}
        if not self._script.owns(type(module)):
            kept = {name: part for name, part in kept.items() if name[:1] != "_"}
            kept |= {name: part for name, part in parts.items() if is_scalar(part) and name[:1] != "_"}
            kept |= {name: parts[name] for name in parts.get("_defaults", ()) if name in parts}  # its states
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            kept |= {name: parameter, f"{name}.requires_grad": parameter.requires_grad}
            kept |= {f"{name}.{attribute}": value for attribute, value in vars(parameter).items()}
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        return kept | dict(buffers) | dict(module.named_children())

    # -- containers --------------------------------------------------------------------------------------------------

    def _mapping(self, path: str, value: dict[Any, Any] | MappingProxyType[Any, Any]) -> None:
        pairs = list(value.items() if isinstance(value, MappingProxyType) else pairs_of(value))
        if len(pairs) > TABLE_ITEMS and self._pickled(path, value):
            return
        self.found[path] = f"{name_of(value)} of {len(pairs)}"
        for number, (key, part) in enumerate(pairs):
            if is_scalar(key):
                self._waiting.append((f"{path}[{key!r}]", part))
            else:
                self._waiting.extend([(f"{path}[key {number}]", key), (f"{path}[value {number}]", part)])
        if all(is_scalar(key) for key, _ in pairs):
            self.found[f"{path}, its order"] = digest_of_leaf(" ".join(shown(key) for key, _ in pairs))
        self._attributes_beside(path, value)

    def _items(self, path: str, value: Any) -> None:
        items = list(value)
        if len(items) > TABLE_ITEMS and not all(map(is_scalar, items)) and self._pickled(path, value):
            return
        self.found[path] = f"{name_of(value)} of {len(items)}"
        plain = all(map(is_scalar, items))
        if isinstance(value, set | frozenset):
            if all(map(_is_tree, items)):
                self.found[f"{path}{MEMBERS}"] = digest_of_leaf("\n".join(sorted(map(digest_of_tree, items))))
            elif items:
                self.unread[path] = f"{name_of(value)} of objects"
        elif plain and len(items) >= PACKED_FROM:
            self.found[f"{path}, its items"] = digest_of_leaf("\n".join(map(shown, items)))
        else:
            self._waiting.extend((f"{path}[{number}]", part) for number, part in enumerate(items))
        self._attributes_beside(path, value)

    def _attributes_beside(self, path: str, value: Any) -> None:
        """If the script defines a container's class, add the container's attributes (its items are added elsewhere)."""
        parts = attributes_of(value) if self._script.owns(type(value)) else {}
        self._waiting.extend((f"{path}.{name}", parts[name]) for name in sorted(parts))

    # -- instances ---------------------------------------------------------------------------------------------------

    def _instance(self, path: str, value: Any) -> None:
        cls = type(value)
        if issubclass(cls, threading.Thread):
            self.unread[path] = name_of(value)  # the local variables of the thread's function
        if issubclass(cls, _LOCKS) or f"{cls.__module__}.".startswith(NOT_LOOKED_INTO):
            return
        if issubclass(cls, Dataset | DataLoader) and not self._script.owns(cls):
            self._holder(path, value, {name: part for name, part in attributes_of(value).items() if name in OF_DATA})
        elif issubclass(cls, _BAGS):
            self._holder(path, value, vars(value))
        elif issubclass(cls, _CACHE):
            self.unread[path] = name_of(value)  # what is cached depends on how often steps were repeated
            self._waiting.append((f"{path}.__wrapped__", value.__wrapped__))
        elif issubclass(cls, GeneratorType):
            frame = value.gi_frame
            self._holder(path, value, {} if frame is None else frame.f_locals | {"next line": frame.f_lasti})
        elif isinstance(value, functools.partial):
            self._holder(path, value, {"func": value.func, "args": value.args, "keywords": value.keywords})
        elif isinstance(value, io.IOBase):
            self._file(path, value)
        elif self._script.owns(cls):
            left_out = self._script.set_by_libraries(cls)
            parts = {name: part for name, part in attributes_of(value).items() if name not in left_out}
            self._holder(path, value, parts)
        elif not self._pickled(path, value):
            self._attributes(path, value)

    def _file(self, path: str, value: io.IOBase) -> None:
        """Add a file object. The content of a file on disk is compared as part of the work folder."""
        if isinstance(value, io.StringIO | io.BytesIO):
            self.found[path] = "closed" if value.closed else shown(value.getvalue())
        else:
            self.found[path] = name_of(value)

    def _pickled(self, path: str, value: object) -> bool:
        """
        Add a digest of the object's pickle, and return True. Return False if the object cannot be pickled, or its
        pickle is too long to read.
        """
        stream = _Short()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pickle.Pickler(stream, protocol=4).dump(value)
            text = digest_of_parts(parts_of_pickle(stream.getvalue(), clean, no_memory))
        except Exception:  # noqa: BLE001 - whatever its class raises, the object has no pickle
            return False
        self.found[path] = f"{name_of(value)} {text}"
        return True

    def _attributes(self, path: str, value: object) -> None:
        if isinstance(value, itertools.count):  # has no pickle from Python 3.14 on
            self.found[path] = repr(value)
        elif parts := {name: part for name, part in attributes_of(value).items() if is_scalar(part)}:
            self._holder(path, value, parts)
            self.unread[path] = name_of(value)
        elif hasattr(type(value), "__length_hint__"):
            self.found[path] = f"{name_of(value)}, {operator.length_hint(value)} left"
        else:
            self.unread[path] = name_of(value)


class _Short(io.BytesIO):
    def write(self, content: Any) -> int:
        if self.tell() + len(content) > PICKLE_MAX_BYTES:
            raise pickle.PicklingError("too long")
        return super().write(content)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # the cell is still empty


def of_library(script: Script, callback: object) -> Iterator[tuple[str, str]]:
    """
    Yield descriptions of the values in a callback whose class comes from a library, or inherits from a library's class.
    These values are the state that the callback exports, its models, and its public attributes with plain values.
    """
    if script.owns(type(callback)) and not script.set_by_libraries(type(callback)):
        return
    for name, text in digests(callback.state_dict()).items():  # type: ignore[attr-defined]
        yield f"state_dict()[{name!r}]", text
    for name, value in sorted(vars(callback).items()):
        if isinstance(value, nn.Module):
            yield from ((f"{name}.{part}", text) for part, text in digests(value.state_dict()).items())
            flags = [(part, parameter.requires_grad) for part, parameter in value.named_parameters()]
            yield f"{name}, its flags", digest_of_leaf([flags, [part.training for part in value.modules()]])
        elif name[:1] != "_" and (_is_tree(value)):
            yield name, digest_of_tree(value)


def _is_tree(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_scalar(key) and _is_tree(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_tree, value))
    return is_scalar(value) or isinstance(value, Tensor | np.ndarray | Enum)


def digest_of_tree(value: Any) -> str:
    return shown(value) if is_scalar(value) else digest_of_leaf(sorted(digests(value).items()))


def is_bar(callback: object) -> bool:
    """
    Return True if the callback is a progress bar or a model summary. These show durations, which differ between
    processes.
    """
    return is_a(callback, "ProgressBar", "ModelSummary")
