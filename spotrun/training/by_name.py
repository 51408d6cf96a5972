"""Objects of libraries, known by the names of their classes: those of both Lightning packages, without an import."""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Whether its class, or one that this is made of, has one of these names."""
    return any(cls.__name__ in names for cls in type(thing).__mro__)
