"""Google Compute Engine, whole. See spotrun.clouds.cloud."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from difflib import get_close_matches
from importlib.resources import files
from string import digits

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.cloud import Account, Cloud, Shell, Wish, zone_elsewhere
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.gcp.config import GcpConfig, config_of, region_of
from spotrun.clouds.gcp.notices import gce_notices
from spotrun.clouds.guards import NoGuards
from spotrun.clouds.identities import Identities, NoIdentities
from spotrun.clouds.notices import NoticeSource
from spotrun.doctor.finding import Finding
from spotrun.errors import CloudError, CloudNotInstalled, StoreError, needs_extra
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.run.billing import gcp_rule
from spotrun.run.events import BillingRule
from spotrun.run.volume_prices import PD_BALANCED
from spotrun.secrets.reference import ENVIRONMENT, Reference
from spotrun.spec.model import GcpSpec, ResourcesSpec, RunSpec
from spotrun.spec.values import ON_DEMAND
from spotrun.store.port import Store
from spotrun.units import Unreadable

_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}-[a-z]")
_NO_SPOT = re.compile(r"(a4x|x4)-.*|.*-metal")
"""https://cloud.google.com/compute/docs/instances/spot#limitations"""
_MACHINES_APART = "n1-"
_GPUS_APART = ("K80", "P4", "P100", "T4", "V100")
"""GPUs that are attached to machines of N1: https://cloud.google.com/compute/docs/gpus#n1-gpus"""


class Gcp(Cloud):
    """Compute Engine. The section `gcp` of a job says where to look, and what surrounds an instance."""

    name = "gcp"
    here = False
    simulated = False
    failed_starts = "boot/failed-"
    notice = timedelta(minutes=2)
    instead_of_envs = "keep it where the training finds it by itself: secrets do not reach instances on gcp yet"

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        for name in spec.secrets:
            advice = "remove it, or run on aws: spotrun reads no Secret Manager yet"
            yield Unreadable("does not reach instances on gcp", advice, at=("secrets", name))
        uri = spec.checkpoint.uri
        if not uri.startswith("gs://"):
            advice = "write gs://BUCKET/PREFIX, or give it by --store or SPOTRUN_STORE"
            yield Unreadable(f"{uri} is out of reach of instances on gcp", advice, at=("checkpoint", "uri"))
        yield from zone_elsewhere(spec)
        yield from _misnamed(spec)
        yield from _impossible_types(spec)

    def secret(self, name: str) -> Reference:
        """None is read there: `refusals` says so. A variable of this machine is what a person may mean."""
        return Reference(ENVIRONMENT, name)

    def boot(self, spec: RunSpec) -> timedelta:
        """Usual for a GPU instance with a Deep Learning image."""
        return timedelta(seconds=90)

    def interrupts(self, spec: RunSpec) -> bool:
        return True

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> CloudDriver:
        return _driver(config_of(spec.resources, spec.gcp), clock)

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        if spec.gcp.service_account is not None:
            return NoIdentities()
        return _identities(config_of(spec.resources, spec.gcp), clock)

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        """Each answer does so; this is the first of the run."""
        with contextlib.suppress(CloudError), _sdk():
            from spotrun.clouds.gcp.calls import COMPUTE, Call, Google

            google = Google(clock).aside
            google.ask("read the clock", Call(COMPUTE, "GET", f"projects/{google.project(spec.gcp.project)}"))

    def furnish(self, store: Store) -> None:
        from spotrun.boot import upload

        upload.upload(store, files(__package__).joinpath("start.sh").read_bytes())

    def billing(self, spec: RunSpec) -> BillingRule:
        return gcp_rule(spec.gcp.volume_gb, self.regions(spec, Wish()))

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        """While Google does not tell, there are none."""
        with _sdk():
            from spotrun.clouds.gcp.preemption_shares import bands_known
        return bands_known(config_of(spec.resources, spec.gcp), system_clock())

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        return gce_notices(environment, clock)

    def shell(self, instance: Instance) -> Shell:
        """Through Identity-Aware Proxy, which needs no open port."""
        place = (instance.instance_id, "--zone", instance.offering.zone)
        return Shell(
            ("gcloud", "compute", "ssh", *place, "--tunnel-through-iap"),
            needs={"gcloud": "see https://cloud.google.com/sdk/docs/install"},
            advice="not connected? see `gcloud auth list`, `gcloud config get project`, and ssh_members of infra/gcp",
        )

    def interrupt(self, instance_id: str, notice: timedelta | None) -> None:
        raise CloudError(
            f"{instance_id} is on gcp, which takes instances back by itself",
            hint=f"gcloud compute instances simulate-maintenance-event {instance_id} --zone ZONE takes a spot instance",
        )

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        """Google lists all regions at once; those that are named have to answer."""
        config, clock = GcpConfig(regions=tuple(map(str.lower, regions)) or GcpSpec().regions), system_clock()
        with _sdk():
            from spotrun.clouds.gcp.calls import Google
            from spotrun.clouds.gcp.disks import Disks
        return Account(_driver(config, clock), NoGuards(), _identities(config, clock), Disks(Google(clock)))

    def offers(self, wish: Wish) -> Quotes:
        regions = tuple(map(str.lower, wish.regions)) or GcpSpec().regions
        types = tuple(map(str.lower, wish.instance_types))
        return _quotes(GcpConfig(regions=regions, instance_types=types), system_clock(), wish.accelerators)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        config = replace(config_of(spec.resources, spec.gcp), instance_types=tuple(types))
        return _quotes(config, self.clock(spec), None)

    def findings(self, spec: RunSpec | None, wish: Wish) -> Iterator[Finding]:
        with _sdk():
            from spotrun.clouds.gcp.doctor import GcpDoctor
        wanted = wish.over(spec, Gcp.name, like="L4:1")
        config = config_of(wanted, _around(spec, wish))
        store = wish.store if spec is None else spec.checkpoint.uri
        return GcpDoctor(config, wanted, store, system_clock()).findings()

    def regions(self, spec: RunSpec | None, wish: Wish) -> tuple[str, ...]:
        return config_of(wish.over(spec, Gcp.name, like="L4:1"), _around(spec, wish)).regions

    def reachable(self, store: str) -> str:
        if not isinstance(address.parse(store), address.BucketAddress) or not store.startswith("gs://"):
            raise StoreError(
                f"{store} is no bucket of Google Cloud, and instances on gcp reach no other",
                hint="--store gs://BUCKET/runs, or checkpoint.uri in the job (infra/gcp/README.md makes a bucket)",
            )
        return store


CLOUD = Gcp()


def _misnamed(spec: RunSpec) -> Iterator[Unreadable]:
    """Names that no region or zone of Google's has."""
    region, zone = spec.resources.region, spec.resources.zone
    if zone and not _ZONE.fullmatch(zone.lower()):
        yield Unreadable(f"{zone} is no zone of Google Cloud", "write one like us-central1-a", at=("resources", "zone"))
    elif zone:
        yield from _no_region(region_of(zone), ("resources", "zone"))
    if region:
        yield from _no_region(region, ("resources", "region"))
    for index, name in enumerate(spec.gcp.regions):
        yield from _no_region(name, ("gcp", "regions", index))


def _no_region(name: str, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    """One that begins as none that is known. With another number at its end it may be new: Google knows."""
    if not _REGION.fullmatch(name.lower()):
        yield Unreadable(f"{name} is no region of Google Cloud", "write one like us-central1", at=at)
        return
    known = {each.rstrip(digits): each for each in sorted(PD_BALANCED, reverse=True)}
    stem = name.lower().rstrip(digits)
    if stem not in known:
        meant = get_close_matches(stem, known, 1)
        hint = f"did you mean {known[meant[0]]}?" if meant else "`gcloud compute regions list` has their names"
        yield Unreadable(f"Google Cloud has no region {name}", f"{hint} If it is new, update spotrun", at=at)


def _impossible_types(spec: RunSpec) -> Iterator[Unreadable]:
    one, types, resources = spec.resources.instance_type, spec.gcp.instance_types, spec.resources
    if one and types and one not in types:
        yield Unreadable(
            f"leaves out resources.instance_type, {one}", "remove one of them", at=("gcp", "instance_types")
        )
    if one:
        yield from _no_spot(one, resources, ("resources", "instance_type"))
    for index, name in enumerate(types if one is None else ()):
        yield from _no_spot(name, resources, ("gcp", "instance_types", index))
    yield from _gpus_apart(resources)


def _no_spot(kind: str, resources: ResourcesSpec, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    if _NO_SPOT.fullmatch(kind.lower()) and resources.spot_policy != ON_DEMAND:
        advice = "set spot_policy: on-demand, or name another type"
        yield Unreadable(f"Google has no spot capacity of {kind}", advice, at=at)


def _gpus_apart(resources: ResourcesSpec) -> Iterator[Unreadable]:
    one, wanted = resources.instance_type, resources.accelerators
    if wanted is None:
        return
    if one and one.lower().startswith(_MACHINES_APART):
        advice = "name a type whose GPUs are a part of it, like g2-standard-8, or no type"
        yield Unreadable(f"{one} has its GPUs apart, which is not built yet", advice, at=("resources", "instance_type"))
    elif wanted.name.upper() in _GPUS_APART:
        advice = "name one that is a part of its type, like L4:1"
        what = f"{wanted.name} comes apart from its machine on gcp, which is not built yet"
        yield Unreadable(what, advice, at=("resources", "accelerators"))


def _sdk() -> AbstractContextManager[None]:
    """Around all imports of what needs it."""
    return needs_extra("gcp", "gcp", CloudNotInstalled)


def _driver(config: GcpConfig, clock: Clock) -> CloudDriver:
    with _sdk():
        from spotrun.clouds.gcp.driver import GcpDriver
    return GcpDriver(config, clock)


def _identities(config: GcpConfig, clock: Clock) -> Identities:
    with _sdk():
        from spotrun.clouds.gcp.calls import Google
        from spotrun.clouds.gcp.run_accounts import RunAccounts
    return RunAccounts(Google(clock), clock, config.project)


def _quotes(config: GcpConfig, clock: Clock, accelerators: str | None) -> Quotes:
    with _sdk():
        from spotrun.clouds.gcp.quotes import read_quotes
    return read_quotes(config, clock, accelerators)


def _around(spec: RunSpec | None, wish: Wish) -> GcpSpec:
    gcp = GcpSpec() if spec is None else spec.gcp
    return gcp if wish.image is None else gcp.model_copy(update={"image": wish.image})
