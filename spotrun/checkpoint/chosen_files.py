"""Which files of a work folder belong to a checkpoint, as both sides of the line have to know it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotrun.spec.patterns import chooser


def all_but(patterns: Sequence[str]) -> Callable[[str], bool]:
    """What chooses the files that no pattern names."""
    excluded = chooser(patterns)
    return lambda path: not excluded(path)
