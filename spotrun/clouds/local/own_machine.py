"""
Offers the user's own machine like a rented one, at the price per hour that the job states. The machine serves one run
at a time.

Its instances are instances of the local cloud: process trees with a supervisor that enforces their time-to-live. While
a supervisor lives, it holds the lock on its instance's record; when it dies, the kernel frees the lock. So an instance
whose lock is free counts as ended.
"""

from __future__ import annotations

from collections.abc import Collection

from spotrun.clock import ScaledClock
from spotrun.clouds.local.busy_gpus import BusyGpus
from spotrun.clouds.local.catalog import InstanceType, Zone
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver, default_root
from spotrun.errors import CloudError, CloudUnavailable
from spotrun.instance import Instance, LaunchRequest
from spotrun.offering import HOME, CapacityType, Offering
from spotrun.spec.own_machine import HardwareSpec, this_host


class OwnMachine:
    """
    The user's own machine, which a job can name as its home. Only processes on that machine can see its instances. On
    any other machine, `offerings` and `instances` return an empty list. But if the caller of `instances` must see these
    instances, it raises an error instead.
    """

    def __init__(self, name: str, hardware: HardwareSpec, clock: ScaledClock, gpus: BusyGpus | None = None) -> None:
        kind = InstanceType(
            name=name,
            accelerators=str(hardware.accelerators or ""),
            cpus=hardware.cpus or 0,
            memory_gib=hardware.memory or 0,
            on_demand_usd_per_hour=hardware.price_usd_per_hour,
        )
        market = MarketConfig(boot_s=0.0, instance_types=(kind,), zones=(Zone(region=HOME, name=HOME),))
        self._kind, self._host = kind, hardware.host or this_host()
        self._local = LocalDriver(default_root(), clock, market)
        self._gpus = gpus or BusyGpus()
        self._mine: set[str] = set()
        self._taken_by: list[Instance] = []
        self._computing = ""

    @property
    def is_here(self) -> bool:
        return self._host == this_host()

    @property
    def remarks(self) -> tuple[str, ...]:
        name = self._kind.name
        if not self.is_here:
            return (f"{name} is the machine {self._host}; only a runner on it can train there",)
        others = sorted({each.run_uid for each in self._taken_by} - self._mine)
        if others:
            return (f"{name} is in use by the run {', '.join(others)}",)
        return (f"{name} is taken: {self._computing}",) if self._computing else ()

    def offerings(self) -> list[Offering]:
        """Return this machine as an offering, if no instance runs on it and no other process computes on its GPUs."""
        self._taken_by, self._computing = [], ""
        if not self.is_here:
            return []
        self._taken_by = [each for each in self._local.instances() if each.alive]
        if not self._taken_by:
            self._computing = self._gpus.taken_by()
        return [] if self._taken_by or self._computing else [self._offering()]

    def _offering(self) -> Offering:
        return Offering(
            cloud=self._local.name,
            region=HOME,
            zone=HOME,
            instance_type=self._kind.name,
            capacity_type=CapacityType.OWN,
            price_usd_per_hour=self._kind.on_demand_usd_per_hour,
            accelerators=self._kind.accelerators,
            cpus=self._kind.cpus,
            memory_gib=self._kind.memory_gib,
        )

    def launch(self, request: LaunchRequest) -> Instance:
        """
        Launch an instance on this machine, as `CloudDriver.launch` does. If two runs try this at the same time, only
        one succeeds.
        """
        if not self.is_here:
            raise CloudError(
                f"{self._kind.name} is the machine {self._host}, not this one", hint="launch from that machine"
            )
        self._mine.add(request.run_uid)
        return self._local.launch(request)

    def has(self, instance_id: str) -> bool:
        """Return True if `instance_id` is an instance on the user's own machine, running or ended."""
        found = self._local.describe(instance_id) if self.is_here else None
        return found is not None and found.offering.capacity_type is CapacityType.OWN

    def describe(self, instance_id: str) -> Instance | None:
        return self._local.describe(instance_id) if self.has(instance_id) else None

    def instances(self, run_uid: str | None, must_see: Collection[str] | None) -> list[Instance]:
        """
        Return the instances on the user's own machine; none if this process runs on a different machine.

        Raises:
            CloudUnavailable: this process runs on a different machine, and the caller must see the instances at home.
        """
        if not self.is_here:
            if must_see is not None and HOME in must_see:
                raise CloudUnavailable(
                    f"the instances on {self._kind.name} can be seen only from the machine {self._host}",
                    hint="run `spotrun resume` on that machine",
                )
            return []
        self._mine |= set() if run_uid is None else {run_uid}
        found = self._local.instances(run_uid)
        return [each for each in found if each.offering.capacity_type is CapacityType.OWN]

    def terminate(self, instance_id: str) -> None:
        self._local.terminate(instance_id)
