"""Reads which kinds of instances a job accepts: one kind, or a choice of several kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spotrun.spec.values import Accelerators, is_instance_type, kind_of, read_accelerators
from spotrun.units import Unreadable, shown

KINDS_MAX = 20
ANY_OF = "any_of"
_FORM = "write it like {any_of: [T4:1, V100:1]}"


@dataclass(frozen=True)
class NamedType:
    """One instance type, by the name that its cloud gives it: `c5.xlarge`."""

    name: str

    def __str__(self) -> str:
        return self.name


Kind = Accelerators | NamedType
"""
A kind of instance, named by its accelerators or by its instance type. spotrun assumes that all instances of one kind
train equally fast.
"""


@dataclass(frozen=True)
class AnyOf:
    """
    A choice of several kinds of instances. The run is allowed to train on any of them. The speed of each kind is
    expressed as a multiple of the first kind's speed.
    """

    kinds: tuple[Kind, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.kinds))


def read_kinds(value: object) -> Accelerators | AnyOf:
    """
    Read one kind, or a choice of kinds. A choice is `{any_of: […]}`. SkyPilot's forms are accepted too: a list, or a
    mapping with several names. A choice of only one kind of accelerators is the same as that kind without a choice.
    """
    if isinstance(value, AnyOf):
        return value
    entries = entries_of(value)
    if entries is None:
        return read_accelerators(value)
    kinds = tuple(_read(entry, at) for at, entry in entries)
    if not kinds:
        raise Unreadable("is an empty choice", "name one kind or more, like [T4:1, V100:1]")
    if len(kinds) > KINDS_MAX:
        raise Unreadable(f"has {len(kinds)} kinds, and at most {KINDS_MAX} are allowed", "remove some")
    names = [str(kind).casefold() for kind in kinds]
    for index, (at, _) in enumerate(entries):
        if names[index] in names[:index]:
            raise Unreadable(f"{shown(kinds[index])} is listed twice", "remove one of them", at=at)
    only = kinds[0]
    return only if len(kinds) == 1 and isinstance(only, Accelerators) else AnyOf(kinds)


Entries = list[tuple[tuple[str | int, ...], object]]
"""
The kinds of a choice, as the user wrote them. Each kind has the key at which it stands, relative to the key of the
choice.
"""


def entries_of(value: object) -> Entries | None:
    """Return the kinds of a choice as they were written; None if `value` is a single kind."""
    match value:
        case {"any_of": chosen, **others}:
            if others:
                raise Unreadable(f"{ANY_OF} must be the only key", _FORM)
            if not isinstance(chosen, list | tuple):
                raise Unreadable(f"must be a list, not {kind_of(chosen)}", _FORM, at=(ANY_OF,))
            return [((ANY_OF, index), entry) for index, entry in enumerate(chosen)]
        case list() | tuple():
            return [((index,), entry) for index, entry in enumerate(value)]
        case dict() if len(value) > 1 or None in value.values():
            return list(_of_mapping(value))
    return None


def _of_mapping(value: dict[object, object]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """
    Yield the kinds in a mapping such as `{V100: 1, T4: 2}`. Accept `{V100:1, T4:2}` too: without the spaces, YAML reads
    names without values.
    """
    for name, count in value.items():
        yield (str(name),), name if count is None else {name: count}


def _read(entry: object, at: tuple[str | int, ...]) -> Kind:
    try:
        if isinstance(entry, str) and is_instance_type(entry):
            return NamedType(entry)
        return read_accelerators(entry)
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(*at, *error.at)) from error
