"""
A project of Google Cloud with its instances, and all that can happen to them.

    project.stock_out("us-central1-a", "g2-standard-4")
    project.preempt("spotrun-0123456789-1")

What is asked for by HTTP comes here once its form is checked, under the project's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

from tests.support import gce_operations as kinds
from tests.support.gce_answers import DELETED_WHILE_MADE, NOTHING_DONE, Json, already_exists, not_ready
from tests.support.gce_catalog import KINDS
from tests.support.gce_charges import Step
from tests.support.gce_insert import (
    check_labels,
    check_metadata,
    check_network,
    checked_disk,
    checked_kind,
    checked_scheduling,
)
from tests.support.gce_lives import GceLives
from tests.support.gce_operations import Operation
from tests.support.gce_vm import Disk, Vm


@dataclass
class GceProject(GceLives):
    """Zones in `unreachable` do not answer lists."""

    unreachable: set[str] = field(default_factory=set)

    # -- powers over the world -----------------------------------------------------------------------------------

    def vm(self, name: str) -> Vm:
        """
        Raises:
            KeyError: there is none of this name.
        """
        with self.lock:
            found = [vm for (_, each), vm in self.vms.items() if each == name]
            if len(found) != 1:
                raise KeyError(name)
            return found[0]

    @contextmanager
    def _acting(self, name: str) -> Iterator[Vm]:
        """Something happens to an instance, and what follows from it at once has happened too."""
        with self.lock:
            yield self.vm(name)
            self.settle()

    def preempt(self, name: str, notice: timedelta | None = None) -> None:
        """
        Take a Spot VM. Its metadata says so `notice` before the ACPI signal: as long as its launch asked for, if that
        is None. The power is off `shutdown` after the signal. https://cloud.google.com/compute/docs/instances/spot
        """
        with self._acting(name) as vm:
            assert vm.is_spot
            assert (vm.status, vm.going) == ("RUNNING", None)
            self.machines.noticed(vm)
            self._later(vm, vm.notice if notice is None else notice, partial(self._shut_down, vm, kinds.PREEMPTED))

    def preempt_at_once(self, name: str) -> None:
        """Its power is off without a word to it: a notice is best effort."""
        with self._acting(name) as vm:
            self._power_off(vm, kinds.PREEMPTED)

    def power_off(self, name: str) -> None:
        """
        By the guest itself. After the ACPI signal of a preemption that is its end; before, it is `guestTerminate`, and
        nothing is deleted: https://cloud.google.com/compute/docs/instances/stop-start-instance.
        """
        with self._acting(name) as vm:
            self._power_off(vm, vm.going or kinds.GUEST_TERMINATE)

    def host_error(self, name: str) -> None:
        """https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-reboots"""
        with self._acting(name) as vm:
            self._power_off(vm, kinds.HOST_ERROR)

    def stock_out(self, zone: str, kind: str, capacity: str | None = None) -> None:
        """From now on there is none to be had: SPOT, STANDARD, or None for both."""
        with self.lock:
            self.supply.stock_out(zone, kind, capacity)

    def restock(self, zone: str, kind: str, capacity: str | None = None) -> None:
        with self.lock:
            self.supply.restock(zone, kind, capacity)

    def set_quota(self, metric: str, limit: float, region: str | None = None) -> None:
        """Of one region, or of all; GPUS_ALL_REGIONS is that of the whole project."""
        with self.lock:
            self.supply.set_quota(metric, limit, region)

    def lag(self, by: timedelta) -> None:
        """From now on the API sees a guest's death so much later."""
        self.timings.lag = by

    def price(self, kind: str, region: str, usd: Decimal, since: datetime) -> None:
        """A spot price from a moment on."""
        with self.lock:
            self._charges.steps.setdefault((kind, region), []).append(Step(since, usd))

    # -- what is asked for ---------------------------------------------------------------------------------------

    def insert(self, zone: str, asked: Json, user: str, request_id: str | None) -> Operation:
        """
        Accept an instance; whether it is had is in the operation.

        Raises:
            Refusal: the request is wrong, or its name is in use.
        """
        vm = self._checked(zone, asked)
        found = self._vms.get((zone, vm.name))
        if found is not None:
            raise (not_ready if found.status == "STOPPING" else already_exists)(found.path)
        self._vms[zone, vm.name] = vm
        vm.making = self._operation("insert", vm, user, request_id)
        self.agenda.after(self.timings.decided, partial(self._decide, vm, vm.making, self._failure))
        return vm.making

    def delete(self, vm: Vm, user: str, request_id: str | None) -> Operation:
        """A second call waits for the same end. One that is still being made is not: that operation says so."""
        operation = self._operation("delete", vm, user, request_id)
        if self._failure is not None:
            self._soon_over(operation, None if self._failure is NOTHING_DONE else self._failure)
            return operation
        first, was_off = not vm.ending, vm.status == "TERMINATED"
        vm.ending.append(operation)
        if vm.making is not None and vm.making.ended is None:
            self._end_operation(vm.making, DELETED_WHILE_MADE)
        if first:
            vm.status = "STOPPING"
            if vm.going is None and vm.off is None and vm.starts:
                self.machines.stopping(vm)
            delay = self.timings.queued if was_off or not vm.starts else self.timings.shutdown
            self.agenda.after(delay, partial(self._deleted, vm))
        return operation

    def stop(self, vm: Vm, user: str) -> Operation:
        if vm.status not in ("RUNNING", "TERMINATED"):
            raise not_ready(vm.path)
        operation = self._operation("stop", vm, user, None)
        if vm.status == "TERMINATED":
            self._soon_over(operation)
            return operation
        vm.status = "STOPPING"
        self.machines.stopping(vm)
        self._later(vm, self.timings.shutdown, partial(self._stopped_by, vm, operation))
        return operation

    def delete_disk(self, disk: Disk, user: str, request_id: str | None) -> Operation:
        operation = self._operation("delete", disk, user, request_id)
        self.agenda.after(self.timings.queued, partial(self._disk_deleted, disk, operation))
        return operation

    def simulate_maintenance(self, vm: Vm, user: str, request_id: str | None) -> Operation:
        """A Spot VM is preempted: https://cloud.google.com/compute/docs/instances/simulating-host-maintenance."""
        operation = self._operation("simulateMaintenanceEvent", vm, user, request_id)
        self.preempt(vm.name)
        self._soon_over(operation)
        return operation

    def _checked(self, zone: str, asked: Json) -> Vm:
        kind = checked_kind(asked, zone)
        scheduling = checked_scheduling(asked, kind)
        labels = dict(asked.get("labels") or {})
        check_labels(labels)
        check_metadata(asked)
        check_network(asked, zone)
        number = next(self._ids)
        interface = asked["networkInterfaces"][0]
        external = f"203.0.113.{number % 250 + 1}" if interface.get("accessConfigs") else None
        address = f"10.10.{number // 250 % 250}.{number % 250 + 2}"
        disks = self._wished_disks(zone, asked, kind.name)
        return Vm(number, self.name, zone, asked, kind, scheduling, self.agenda.now, address, external, disks, labels)

    def _wished_disks(self, zone: str, asked: Json, kind: str) -> list[Disk]:
        found = []
        for number, each in enumerate(asked.get("disks") or [{}]):
            field = f"disks[{number}]"
            image, disk_kind, size_gb = checked_disk(each, field, KINDS[kind], self.name)
            params = each["initializeParams"]
            labels = dict(params.get("labels") or {})
            check_labels(labels, f"{field}.initializeParams.labels")
            name = params.get("diskName") or (f"{asked['name']}-{number}" if number else asked["name"])
            link = f"https://www.googleapis.com/compute/v1/projects/{image.project}/global/images/{image.name}"
            keeps = not each.get("autoDelete")
            owner = asked["name"]
            place = (next(self._ids), name, self.name, zone, disk_kind, size_gb, link, labels, self.agenda.now)
            found.append(Disk(*place, auto_delete=not keeps, user=owner))
        return found
