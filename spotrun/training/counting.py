"""Epochs and steps as the run counts them: on over all fits of a script, wherever a framework begins with each."""

from __future__ import annotations

from functools import cached_property

from spotrun.trainer_link import Resume
from spotrun.training.framework import Framework


class Counting:
    """
    Counts of the `fit`-th fit of its process. One that resumes was at `there`, an epoch and a step of the framework's.

    A fit() that begins afresh may load a checkpoint of the user's first: the caller calls `begins` when that is done.
    """

    def __init__(self, framework: Framework, resume: Resume, there: tuple[int, int] | None) -> None:
        self._framework = framework
        self._resume = resume
        self._there = there
        self.fit = resume.fit

    def begins(self) -> None:
        """Fix the counts: the framework is where its first batch begins."""
        _ = self._ahead

    def epoch(self, epoch: int) -> int:
        """
        Return the run's epoch; for -1, where a fit() that trains nothing ends, the last one before it, or the first.
        """
        return max(0, epoch + self._ahead[0])

    def step(self, step: int) -> int:
        return step + self._ahead[1]

    @cached_property
    def _ahead(self) -> tuple[int, int]:
        """The number of epochs and steps by which the run is ahead of the framework."""
        here = self._resume
        if self._there is not None:
            return here.epoch - self._there[0], here.step - self._there[1]
        if self.fit == 1:
            return 0, 0
        return here.epoch + 1 - self._framework.epoch, here.step - self._framework.step
