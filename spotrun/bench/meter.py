"""
Measures a training's steady speed from its agent's statuses. Pure: it only computes.

The first steps are left out, because during them the script compiles, allocates memory, and fills the data loaders'
queues. The later steps are divided into blocks. The spread of the blocks' speeds shows how certain the result is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, quantiles

import msgspec

from spotrun.folder.status_objects import AgentStatus, TrainingStatus, Usage

WARM_UP_STEPS = 10
BLOCKS = 6
"""Minimum number of blocks in a measurement."""
QUARTERS = 4


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """
    A measurement of `steps` steps and `samples` samples in `seconds` of training, without the first steps.

    - `low`, `high`: the lower and the upper quartile of the blocks' steps per second
    - `doubt`: the uncertainty of the mean seconds per step. It is half the width of the mean's 95 % confidence
      interval, divided by the mean. It is computed from the differences between the blocks, and is 0 if there is only
      one block.
    - `data_wait`: the share of `seconds` in which the training waited for data
    - `cpu_share`: the share of `seconds` in which the run's own processes kept the `cpus` processors that they may use
      busy; None if unknown
    - `gpu_share`: the share of `seconds` in which the GPUs were busy; None if unknown
    - `memory_bytes`, `gpu_memory_bytes`: the peak memory use of the machine, and of all its GPUs together
    - `steps_total`: the number of steps of the whole training; None if unknown
    """

    steps: int
    samples: int
    seconds: float
    low: float
    high: float
    data_wait: float
    doubt: float = 0.0
    cpus: int = 0
    cpu_share: float | None = None
    gpu_share: float | None = None
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    steps_total: float | None = None

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second; None if the training does not report the sizes of its batches."""
        return self.samples / self.seconds if self.samples else None

    @property
    def samples_total(self) -> float | None:
        """
        The number of samples that the whole training trains on. None if the training does not report its total number
        of steps, or how many samples it has trained on.
        """
        return None if self.steps_total is None or not self.samples else self.steps_total * self.samples / self.steps


class Meter:
    """Measures `steps` steps from an agent's statuses. Before that, `warm_up` steps pass that are not measured."""

    def __init__(self, steps: int, warm_up: int = WARM_UP_STEPS) -> None:
        self._steps = steps
        self.warm_up = warm_up
        self._launch: int | None = None
        self._from = TrainingStatus()
        self._last = TrainingStatus()
        self._warm = False
        self._blocks: list[TrainingStatus] = []
        self._usages: list[Usage] = []
        self._status: AgentStatus | None = None

    def show(self, status: AgentStatus) -> None:
        """Add a status to the measurement. If the training has started over, measure from the beginning."""
        now = status.trained
        if status.launch != self._launch or now.steps < self._last.steps:
            self._launch, self._warm, self._from, self._blocks, self._usages = status.launch, False, now, [], []
        if now == self._last and self._warm:
            return
        self._last, self._status = now, status
        if not self._warm:
            self._warm = now.steps >= self.warm_up
            self._from = now
            return
        if status.usage is not None:
            self._usages.append(status.usage)
        done = _between(self._from, now)
        if done.steps >= self._block_steps and done.seconds > 0:
            self._blocks.append(done)
            self._from = now

    @property
    def _block_steps(self) -> int:
        return max(1, self._steps // (2 * BLOCKS))

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self._blocks)

    @property
    def enough(self) -> bool:
        return len(self._blocks) >= BLOCKS and self.steps >= self._steps

    @property
    def measured(self) -> Measurement | None:
        """The measurement so far; None until the first block is complete."""
        if not self._blocks:
            return None
        assert self._status is not None
        rates = [block.steps / block.seconds for block in self._blocks]
        low, _, high = quantiles(rates, n=QUARTERS, method="inclusive") if len(rates) > 1 else rates * 3
        whole = sum(self._blocks, TrainingStatus())
        used, shares = self._usages, [usage.gpu_share for usage in self._usages if usage.gpu_share is not None]
        own = [usage.own_cpu_share for usage in used if usage.own_cpu_share is not None]
        return Measurement(
            steps=whole.steps,
            samples=whole.samples,
            seconds=whole.seconds,
            low=low,
            high=high,
            doubt=_doubt(self._blocks),
            data_wait=min(1.0, whole.waited_s / whole.seconds),
            cpus=used[-1].own_cpus if used else 0,
            cpu_share=fmean(own) if own else None,
            gpu_share=fmean(shares) if shares else None,
            memory_bytes=max((usage.memory_used_bytes for usage in used), default=0),
            gpu_memory_bytes=max((usage.gpu_memory[0] for usage in used), default=0),
            steps_total=self._status.steps_total,
        )


def _doubt(blocks: Sequence[TrainingStatus]) -> float:
    """Return twice the standard error of the mean seconds per step, as a share of that mean."""
    if len(blocks) < 2:
        return 0.0
    whole = sum(blocks, TrainingStatus())
    mean = whole.seconds / whole.steps
    spread = sqrt(sum(each.steps * (each.seconds / each.steps - mean) ** 2 for each in blocks) / whole.steps)
    return 2 * spread / mean / sqrt(len(blocks))


def _between(before: TrainingStatus, now: TrainingStatus) -> TrainingStatus:
    return TrainingStatus(
        seconds=max(0.0, now.seconds - before.seconds),
        waited_s=max(0.0, now.waited_s - before.waited_s),
        steps=max(0, now.steps - before.steps),
        samples=max(0, now.samples - before.samples),
    )
