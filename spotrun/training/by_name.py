"""Recognises library objects by their class names. Covers both Lightning packages without importing either."""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Return whether `thing` is of a class that has one of these names, or of a subclass of such a class."""
    return any(cls.__name__ in names for cls in type(thing).__mro__)
