"""
What can be had in a project: quotas of its regions, and the stock of its zones.

https://cloud.google.com/compute/resource-usage
https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.gce_answers import Failure, quota_exceeded, stockout
from tests.support.gce_catalog import GLOBAL_QUOTAS, QUOTAS, REGIONS, MachineKind
from tests.support.gce_vm import Vm

SPOT, STANDARD = "SPOT", "STANDARD"


class Supply:
    """`quotas` are by metric and region. `vms` are those of the project."""

    def __init__(self, project: str, vms: Mapping[tuple[str, str], Vm]) -> None:
        self.quotas = {(metric, region): limit for region in REGIONS for metric, limit in QUOTAS.items()}
        self.global_quotas = dict(GLOBAL_QUOTAS)
        self._project = project
        self._vms = vms
        self._out: set[tuple[str, str, str]] = set()

    def stock_out(self, zone: str, kind: str, capacity: str | None = None) -> None:
        """From now on there is none to be had: SPOT, STANDARD, or None for both."""
        self._out |= {(zone, kind, each) for each in _capacities(capacity)}

    def restock(self, zone: str, kind: str, capacity: str | None = None) -> None:
        self._out -= {(zone, kind, each) for each in _capacities(capacity)}

    def set_quota(self, metric: str, limit: float, region: str | None = None) -> None:
        """Of one region, or of all; a metric of the whole project is that of no region."""
        if metric in self.global_quotas:
            self.global_quotas[metric] = limit
            return
        for each in REGIONS if region is None else (region,):
            self.quotas[metric, each] = limit

    def refusal(self, vm: Vm) -> Failure | None:
        return self._over_quota(vm) or self._out_of_stock(vm)

    def _out_of_stock(self, vm: Vm) -> Failure | None:
        capacity = SPOT if vm.is_spot else STANDARD
        if self.has_stock(vm.zone, vm.kind, capacity):
            return None
        others = tuple(zone for zone in REGIONS[vm.region] if self.has_stock(zone, vm.kind, capacity))
        gpu = vm.kind.gpu
        attachment = f"{gpu.name}:{gpu.number}" if gpu is not None else ""
        return stockout(self._project, vm.zone, vm.kind.name, attachment, others)

    def has_stock(self, zone: str, kind: MachineKind, capacity: str) -> bool:
        return zone in kind.zones and (zone, kind.name, capacity) not in self._out

    def _over_quota(self, vm: Vm) -> Failure | None:
        for metric, amount in self.uses(vm).items():
            limit = self.quotas[metric, vm.region]
            if self.usage(metric, vm.region, but=vm) + amount > limit:
                return quota_exceeded(metric, limit, vm.region)
        count = vm.kind.gpu.number if vm.kind.gpu is not None else 0
        limit = self.global_quotas["GPUS_ALL_REGIONS"]
        if count and self.gpus_in_use(but=vm) + count > limit:
            return quota_exceeded("GPUS_ALL_REGIONS", limit, None)
        return None

    def uses(self, vm: Vm) -> dict[str, float]:
        """
        What it takes of its region's quotas. A spot VM takes of the standard ones where no preemptible one was granted:
        https://cloud.google.com/compute/resource-usage#preemptible_quota.
        """
        found: dict[str, float] = {"INSTANCES": 1, "CPUS": vm.kind.cpus}
        if vm.kind.gpu is not None:
            found[vm.kind.gpu.metric] = vm.kind.gpu.number
        return {self._preemptible(metric, vm): amount for metric, amount in found.items()}

    def _preemptible(self, metric: str, vm: Vm) -> str:
        other = f"PREEMPTIBLE_{metric}"
        return other if vm.is_spot and self.quotas.get((other, vm.region)) else metric

    def usage(self, metric: str, region: str, but: Vm | None = None) -> float:
        """Instances that are stopped use none."""
        return sum(self.uses(vm).get(metric, 0) for vm in self._in_use(but) if vm.region == region)

    def gpus_in_use(self, but: Vm | None = None) -> int:
        return sum(vm.kind.gpu.number for vm in self._in_use(but) if vm.kind.gpu is not None)

    def _in_use(self, but: Vm | None) -> list[Vm]:
        return [vm for vm in self._vms.values() if vm is not but and vm.status not in ("PROVISIONING", "TERMINATED")]


def _capacities(capacity: str | None) -> tuple[str, ...]:
    return (SPOT, STANDARD) if capacity is None else (capacity,)
