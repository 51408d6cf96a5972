"""
How instances come to run and how they end, by a clock that tests hold; and which operations that leaves behind.

Rules are those of https://cloud.google.com/compute/docs/instances/instance-lifecycle unless another address is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Protocol

from tests.support import gce_operations as kinds
from tests.support.gce_agenda import Agenda, Now
from tests.support.gce_answers import Failure, account_unknown, already_exists, failed
from tests.support.gce_catalog import PROJECT
from tests.support.gce_charges import Charges, Kept, Running
from tests.support.gce_operations import Operation, OperationLog, operation_name
from tests.support.gce_supply import Supply
from tests.support.gce_vm import Disk, Vm

Key = tuple[str, str]
"""Zone and name."""


class Machines(Protocol):
    """Whoever executes instances is told what happens to them, at once and under the project's lock."""

    def started(self, vm: Vm) -> None:
        """It is RUNNING."""

    def noticed(self, vm: Vm) -> None:
        """`instance/preempted` in its metadata is TRUE."""

    def stopping(self, vm: Vm) -> None:
        """It got the ACPI signal to shut down."""

    def ended(self, vm: Vm) -> None:
        """Its power is off."""


class NoMachines:
    def started(self, vm: Vm) -> None: ...
    def noticed(self, vm: Vm) -> None: ...
    def stopping(self, vm: Vm) -> None: ...
    def ended(self, vm: Vm) -> None: ...


@dataclass
class Timings:
    """
    `queued` is until an operation runs, `decided` until what is asked for is had or refused (dstack sees that in less
    than 30 s), `boot` from there to RUNNING. `shutdown` is what a guest takes after the ACPI signal: at most 30 s when
    it is preempted. `late` is by how much a time limit is late. `lag` is how long the API takes to see a guest's
    death: 2 to 3.5 min in two public drills of preemptions.
    """

    queued: timedelta = timedelta(seconds=1)
    decided: timedelta = timedelta(seconds=3)
    boot: timedelta = timedelta(seconds=6)
    shutdown: timedelta = timedelta(seconds=20)
    late: timedelta = timedelta(seconds=10)
    lag: timedelta = timedelta()


@dataclass
class GceLives:
    """`accounts` are the service accounts that instances may be given; None is any."""

    clock: Now
    name: str = PROJECT
    machines: Machines = field(default_factory=NoMachines)
    timings: Timings = field(default_factory=Timings)
    accounts: Container[str] | None = None

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.agenda = Agenda(self.clock)
        self._charges = Charges()
        self._operations = OperationLog()
        self._vms: dict[Key, Vm] = {}
        self._disks: dict[Key, Disk] = {}
        self.supply = Supply(self.name, self._vms)
        self._failure: Failure | None = None
        self._ids = count(4_611_686_018_427_387_905)

    @property
    def now(self) -> datetime:
        """The moment of what happens, or the clock's when all has happened."""
        self.settle()
        return self.agenda.now

    @property
    def vms(self) -> dict[Key, Vm]:
        self.settle()
        return self._vms

    @property
    def disks(self) -> dict[Key, Disk]:
        self.settle()
        return self._disks

    @property
    def charges(self) -> Charges:
        self.settle()
        return self._charges

    @property
    def operations(self) -> OperationLog:
        self.settle()
        return self._operations

    def settle(self) -> None:
        with self.lock:
            self.agenda.settle()

    # -- making --------------------------------------------------------------------------------------------------

    @contextmanager
    def failing(self, failure: Failure | None) -> Iterator[None]:
        """Inserts and deletes that are begun inside end so. NOTHING_DONE: they end well, and nothing is done."""
        self._failure = failure
        try:
            yield
        finally:
            self._failure = None

    def _decide(self, vm: Vm, operation: Operation, failure: Failure | None) -> None:
        if operation.ended is not None:
            return
        failure = failure or self._refusal(vm)
        if failure is not None and not failure.keeps:
            del self._vms[vm.zone, vm.name]
            self._end_operation(operation, failure)
            return
        vm.status = "STAGING"
        for disk in vm.disks:
            self._disks[disk.zone, disk.name] = disk
            self._charges.kept.append(Kept(disk.name, disk.zone, disk.kind, disk.size_gb, self.agenda.now))
        self.agenda.after(self.timings.boot, partial(self._run, vm, failure))

    def _refusal(self, vm: Vm) -> Failure | None:
        """The most permanent first."""
        if self.accounts is not None and vm.account is not None and vm.account not in self.accounts:
            return account_unknown(vm.account)
        for disk in vm.disks:
            if (disk.zone, disk.name) in self._disks:
                return failed(already_exists(disk.path), "RESOURCE_ALREADY_EXISTS")
        return self.supply.refusal(vm)

    def _run(self, vm: Vm, failure: Failure | None = None) -> None:
        """It runs, whatever its operation says."""
        if not self._is_here(vm) or vm.ending or vm.status == "STOPPING":
            return
        vm.status, vm.started, vm.off, vm.going = "RUNNING", self.agenda.now, None, None
        vm.starts += 1
        address = vm.external is not None
        self._charges.running.append(Running(vm.name, vm.zone, vm.kind.name, vm.is_spot, address, self.agenda.now))
        if vm.making is not None:
            self._end_operation(vm.making, failure)
        self.machines.started(vm)
        if vm.limit is not None:
            self.agenda.after(vm.limit + self.timings.late, partial(self._limit_is_over, vm, vm.starts))

    # -- ending --------------------------------------------------------------------------------------------------

    def _limit_is_over(self, vm: Vm, starts: int) -> None:
        if not self._is_here(vm) or vm.starts != starts or vm.ending or vm.going is not None:
            return
        kind = kinds.DEFERRED_DELETE if vm.is_deleted_at_its_end else kinds.DEFERRED_STOP
        if vm.off is None:
            self._shut_down(vm, kind)

    def _shut_down(self, vm: Vm, kind: str) -> None:
        """The ACPI signal, and then the end. The API says STOPPING, unless it lags. Nothing if it is ending anyway."""
        if vm.going is not None or vm.status != "RUNNING":
            return
        vm.going, vm.signalled = kind, self.agenda.now
        if not self.timings.lag:
            vm.status = "STOPPING"
        self.machines.stopping(vm)
        self._later(vm, self.timings.shutdown, partial(self._power_off, vm, kind))

    def _power_off(self, vm: Vm, kind: str) -> None:
        if vm.off is not None:
            return
        vm.going, vm.signalled = kind, vm.signalled or self.agenda.now
        self._off(vm, was_preempted=kind == kinds.PREEMPTED)
        if self.timings.lag:
            self._later(vm, self.timings.lag, partial(self._seen_off, vm, kind, self.agenda.now))
        else:
            self._seen_off(vm, kind, self.agenda.now)

    def _off(self, vm: Vm, was_preempted: bool = False) -> None:
        vm.off = self.agenda.now
        running = next(each for each in reversed(self._charges.running) if (each.zone, each.name) == (vm.zone, vm.name))
        running.until, running.was_preempted = self.agenda.now, was_preempted
        self.machines.ended(vm)

    def _seen_off(self, vm: Vm, kind: str, at: datetime) -> None:
        """The API has seen that it is off. Who was asked to delete it does so."""
        self._log(kind, vm, at)
        vm.going = vm.signalled = None
        ends_it = kind in (kinds.PREEMPTED, kinds.DEFERRED_DELETE, kinds.DEFERRED_STOP)
        if ends_it and vm.is_deleted_at_its_end and not vm.ending:
            self._forget(vm)
            return
        if not vm.ending:
            vm.status, vm.stopped = "TERMINATED", at

    def _stopped_by(self, vm: Vm, operation: Operation) -> None:
        if not vm.ending:
            self._off(vm)
            vm.status, vm.stopped = "TERMINATED", self.agenda.now
        self._end_operation(operation)

    def _deleted(self, vm: Vm) -> None:
        if not self._is_here(vm):
            return
        if vm.starts and vm.off is None:
            self._off(vm, was_preempted=vm.going == kinds.PREEMPTED)
        if vm.going is not None and vm.off is not None:
            self._seen_off(vm, vm.going, vm.off)
        self._forget(vm)

    def _forget(self, vm: Vm) -> None:
        """Labels and all: only its operations remain. https://cloud.google.com/compute/docs/instances/deleting-instance"""
        if not self._is_here(vm):
            return
        del self._vms[vm.zone, vm.name]
        for disk in vm.disks:
            disk.user = None
            if disk.auto_delete and self._disks.get((disk.zone, disk.name)) is disk:
                self._drop(disk)
        for operation in vm.ending:
            self._end_operation(operation)

    def _disk_deleted(self, disk: Disk, operation: Operation) -> None:
        if self._disks.get((disk.zone, disk.name)) is disk:
            self._drop(disk)
        self._end_operation(operation)

    def _drop(self, disk: Disk) -> None:
        del self._disks[disk.zone, disk.name]
        kept = next(each for each in reversed(self._charges.kept) if (each.zone, each.name) == (disk.zone, disk.name))
        kept.until = self.agenda.now

    def _is_here(self, vm: Vm) -> bool:
        return self._vms.get((vm.zone, vm.name)) is vm

    # -- operations ----------------------------------------------------------------------------------------------

    def _later(self, vm: Vm, delay: timedelta, act: Callable[[], None]) -> None:
        """Unless it has ended by then, or is another life of it."""
        starts, off = vm.starts, vm.off
        self.agenda.after(delay, lambda: act() if self._is_here(vm) and (vm.starts, vm.off) == (starts, off) else None)

    def _operation(self, kind: str, target: Vm | Disk, user: str, request_id: str | None) -> Operation:
        place = (next(self._ids), operation_name(is_system=False), kind, self.name, target.zone, target.path)
        operation = self._operations.add(Operation(*place, target.id, user, self.agenda.now, request_id))
        self.agenda.after(self.timings.queued, partial(self._start_operation, operation))
        return operation

    def _start_operation(self, operation: Operation) -> None:
        operation.started = operation.started or self.agenda.now

    def _soon_over(self, operation: Operation, failure: Failure | None = None) -> None:
        self.agenda.after(self.timings.queued, partial(self._end_operation, operation, failure))

    def _end_operation(self, operation: Operation, failure: Failure | None = None) -> None:
        if operation.ended is None:
            operation.started = operation.started or self.agenda.now
            operation.ended, operation.failure = self.agenda.now, failure

    def _log(self, kind: str, vm: Vm, at: datetime) -> None:
        """What nobody called for, once it is over. It began with the ACPI signal."""
        place = (next(self._ids), operation_name(is_system=True), kind, self.name, vm.zone, vm.path)
        since = vm.signalled or at
        self._operations.add(Operation(*place, vm.id, kinds.SYSTEM, since, started=since, ended=at))
