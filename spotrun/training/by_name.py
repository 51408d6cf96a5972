"""Recognises objects of libraries by the names of their classes: of both Lightning packages, without an import."""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Return whether its class, or one of its bases, has one of these names."""
    return any(cls.__name__ in names for cls in type(thing).__mro__)
