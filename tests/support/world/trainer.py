"""How far a training is: a function of time, except for the moments at which it stands still."""

from __future__ import annotations

from math import ceil, floor

from spotrun.trainer_link import Progress
from tests.support.world.timings import Training

ROUNDING = 1e-9
"""In steps: a moment this little before the end of a step counts as that end."""


class SimulatedTrainer:
    """
    One trainer process: it has `first` steps behind it and begins the next at `starts_s`, and then does one step after
    another unless it is told to stand still. All moments are seconds since the world began.
    """

    def __init__(self, training: Training, first: int, starts_s: float) -> None:
        self._training = training
        self._last = training.steps
        self.first = min(first, training.steps - 1)
        self._step, self._from_s = self.first, starts_s

    def step_at(self, now_s: float) -> int:
        """The newest step that is done."""
        done = floor((now_s - self._from_s) / self._training.step_s + ROUNDING)
        return min(self._last, self._step + max(0, done))

    def done_s(self, step: int) -> float:
        """When that step is done, if training does not stand still before."""
        return self._from_s + (step - self._step) * self._training.step_s

    def between_steps_s(self, now_s: float) -> float:
        """The next moment, from now on, between two steps: before the first one, when training begins."""
        since = max(0.0, now_s - self._from_s) / self._training.step_s
        step = min(self._last, self._step + max(0, ceil(since - ROUNDING)))
        return max(self.done_s(max(step, self.first + 1)), now_s)

    def stand_still(self, now_s: float, seconds: float) -> None:
        """Between two steps."""
        self._step = self.step_at(now_s)
        self._from_s = now_s + seconds

    def stop(self, now_s: float) -> None:
        """Stops for good."""
        self._last = self.step_at(now_s)

    def progress(self, now_s: float) -> Progress:
        """As the callback reports it. Batches are counted in thousandths of a step: epochs may end within one."""
        step, per_epoch = self.step_at(now_s), self._training.steps_per_epoch
        return Progress(
            epoch=int(step / per_epoch),
            batch=int(step % per_epoch * 1000),
            batches=int(per_epoch * 1000),
            step=step,
            epochs=self._training.epochs,
            phase="train",
        )
