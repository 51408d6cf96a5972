"""Reads and sets the attributes of a Python object, both those in its `__dict__` and those in its slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MemberDescriptorType
from typing import Any

_SLOTS: dict[type, dict[str, MemberDescriptorType]] = {}


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the slots of `cls` and its bases, leaving out classes that are not written in Python."""
    if cls not in _SLOTS:
        bases = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
        members = ((name, member) for base in bases for name, member in base.items())
        _SLOTS[cls] = {name: member for name, member in members if type(member) is MemberDescriptorType}
    return _SLOTS[cls]


def has_attributes(cls: type) -> bool:
    return bool(cls.__dictoffset__ or slots_of(cls))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of `value` in a new dict, without calling code of its class."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for name, slot in slots_of(type(value)).items():
        try:
            found[name] = slot.__get__(value)
        except AttributeError:
            continue  # the slot is not set
    return found


def set_attributes(value: Any, parts: Mapping[str, Any], gone: Iterable[str]) -> None:
    """
    Set the attributes `parts`, and delete the attributes `gone`, without calling the class's `__setattr__`, which may
    run code of the script.
    """
    slots = slots_of(type(value))
    for name, part in parts.items():
        if name in slots:
            slots[name].__set__(value, part)
        else:
            vars(value)[name] = part
    for name in gone:
        if name not in slots:
            vars(value).pop(name, None)
        elif name in attributes_of(value):
            slots[name].__delete__(value)
