"""Wraps methods of existing objects, so that calls go through functions of spotrun."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Tap = Callable[..., Any]
"""A function that replaces a method. It gets the original method and the arguments of the call."""


class Taps:
    """Wrappers around methods of single objects. An object's class and its other instances stay unchanged."""

    def __init__(self) -> None:
        self._tapped: list[tuple[Any, str, Any]] = []

    def around(self, owner: Any, name: str, function: Tap) -> None:
        """
        Replace the method `name` of `owner` with a wrapper. From then on, a call `owner.name(…)` calls
        `function(original, …)`, where `original` is the method that was replaced.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        self._tapped.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, tapped)

    def close(self) -> None:
        """Restore the objects. Idempotent."""
        while self._tapped:
            owner, name, before = self._tapped.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
