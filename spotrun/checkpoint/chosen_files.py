"""Chooses the files of a work folder that belong to a checkpoint. Both the agent and the trainer use this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotrun.spec.patterns import chooser


def all_but(patterns: Sequence[str]) -> Callable[[str], bool]:
    excluded = chooser(patterns)
    return lambda path: not excluded(path)
