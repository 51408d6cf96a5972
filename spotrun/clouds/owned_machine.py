"""
Combines a cloud and a machine that the user owns into one cloud, so that a job can use both.

The user's machine is called home. Instances at home are instances of the local cloud; their price is the cost of using
the machine. A call about an instance goes to the cloud that the instance's offering names, and any other call to
the rented cloud.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from spotrun.clock import Clock, ScaledClock
from spotrun.clouds.cloud import Account, Cloud, RentalFlags, Shell
from spotrun.clouds.driver import CloudDriver, WrappedDriver
from spotrun.clouds.guards import Guards
from spotrun.clouds.identities import Identities
from spotrun.clouds.local.cloud import CLOUD as HERE
from spotrun.clouds.notices import NoticeSource
from spotrun.doctor.finding import Finding
from spotrun.instance import Instance, LaunchRequest
from spotrun.market.quotes import Quotes
from spotrun.offering import HOME, CapacityType, Offering
from spotrun.run.events import BillingRule
from spotrun.secrets.reference import Reference
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from spotrun.units import Unreadable, plain_usd

if TYPE_CHECKING:
    from spotrun.clouds.local.own_machine import OwnMachine


class OwnedMachineDriver(WrappedDriver):
    def __init__(self, rented: CloudDriver, home: OwnMachine) -> None:
        super().__init__(rented)
        self._home = home

    @property
    def remarks(self) -> tuple[str, ...]:
        return (*self._home.remarks, *super().remarks)

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return [*self._home.offerings(), *super().offerings(_without_home(must_see))]

    def launch(self, request: LaunchRequest) -> Instance:
        return self._home.launch(request) if _is_own(request.offering) else super().launch(request)

    def describe(self, instance_id: str) -> Instance | None:
        return self._home.describe(instance_id) or super().describe(instance_id)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        at_home = self._home.instances(run_uid, must_see)
        return [*at_home, *super().instances(run_uid, _without_home(must_see))]

    def terminate(self, instance_id: str) -> None:
        if self._home.has(instance_id):
            self._home.terminate(instance_id)
        else:
            super().terminate(instance_id)


def _without_home(must_see: Collection[str] | None) -> Collection[str] | None:
    return None if must_see is None else {place for place in must_see if place != HOME}


def _is_own(offering: Offering) -> bool:
    return offering.capacity_type is CapacityType.OWN


class OwnedMachineCloud(Cloud):
    """The cloud `rented` combined with the machine that a job calls its home."""

    def __init__(self, rented: Cloud) -> None:
        self._rented = rented
        self.name, self.here, self.simulated = rented.name, rented.here, rented.simulated
        self.sends_bills, self.failed_starts = rented.sends_bills, rented.failed_starts
        self.shares_folders, self.notice = rented.shares_folders, rented.notice
        self.instead_of_envs = rented.instead_of_envs

    # -- the rules for a job -------------------------------------------------------------------------------------

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        return self._rented.refusals(spec)

    def secret(self, name: str) -> Reference:
        return self._rented.secret(name)

    def boot(self, spec: RunSpec) -> timedelta:
        return self._rented.boot(spec)

    def interrupts(self, spec: RunSpec) -> bool:
        return self._rented.interrupts(spec)

    def longest_life(self, spec: RunSpec, offering: Offering) -> timedelta | None:
        return None if _is_own(offering) else self._rented.longest_life(spec, offering)

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> OwnedMachineDriver:
        from spotrun.clouds.local.own_machine import OwnMachine

        assert spec.home is not None
        assert spec.resources.home is not None
        return OwnedMachineDriver(self._rented.driver(spec, clock), OwnMachine(spec.resources.home, spec.home, clock))

    def guards(self, spec: RunSpec, clock: Clock) -> Guards:
        return self._rented.guards(spec, clock)

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        return self._rented.identities(spec, clock)

    def clock(self, spec: RunSpec) -> ScaledClock:
        return self._rented.clock(spec)

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        self._rented.put_right(clock, spec)

    def furnish(self, store: Store) -> None:
        self._rented.furnish(store)

    def require_known(self, spec: RunSpec) -> None:
        self._rented.require_known(spec)

    def require_named(self, spec: RunSpec) -> Sequence[str]:
        return self._rented.require_named(spec)

    def billing(self, spec: RunSpec) -> BillingRule:
        """
        Return the billing rule of the rented cloud, and add the price of the user's machine to the rule's `source`, the
        text that says where prices come from. Instances on the user's machine are billed by the second, without a
        charge for their disk and address (see `attached_to`).
        """
        rule, home = self._rented.billing(spec), spec.home
        assert home is not None
        at_home = f"{spec.resources.home} at home ${plain_usd(home.price_usd_per_hour)} an hour, {home.price_in_words}"
        return replace(rule, source=f"{rule.source}; {at_home}")

    def types_listed(self, spec: RunSpec) -> Sequence[str]:
        return self._rented.types_listed(spec)

    def of_any_type(self, spec: RunSpec) -> RunSpec:
        return self._rented.of_any_type(spec)

    def never_rented(self, kind: str) -> Unreadable | None:
        return self._rented.never_rented(kind)

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        return self._rented.interruption_rates(spec)

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        at = HERE if _at_home(environment) else self._rented
        return at.notice_sources(environment, clock)

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        return self._of(instance).shell(spec, instance)

    def console(self, instance: Instance) -> str | None:
        return self._of(instance).console(instance)

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        at_home = HERE.account(()).driver.describe(instance_id)
        there = HERE if at_home is not None and _is_own(at_home.offering) else self._rented
        there.interrupt(spec, instance_id, zone, notice)

    def forget(self, run_uid: str) -> None:
        HERE.forget(run_uid)
        self._rented.forget(run_uid)

    def _of(self, instance: Instance) -> Cloud:
        return HERE if _is_own(instance.offering) else self._rented

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        return self._rented.account(regions)

    def require_regions(self, regions: Sequence[str]) -> None:
        self._rented.require_regions(regions)

    def offers(self, wish: RentalFlags) -> Quotes:
        return self._rented.offers(wish)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        return self._rented.quotes(spec, [name for name in types if name != spec.resources.home])

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        return self._rented.findings(spec, wish)

    def regions(self, spec: RunSpec | None, wish: RentalFlags) -> tuple[str, ...]:
        return self._rented.regions(spec, wish)

    def reachable(self, address: str) -> str:
        return self._rented.reachable(address)


def _at_home(environment: Mapping[str, str]) -> bool:
    """Return True if `environment` belongs to an instance at home."""
    from spotrun.clouds.local.records import RECORD_VARIABLE, RecordFolder

    path = environment.get(RECORD_VARIABLE)
    record = None if path is None else RecordFolder(Path(path)).read()
    return record is not None and _is_own(record.instance.offering)
