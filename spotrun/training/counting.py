"""
Counts a run's epochs and steps across all fit() calls of a script: each fit continues the previous fit's counts, even
if the framework itself counts from 0 in each fit.
"""

from __future__ import annotations

from functools import cached_property

from spotrun.trainer_link import Resume
from spotrun.training.framework import Framework


class Counting:
    """
    Epoch and step counts for the `fit`-th fit of its process.

    `there` is the framework's epoch and step in the snapshot from which the fit resumes; None for a fresh start. A
    fresh fit() may first load a checkpoint of the user's, which changes the framework's counts. So `begins` must be
    called after that load.
    """

    def __init__(self, framework: Framework, resume: Resume, there: tuple[int, int] | None) -> None:
        self._framework = framework
        self._resume = resume
        self._there = there
        self.fit = resume.fit

    def begins(self) -> None:
        """Compute, at the framework's first batch, how far the run's counts are ahead of the framework's."""
        _ = self._ahead

    def epoch(self, epoch: int) -> int:
        """
        Return the number that the framework's `epoch` has in the run.

        A fit() that trains nothing ends at the framework's epoch -1. For -1 the result is the run's last epoch before
        that fit, or 0.
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
