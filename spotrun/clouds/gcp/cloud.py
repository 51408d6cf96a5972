"""The cloud `gcp`, Google Compute Engine. Implements the interface in spotrun.clouds.cloud."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.resources import files

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.cloud import (
    Account,
    Cloud,
    Forward,
    RentalFlags,
    Shell,
    UsualStore,
    never_rented_kinds,
    secrets_elsewhere,
    secrets_of,
    way_inside,
    zone_elsewhere,
)
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.gcp.config import HYPERDISK_ONLY, GcpConfig, config_of
from spotrun.clouds.gcp.notices import gce_notices
from spotrun.clouds.gcp.refusals import IMPOSSIBLE_TYPES, MISNAMED, never_rented, unknown_region
from spotrun.clouds.guards import NoGuards
from spotrun.clouds.identities import Identities, NoIdentities
from spotrun.clouds.nights import Nights
from spotrun.clouds.notices import NoticeSource
from spotrun.doctor.finding import Finding
from spotrun.errors import CloudError, CloudNotInstalled, SpecInvalid, StoreError, needs_extra
from spotrun.folder.run_calls import Calls, RunnerCalls
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.run.billing import gcp_rule
from spotrun.run.events import BillingRule
from spotrun.secrets.reference import SECRET, SECRETS, Reference, create_command
from spotrun.spec.model import GcpSpec, RunSpec
from spotrun.spec.strict import judged
from spotrun.store.port import Store
from spotrun.units import Unreadable


class Gcp(Cloud):
    """
    Compute Engine. A job's `gcp` section names its regions and instance types, its machine image and its network.
    """

    name = "gcp"
    here = False
    simulated = False
    failed_starts = "boot/failed-"
    example_kind = "L4:1"
    notice = timedelta(minutes=2)
    instead_of_envs = "name it under secrets instead: its value is read from Secret Manager (`spotrun doctor gcp`)"

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        def elsewhere(spec: RunSpec) -> Iterator[Unreadable]:
            project = spec.gcp.project or ""
            advice = "write {}, or only the name, and store the secret with: {}"
            return secrets_elsewhere(self, spec, lambda own: advice.format(own, create_command(own.name, project)))

        kinds = never_rented_kinds(self)
        return judged(spec, elsewhere, _far_store, zone_elsewhere, *MISNAMED, *IMPOSSIBLE_TYPES, *kinds)

    def secret(self, name: str) -> Reference:
        return Reference(SECRET, SECRETS + name)

    def boot(self, spec: RunSpec) -> timedelta:
        """Return the usual boot time of a GPU instance whose machine image is a Deep Learning VM image."""
        return timedelta(seconds=90)

    def interrupts(self, spec: RunSpec) -> bool:
        return True

    def types_listed(self, spec: RunSpec) -> Sequence[str]:
        return spec.gcp.instance_types

    def of_any_type(self, spec: RunSpec) -> RunSpec:
        return super().of_any_type(spec.model_copy(update={"gcp": spec.gcp.model_copy(update={"instance_types": ()})}))

    def never_rented(self, kind: str) -> Unreadable | None:
        return never_rented(kind)

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> CloudDriver:
        return _driver(config_of(spec.resources, spec.gcp), clock)

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        if spec.gcp.service_account is not None:
            return NoIdentities()
        return _identities(config_of(spec.resources, spec.gcp), clock)

    def require_named(self, spec: RunSpec) -> Sequence[str]:
        with _sdk():
            from spotrun.clouds.gcp.calls import Google
            from spotrun.clouds.gcp.named_resources import require_named
        clock = self.clock(spec)
        return require_named(Google(clock), config_of(spec.resources, spec.gcp), spec.checkpoint.uri, clock)

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        """
        Correct `clock` before the run uses it, by making one call. The time in Google's answer corrects the clock.
        """
        with contextlib.suppress(CloudError), _sdk():
            from spotrun.clouds.gcp.calls import COMPUTE, Call, Google

            google = Google(clock).aside
            google.ask("read the clock", Call(COMPUTE, "GET", f"projects/{google.project(spec.gcp.project)}"))

    def furnish(self, store: Store) -> None:
        from spotrun.boot import upload

        upload.upload(store, files(__package__).joinpath("start.sh").read_bytes())

    def billing(self, spec: RunSpec) -> BillingRule:
        return gcp_rule(spec.gcp.volume_gb, self.regions(spec, RentalFlags()), HYPERDISK_ONLY)

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        """Return the interruption bands computed from Google's history; {} if Google does not answer."""
        with _sdk():
            from spotrun.clouds.gcp.preemption_shares import bands_known
        return bands_known(config_of(spec.resources, spec.gcp), system_clock())

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        return gce_notices(environment, clock)

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """
        Return a shell through Identity-Aware Proxy, which needs no open port. The command names the project, because
        gcloud's default project may be another one.
        """
        with _sdk():
            from spotrun.clouds.gcp.calls import Google
        project = Google(system_clock()).project(spec.gcp.project)
        place = (instance.instance_id, "--project", project, "--zone", instance.offering.zone)
        return Shell(
            ("gcloud", "compute", "ssh", *place, "--tunnel-through-iap"),
            needs={"gcloud": "see https://cloud.google.com/sdk/docs/install"},
            advice=way_inside(spec) + "not connected? see `gcloud auth list`, and ssh_members of infra/gcp",
        )

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        shell = self.shell(spec, instance)
        flags = (f"-L{one.here}:localhost:{one.there}" for one in forwards)
        return shell._replace(command=(*shell.command, "--", *flags))

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        project = "" if spec.gcp.project is None else f" --project {spec.gcp.project}"
        raise CloudError(
            f"{instance_id} is on gcp, where spotrun cannot interrupt instances",
            hint=f"gcloud compute instances simulate-maintenance-event {instance_id} --zone {zone}{project} "
            "interrupts a spot instance",
        )

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        """
        Return the interfaces to the project's instances in all regions. `regions` names those that must answer: if
        another region does not answer, that is no error.
        """
        config, clock = GcpConfig(regions=tuple(map(str.lower, regions)) or GcpSpec().regions), system_clock()
        with _sdk():
            from spotrun.clouds.gcp.calls import Google
            from spotrun.clouds.gcp.disks import Disks
        return Account(_driver(config, clock), NoGuards(), _identities(config, clock), Disks(Google(clock)))

    def require_regions(self, regions: Sequence[str]) -> None:
        for unknown in filter(None, map(unknown_region, regions)):
            raise SpecInvalid(unknown.message, hint=unknown.suggestion)

    def offers(self, wish: RentalFlags) -> Quotes:
        self.require_regions(wish.regions)
        regions = tuple(map(str.lower, wish.regions)) or GcpSpec().regions
        types = tuple(map(str.lower, wish.instance_types))
        return _quotes(GcpConfig(regions=regions, instance_types=types), system_clock(), wish.accelerators)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        config = replace(config_of(spec.resources, spec.gcp), instance_types=tuple(types))
        return _quotes(config, self.clock(spec), ())

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        with _sdk():
            from spotrun.clouds.gcp.doctor import GcpDoctor
        wanted = wish.over(spec, Gcp.name, like=Gcp.example_kind)
        config = config_of(wanted, _around(spec, wish))
        store = wish.store if spec is None else spec.checkpoint.uri
        return GcpDoctor(config, wanted, store, system_clock(), secrets_of(self, spec)).findings()

    def nights(self, region: str, spec: RunSpec) -> Nights:
        with _sdk():
            from spotrun.clouds.gcp.nights import GcpNights
        return GcpNights(region, system_clock(), spec.gcp.project)

    def runner_calls(self, calls: Calls) -> RunnerCalls:
        from spotrun.clouds.gcp.control_plane import prices, usd_of

        return RunnerCalls(calls, usd_of(calls), prices().as_of)

    def regions(self, spec: RunSpec | None, wish: RentalFlags) -> tuple[str, ...]:
        return config_of(wish.over(spec, Gcp.name, like=Gcp.example_kind), _around(spec, wish)).regions

    def usual_store(self, spec: RunSpec | None, wish: RentalFlags) -> UsualStore | None:
        with _sdk():
            from spotrun.clouds.gcp.calls import Google
            from spotrun.clouds.gcp.usual_store import usual_store
        google = Google(system_clock())
        return usual_store(google, google.project(_around(spec, wish).project))

    def reachable(self, store: str) -> str:
        if not isinstance(address.parse(store), address.BucketAddress) or not store.startswith("gs://"):
            raise StoreError(
                f"{store} is not a bucket of Google Cloud, and instances on gcp can reach no other store",
                hint="--store gs://BUCKET/runs, or checkpoint.uri in the job (infra/gcp/README.md makes a bucket)",
            )
        return store


CLOUD = Gcp()


def _far_store(spec: RunSpec) -> Iterator[Unreadable]:
    uri = spec.checkpoint.uri
    if not uri.startswith("gs://"):
        advice = "add --store gs://BUCKET/runs, or write the address as checkpoint.uri or SPOTRUN_STORE"
        yield Unreadable(f"{uri} cannot be reached from instances on gcp", advice, at=("checkpoint", "uri"))


def _sdk() -> AbstractContextManager[None]:
    """Return a context manager for imports that need the extra `gcp`. It turns ImportError into CloudNotInstalled."""
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


def _quotes(config: GcpConfig, clock: Clock, accelerators: Sequence[str]) -> Quotes:
    with _sdk():
        from spotrun.clouds.gcp.quotes import read_quotes
    return read_quotes(config, clock, accelerators)


def _around(spec: RunSpec | None, wish: RentalFlags) -> GcpSpec:
    gcp = GcpSpec() if spec is None else spec.gcp
    return gcp if wish.image is None else gcp.model_copy(update={"image": wish.image})
