"""
Counts epochs and steps across all fit() calls of a script: each fit continues the counts of the previous fit, even if
the framework counts from 0 in each fit.
"""

from __future__ import annotations

from functools import cached_property

from spotrun.trainer_link import Resume
from spotrun.training.framework import Framework


class Counting:
    """
    Epoch and step counts for fit number `fit` of this process.

    `there` contains the epoch and step that the framework had reached in the snapshot from which the fit resumes. It is
    None if the fit starts fresh. Then the script may still load a checkpoint of its own, which changes the framework's
    counts, so call `begins` only at the first batch.
    """

    def __init__(self, framework: Framework, resume: Resume, there: tuple[int, int] | None) -> None:
        self._framework = framework
        self._resume = resume
        self._there = there
        self.fit = resume.fit

    def begins(self) -> None:
        """
        Compute the differences between the run's counts and the framework's. Call this at the first batch that the
        framework trains on.
        """
        _ = self._ahead

    def epoch(self, epoch: int) -> int:
        """
        Convert the framework's epoch number to the run's epoch number.

        A fit() that trains nothing ends with the framework's epoch at -1. The result is then the run's last epoch
        before that fit. If there was no epoch before it, the result is 0.
        """
        return max(0, epoch + self._ahead[0])

    def step(self, step: int) -> int:
        return step + self._ahead[1]

    @cached_property
    def _ahead(self) -> tuple[int, int]:
        """The numbers of epochs and steps by which the run is ahead of the framework."""
        here = self._resume
        if self._there is not None:
            return here.epoch - self._there[0], here.step - self._there[1]
        if self.fit == 1:
            return 0, 0
        return here.epoch + 1 - self._framework.epoch, here.step - self._framework.step
