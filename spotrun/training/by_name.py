"""
Recognises objects of libraries by the names of their classes. This works for both Lightning packages without importing
either.
"""

from __future__ import annotations


def is_a(thing: object, *names: str) -> bool:
    """Return True if the class of `thing`, or one of its base classes, has one of these names."""
    return any(cls.__name__ in names for cls in type(thing).__mro__)
