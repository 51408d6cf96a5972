"""Recognises library objects by their class names. Covers both Lightning packages without importing either."""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Return whether the class of `thing`, or one of its bases, has one of `names`."""
    return any(cls.__name__ in names for cls in type(thing).__mro__)
