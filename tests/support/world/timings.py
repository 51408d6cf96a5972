"""How long things take in a world, and what the job is that is trained in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, inf

import msgspec

from spotrun.offering import Pool
from tests.support.world.rng import Range, Rng

Starts = Callable[[int], tuple[float, float]]
"""Seconds of boot and of set-up of a world's instance by its number, from 0 in the order of launches."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How clouds and agents behave. Ranges are in seconds, and drawn anew for each instance.

    An instance is pending for `pending_s`, then billed; boots for `boot_s`; sets up for `setup_s`; and its trainer
    takes `restore_s` from the takeover to its first step, or `warm_restore_s` where it waited as a standby. The cloud
    announces a loss `notice_s` before it, except for the share `unannounced`.

    Once an instance has set up and stored what that made, the others unpack it in the share `unpack` of their own
    set-up's time, and storing takes as long as unpacking. With 1 each sets up anew.

    For the share `recommended` of all losses it recommends to rebalance `lead_s` before it would give notice; and to
    `alarms_per_hour` of the instances in an hour although nothing follows. No cloud publishes such figures; GCP
    recommends nothing, and EC2 says that its recommendation may come along with the notice, which is none in time.
    """

    pending_s: Range = (30.0, 30.0)
    boot_s: Range = (30.0, 90.0)
    setup_s: Range = (30.0, 120.0)
    unpack: float = 1.0
    restore_s: Range = (20.0, 40.0)
    warm_restore_s: Range = (3.0, 6.0)
    notice_s: float = 120.0
    unannounced: float = 0.1
    recommended: float = 0.0
    lead_s: Range = (0.0, 600.0)
    alarms_per_hour: float = 0.0

    def recommended_s(self, rng: Rng, pool: Pool, taken_s: float, launched_s: float, token: str) -> float:
        """When an instance is first told that it might be taken; inf where it never is, or only with its notice."""
        early_s = taken_s - self.notice_s - rng.between(self.lead_s, "lead", pool.zone, taken_s)
        known = taken_s < inf and rng.happens(self.recommended, "recommended", pool.zone, taken_s)
        after_s = rng.waiting_s(self.alarms_per_hour, "alarm", token)
        return min(early_s if known and early_s > launched_s else inf, launched_s + after_s)

    def told_s(self, rng: Rng, pool: Pool, taken_s: float) -> float:
        """When the loss of a pool at `taken_s` is announced, to all of its instances or (inf) to none."""
        if taken_s == inf or rng.happens(self.unannounced, "unannounced", pool.zone, taken_s):
            return inf
        return taken_s - self.notice_s


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job of `steps` steps of `step_s` seconds. For each checkpoint it stands still for `stall_s`; `upload_s` later that
    is durable. `speeds` has, by instance type, how many times as fast its steps are there, which nobody tells the run.
    """

    steps: int
    step_s: float = 1.0
    epochs: int = 10
    stall_s: float = 1.0
    upload_s: float = 5.0
    size_bytes: int = 10**8
    speeds: Mapping[str, float] = {}

    def on(self, instance_type: str) -> Training:
        """The same job as it goes there."""
        return msgspec.structs.replace(self, step_s=self.step_s / self.speeds.get(instance_type, 1.0))

    @property
    def steps_per_epoch(self) -> float:
        return self.steps / self.epochs

    @property
    def work_s(self) -> float:
        """Seconds of training, without any checkpoint."""
        return self.steps * self.step_s

    def epoch_of(self, step: int) -> int:
        """The epoch (from 0) that goes on after `step`; the last one after the last."""
        return min(self.epochs - 1, int(step / self.steps_per_epoch + 1e-9))

    def epoch_end(self, epoch: int) -> int:
        """The step on which `epoch` (from 0) ends."""
        return ceil((epoch + 1) * self.steps_per_epoch - 1e-9)
