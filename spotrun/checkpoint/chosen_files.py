"""Chooses the files of a work folder that belong to a checkpoint; agent and trainer both need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotrun.spec.patterns import chooser


def all_but(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a test that chooses the files that no pattern names."""
    excluded = chooser(patterns)
    return lambda path: not excluded(path)
