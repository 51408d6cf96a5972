"""Recognises the script's own modules (those with a file in the work folder), and their classes and functions."""

from __future__ import annotations

import dis
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from spotrun.checkpoint.slots import attributes_of

INSTALLED = ("site-packages", "dist-packages")
"""Names of folders whose content counts as libraries, even inside the work folder."""
PYTHON = tuple(os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in ("stdlib", "platstdlib"))
"""Folders of Python's own modules. They are never the script's, even if Python is installed below the work folder."""
OURS = __name__.partition(".")[0]
_MARKS = ("__new__", "__del__", "__setstate__")
"""
Special methods and attributes that affect how an instance is created or freed. spotrun creates no instance of a
script's class that defines one of them.
"""
_HARMLESS_BASES = frozenset({"abc", "typing", "typing_extensions"})
_ASSIGNED = re.compile(rb"\.(\w+)\s*(?::[^=\n]+)?(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
"""Matches the assignment to an attribute, as in `trainer.best = 1` or `optimizer.steps += 1`."""
_STORE_ATTR = dis.opmap["STORE_ATTR"]


class Script:
    """The script of this process, including modules that are imported later."""

    def __init__(self, folders: Iterable[str], modules: Mapping[str, Any] | None = None) -> None:
        self._folders = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)
        self._modules: Mapping[str, Any] = sys.modules if modules is None else modules
        self._seen = 0
        self._judged: dict[str, tuple[Any, bool]] = {}
        self._own: dict[str, ModuleType] = {}
        self._assigned_by: tuple[Mapping[str, ModuleType], frozenset[str]] = {}, frozenset()
        self._set_by_libraries: dict[type, frozenset[str]] = {}

    @classmethod
    def of_this_process(cls) -> Script:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        return cls([os.getcwd(), *([os.path.dirname(os.path.abspath(main))] if main else [])])

    @property
    def modules(self) -> dict[str, ModuleType]:
        """The script's modules by name, `__main__` first."""
        if len(self._modules) != self._seen:
            modules = dict(self._modules)
            found = {name: module for name, module in modules.items() if self._is_own(name, module)}
            self._seen = len(modules)
            self._own = {name: found[name] for name in sorted(found, key=lambda name: (name != "__main__", name))}
        return self._own

    def _is_own(self, name: str, module: Any) -> bool:
        judged, is_own = self._judged.get(name, (None, False))
        if judged is not module:  # judged once: there are thousands, and at exit __main__ has no file
            is_own = self._lies_in_folders(name, module)
            self._judged[name] = (module, is_own)
        return is_own

    def _lies_in_folders(self, name: str, module: Any) -> bool:
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or name.partition(".")[0] == OURS:
            return False
        path = _real_path(file)
        return path.startswith(self._folders) and not (
            path.startswith(PYTHON) or set(INSTALLED) & set(Path(path).parts)
        )

    def added_to(self, value: object) -> dict[str, Any]:
        """
        Return the attributes that the script has added to an object of a library: those that its code assigns, and that
        no method of the object's class sets.
        """
        held = attributes_of(value)
        others = held.keys() - set_by(type(value).__mro__)
        return {name: held[name] for name in sorted(others & self._assigned)} if others else {}

    @property
    def _assigned(self) -> frozenset[str]:
        """The names of all attributes that the script's code assigns."""
        modules = self.modules
        if self._assigned_by[0] is not modules:
            files = (vars(module).get("__file__") for module in modules.values())
            names = frozenset[str]().union(*(_assigned_in(file) for file in files if isinstance(file, str)))
            self._assigned_by = modules, names
        return self._assigned_by[1]

    def owns(self, thing: type | FunctionType) -> bool:
        """Return whether a module of the script defines `thing`."""
        return thing.__module__ in self.modules

    def own_of(self, things: Mapping[str, object]) -> dict[str, object]:
        """Return those of `things` whose classes the script defines."""
        return {name: one for name, one in things.items() if self.owns(type(one))}

    def class_name(self, cls: type) -> str:
        return f"{cls.__module__}:{cls.__qualname__}"

    def find(self, name: str) -> type | None:
        """
        Return the class of this name if one of the script's modules has it; otherwise return None. Import nothing, and
        call nothing.
        """
        module, _, qualname = name.partition(":")
        found: Any = self.modules.get(module)
        for part in qualname.split("."):
            found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
        return found if isinstance(found, type) and self.class_name(found) == name and self.owns(found) else None

    def can_make(self, cls: type) -> bool:
        """
        Return True if an instance of `cls` can be created without calling `cls`. For this, `cls` and each of its base
        classes must be a class of the script that defines none of `_MARKS`, or a class that is known to be harmless,
        such as `abc.ABC`.
        """
        return all(self._is_simple(base) for base in cls.__mro__)

    def _is_simple(self, base: type) -> bool:
        if base is object or base.__module__ in _HARMLESS_BASES:
            return True
        return self.owns(base) and not any(mark in vars(base) for mark in _MARKS)

    def set_by_libraries(self, cls: type) -> frozenset[str]:
        """Return the names of the attributes that library base classes of `cls` set on `self` in their methods."""
        if cls not in self._set_by_libraries:
            others = (base for base in cls.__mro__ if base is not object and not self.owns(base))
            libraries = tuple(base for base in others if base.__module__ != "collections")  # but not UserDict.data
            self._set_by_libraries[cls] = set_by(libraries)
        return self._set_by_libraries[cls]


@cache
def _assigned_in(file: str) -> frozenset[str]:
    """
    Return the names of the attributes that the code in a Python file assigns. Search its text, because compiling
    hundreds of files takes seconds; names in comments do no harm.
    """
    try:
        return frozenset(name.decode() for name in _ASSIGNED.findall(Path(file).read_bytes()))
    except (OSError, UnicodeDecodeError):
        return frozenset()


@cache
def _real_path(file: str) -> str:
    folder, name = os.path.split(file)
    return os.path.realpath(file) if os.path.islink(file) else os.path.join(_real_folder(folder), name)


@cache
def _real_folder(folder: str) -> str:
    """
    Resolve a folder. The result is cached: hundreds of modules share a folder, and each part of its path costs a system
    call.
    """
    return os.path.realpath(folder)


@cache
def set_by(classes: tuple[type, ...]) -> frozenset[str]:
    """Return the attributes that methods of these classes set on `self`."""
    return frozenset(name for cls in classes for code in _codes(cls) for name in _set_on_self(code))


def _codes(cls: type) -> Iterator[CodeType]:
    for member in vars(cls).values():
        parts = (member.fget, member.fset) if isinstance(member, property) else (member,)
        for part in parts:
            function = inspect.unwrap(part) if isinstance(part, FunctionType) else None
            if isinstance(function, FunctionType):
                yield function.__code__


def _set_on_self(code: CodeType) -> Iterator[str]:
    if _STORE_ATTR not in code.co_code[::2]:  # true of most methods; reading instructions is slow
        return
    holder: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR" and holder == "self":
            yield instruction.argval
        argument = instruction.argval
        # From Python 3.13 on, one instruction may load two variables. The next instruction uses the second one.
        holder = argument[-1] if isinstance(argument, tuple) and argument else argument


def is_name_of_python(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
