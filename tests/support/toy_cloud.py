"""
A third cloud, whole, as somebody else would bring it: instances are the local cloud's, and everything else is its own.

`install` writes what a distribution would: the metadata by which spotrun finds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from msgspec.structs import replace

from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.cloud import Account, Cloud, RentalFlags, Shell, refuse_regions
from spotrun.clouds.driver import WrappedDriver
from spotrun.clouds.guards import Guard
from spotrun.clouds.local.catalog import InstanceType, Zone
from spotrun.clouds.local.config import MarketConfig, market_config
from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.notices import Blind, Notice
from spotrun.doctor.finding import Finding, ok
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.offering import Offering
from spotrun.run.events import BillingRule
from spotrun.secrets.reference import ENVIRONMENT, Reference
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from spotrun.units import Unreadable
from tests.support.repository import ROOT

NAME = "toy"
FOLDER_VARIABLE = "TOY_CLOUD"
ZONES = (Zone(region="toyland", name="toyland-a"),)
TYPES = (
    InstanceType(name="brick.1", accelerators="V100:1", cpus=2, memory_gib=4, on_demand_usd_per_hour=Decimal("10.00")),
)
RULE = BillingRule(minimum_s=1, free_if_interrupted_within_s=0, source="the price list on the box")


def install(folder: Path) -> str:
    """What belongs on PYTHONPATH for spotrun to know this cloud."""
    info = folder / f"{NAME}_cloud-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}-cloud\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[spotrun.clouds]\n{NAME} = {__name__}:CLOUD\n")
    return os.pathsep.join([str(folder), str(ROOT)])


def root() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


class ToyDriver(WrappedDriver):
    """The local cloud under another name, with other machines at other prices."""

    def __init__(self, clock: ScaledClock, market: MarketConfig, **options: object) -> None:
        self._local = LocalDriver(root(), clock, replace(market, zones=ZONES, instance_types=TYPES), **options)
        super().__init__(self._local)
        self.name = NAME

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return [replace(each, cloud=NAME, simulated=False) for each in super().offerings(must_see)]

    def quotes(self, wish: RentalFlags) -> Quotes:
        found = self._local.quotes(wish.accelerators, wish.instance_types, wish.regions)
        named = (replace(each, offering=replace(each.offering, cloud=NAME, simulated=False)) for each in found.quotes)
        return replace(found, quotes=tuple(named))

    def folder(self, instance: Instance) -> Path:
        return self._local.folder(instance.instance_id)

    def interrupt(self, instance_id: str, notice: timedelta | None) -> None:
        self._local.interrupt(instance_id, notice)


class ToyGuards:
    """A file for each instance that is guarded. Every arming is written down in a second one."""

    def arm(self, guard: Guard) -> None:
        guards = root() / "guards"
        guards.mkdir(parents=True, exist_ok=True)
        (guards / guard.token).write_text(guard.ends_at.isoformat())
        with (root() / "armed.txt").open("a") as armed:
            armed.write(f"{guard.token}\n")

    def disarm(self, token: str, region: str) -> None:
        (root() / "guards" / token).unlink(missing_ok=True)


class ToyIdentities:
    """A file for each run that has an identity."""

    noun = "role"

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        identities = root() / "identities"
        identities.mkdir(parents=True, exist_ok=True)
        (identities / run_uid).write_text(run_uri)
        return None

    def remove(self, run_uid: str) -> None:
        (root() / "identities" / run_uid).unlink(missing_ok=True)

    def runs(self) -> list[str]:
        return sorted(path.name for path in (root() / "identities").glob("*"))


class RecordNotices:
    """Notices are in the cloud's own record of the instance, not behind any server."""

    def __init__(self, record: Path, clock: Clock) -> None:
        self._record = record
        self._clock = clock

    def notices(self) -> Iterator[Notice]:
        try:
            deadline = json.loads(self._record.read_bytes())["instance"].get("notice_deadline")
        except (OSError, ValueError, KeyError) as error:
            raise Blind(f"{self._record}: {error}") from error
        if deadline is not None:
            at = datetime.fromisoformat(deadline)
            left_s = (at - self._clock.now()).total_seconds()
            yield Notice("termination", at, self._clock.monotonic() + left_s)


class Toy(Cloud):
    name = NAME
    here = True
    simulated = False
    notice = timedelta(minutes=2)
    instead_of_envs = "put it into the toy box"

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        if spec.resources.region is not None and spec.resources.region != ZONES[0].region:
            yield Unreadable("is no region of toys", f"write {ZONES[0].region}", at=("resources", "region"))

    def secret(self, name: str) -> Reference:
        return Reference(ENVIRONMENT, name)

    def boot(self, spec: RunSpec) -> timedelta:
        return spec.local.boot

    def interrupts(self, spec: RunSpec) -> bool:
        return True

    def driver(self, spec: RunSpec, clock: ScaledClock) -> ToyDriver:
        return ToyDriver(clock, market_config(spec.local))

    def guards(self, spec: RunSpec, clock: Clock) -> ToyGuards:
        return ToyGuards()

    def identities(self, spec: RunSpec, clock: Clock) -> ToyIdentities:
        return ToyIdentities()

    def clock(self, spec: RunSpec) -> ScaledClock:
        return ScaledClock(system_clock().now(), spec.local.time_scale)

    def furnish(self, store: Store) -> None:
        store.put("boot/box.txt", b"batteries included")

    def billing(self, spec: RunSpec) -> BillingRule:
        return RULE

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        return {f"{ZONES[0].region}/{TYPES[0].name}": "<5%"}

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> list[RecordNotices]:
        return [RecordNotices(Path(environment["SPOTRUN_INSTANCE_RECORD"]) / "instance.json", clock)]

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        return Shell(("sh",), self._everything().folder(instance))

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        self._everything().interrupt(instance_id, notice)

    def account(self, regions: Sequence[str]) -> Account:
        refuse_regions(self, regions)
        return Account(self._everything(), ToyGuards(), ToyIdentities())

    def offers(self, wish: RentalFlags) -> Quotes:
        return self._everything().quotes(wish)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        return self._everything().quotes(RentalFlags(instance_types=tuple(types)))

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        yield ok("toys", f"{len(self._everything().instances())} in the box")

    def _everything(self) -> ToyDriver:
        return ToyDriver(system_clock(), MarketConfig())


CLOUD = Toy()
