"""
A cloud as one noun: everything that the rest of spotrun asks of it.

An agent and a specification import the module of their cloud too. So such a module imports nothing large at its top; a
method imports what it needs when it is called.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from spotrun.clock import Clock, ScaledClock, clock_from_environment
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import Guards, NoGuards
from spotrun.clouds.identities import Identities, NoIdentities
from spotrun.clouds.nights import Nights
from spotrun.clouds.notices import NoticeSource
from spotrun.clouds.orphaned_resources import Leftovers, NoLeftovers
from spotrun.container import ENTRANCE
from spotrun.doctor.finding import Finding
from spotrun.errors import CloudError, SpecInvalid
from spotrun.folder.run_calls import Calls, RunnerCalls
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.run.events import BillingRule
from spotrun.secrets.reference import WORDS, Reference, resolved
from spotrun.spec.clouds import CloudRules
from spotrun.spec.kinds import ANY_OF, AnyOf, read_kinds
from spotrun.spec.model import ResourcesSpec, RunSpec
from spotrun.store.port import Store
from spotrun.units import Unreadable


class Account(NamedTuple):
    """The ports that rent and end, for all runs of an account at once."""

    driver: CloudDriver
    guards: Guards = NoGuards()
    identities: Identities = NoIdentities()
    leftovers: Leftovers = NoLeftovers()


class RentalFlags(NamedTuple):
    """The wish of a person who rents, by flags. In `doctor` they win over the job."""

    regions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    image: str | None = None
    rates: str | None = None
    """A file or URL that says how often spot instances are taken."""
    store: str | None = None
    """The store where runs would live; a job that is checked names its own."""

    def over(self, spec: RunSpec | None, cloud: str, *, like: str) -> ResourcesSpec:
        """
        Return what a job wants, with the values of the flags that were given. `like` is an example of accelerators of
        that cloud.

        Raises:
            SpecInvalid: the accelerators cannot be read.
        """
        changes: dict[str, object] = {
            "cloud": cloud,
            "region": next(iter(self.regions), None),
            "instance_type": next(iter(self.instance_types), None),
        }
        if self.accelerators:
            try:
                changes["accelerators"] = read_kinds(self.accelerators)
            except Unreadable as error:
                raise SpecInvalid(f"--accelerators: {error}", hint=f"name one kind, like {like}") from error
        resources = ResourcesSpec() if spec is None else spec.resources
        return resources.model_copy(update={name: value for name, value in changes.items() if value is not None})


class Shell(NamedTuple):
    """
    A command that opens a shell, and the folder to call it in. `needs` are the programs that it uses, each with where
    to get it; `advice` is for the user who gets no connection.
    """

    command: tuple[str, ...]
    folder: Path | None = None
    needs: Mapping[str, str] = {}
    advice: str = ""

    def __str__(self) -> str:
        import shlex

        there = "" if self.folder is None else f"cd {shlex.quote(str(self.folder))} && "
        return there + shlex.join(self.command)


def way_inside(spec: RunSpec) -> str:
    """Return what to print before a shell opens on a rented instance, outside its container; "" if it has none."""
    place = f"`sudo /var/lib/spotrun/{ENTRANCE}`"
    return "" if spec.image is None else f"the training is in a container: {place} opens a shell there\n"


class Forward(NamedTuple):
    """A port of this machine that leads to one of an instance, to what listens at its address 127.0.0.1."""

    here: int
    there: int


class Cloud(CloudRules[RunSpec], Protocol):
    """
    To make one, subclass this and put one instance where `spotrun.clouds.registry` says. What has a body here is what
    a cloud answers that has no such thing. Failures are those of CloudDriver.
    """

    sends_bills: bool = True
    """True if the cloud sends a bill of its own, with which that of a run can be compared."""
    failed_starts: str = ""
    """In a run's folder, how the names begin of the logs of launches whose agent never ran; "" if there are none."""

    # -- a run ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def driver(self, spec: RunSpec, clock: ScaledClock) -> CloudDriver:
        """
        Return the driver that rents for a run of `spec`.

        Raises:
            CloudError: an SDK is not installed.
        """

    def guards(self, spec: RunSpec, clock: Clock) -> Guards:
        """Return the guards, which end an instance from outside if neither it nor any runner does."""
        return NoGuards()

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        """Return the identities, which say what the instances of a run may do."""
        return NoIdentities()

    def clock(self, spec: RunSpec) -> ScaledClock:
        """
        The clock of a run that begins now.

        On a rented machine a second is a second, unless a rehearsal has handed down the clock that its cloud goes by.
        """
        handed_down = clock_from_environment()
        return handed_down if handed_down.scale != 1 else ScaledClock(datetime.now(UTC), 1.0)

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        """Put the clock of a run that begins now right by the cloud's own; if the cloud does not tell, it stays."""
        return

    def furnish(self, store: Store) -> None:
        """Put into a new run's folder what its instances need before they have an agent: see `spotrun.boot`."""

    def require_known(self, spec: RunSpec) -> None:
        """
        Check, without the network, that the places that a job names exist, before a run of it begins.

        Raises:
            SpecInvalid: one of them does not exist.
        """
        return

    def require_identity(self, spec: RunSpec) -> None:
        """
        Check that the identity that a job names for all runs exists, and change nothing.

        Raises:
            CloudError: there is none of that name; or, as AccessDenied or CloudUnavailable, that cannot be found out.
        """
        return

    @abstractmethod
    def billing(self, spec: RunSpec) -> BillingRule:
        """From when to when an instance is billed, how that is rounded, and what is free."""

    def types_listed(self, spec: RunSpec) -> Sequence[str]:
        """The types that the section of this cloud narrows a job to; none if it does not."""
        return ()

    def of_any_type(self, spec: RunSpec) -> RunSpec:
        """The same job with no word about types and accelerators: what is there for it in the places that it names."""
        return spec.model_copy(
            update={"resources": spec.resources.model_copy(update={"instance_type": None, "accelerators": None})}
        )

    def never_rented(self, kind: str) -> Unreadable | None:
        """Return why an instance type, or accelerators, of this name is never rented out here; None if it may be."""
        return None

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        """The band of each `REGION/TYPE` that the cloud publishes, such as "<5%"; read when a run is created."""
        return {}

    # -- an instance ---------------------------------------------------------------------------------------------

    @abstractmethod
    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        """Return what tells an agent that its instance will be taken. `environment` is that of the instance."""

    @abstractmethod
    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """Return the shell by which a person gets onto an instance of a run of `spec`."""

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        """
        The same with ports that lead there, or those alone.

        Raises:
            CloudError: it has no way for that.
        """
        raise CloudError(f"spotrun leads no port to an instance on {self.name}", hint="leave out -L")

    def console(self, instance: Instance) -> str | None:
        """
        Return what it has printed by itself; None where only its run's folder would tell.

        Raises:
            CloudError: it cannot be read.
        """
        return None

    def interrupt(self, instance_id: str, notice: timedelta | None) -> None:
        """
        Take a spot instance with that much notice, for a rehearsal.

        Raises:
            CloudError: there is no such instance, or the cloud does so only by itself.
        """
        raise CloudError(f"{instance_id} is on {self.name}, which takes instances back by itself")

    def forget(self, run_uid: str) -> None:
        """Delete from this machine what it keeps of a run's ended instances, such as their disks."""
        return

    # -- an account ----------------------------------------------------------------------------------------------

    @abstractmethod
    def account(self, regions: Sequence[str]) -> Account:
        """
        Return the account, to list and to end what is there, of all runs; in all regions if none is named.

        Raises:
            SpecInvalid: it has no such regions.
        """

    def require_regions(self, regions: Sequence[str]) -> None:
        """
        Check, without the network, that the regions that a person has named exist.

        Raises:
            SpecInvalid: one of them does not exist.
        """
        return

    @abstractmethod
    def offers(self, wish: RentalFlags) -> Quotes:
        """Return what can be rented of that kind, for how much, and how that has moved."""

    @abstractmethod
    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        """The same for a job, of these types alone."""

    @abstractmethod
    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        """Yield what `doctor` finds out about the account, and about what a job or its user wants of it."""

    def nights(self, region: str, spec: RunSpec) -> Nights:
        """
        Return what begins nights of a job in this region and attends to them with no machine of the user.

        Raises:
            SpecInvalid: the cloud has no such thing.
        """
        raise SpecInvalid(
            f"nights without a machine of yours are not built for {self.name}",
            hint="`spotrun launch JOB.yaml --nightly` in a crontab trains every night (docs/notify-and-nightly.md)",
        )

    def runner_calls(self, calls: Calls) -> RunnerCalls | None:
        """Return what calling the function of a night cost; None where there are no such nights."""
        return None

    def regions(self, spec: RunSpec | None, wish: RentalFlags) -> tuple[str, ...]:
        """Return the regions where a job may rent; none if the job does not say."""
        named = wish.regions or (() if spec is None else (spec.resources.region,))
        return tuple(region for region in named if region is not None)

    def reachable(self, address: str) -> str:
        """
        The address of a store that instances can reach.

        Raises:
            StoreError: they cannot.
        """
        return address


def zone_elsewhere(spec: RunSpec) -> Iterator[Unreadable]:
    """A refusal of a zone that is not in the region that the job names, where zones are named for their regions."""
    region, zone = spec.resources.region, spec.resources.zone
    if region and zone and not zone.lower().startswith(region.lower()):
        yield Unreadable(f"{zone} is not in the region {region}", "remove one of them", at=("resources", "zone"))


def secrets_elsewhere(cloud: Cloud, spec: RunSpec, advice: Callable[[Reference], str]) -> Iterator[Unreadable]:
    """Yield a refusal of each secret that no instance reaches. `advice` receives where this cloud keeps one."""
    for name, reference in spec.secret_references.items():
        own = cloud.secret(name)
        if reference.kind != own.kind:
            why = f"{WORDS[reference.kind]} is not on an instance of {cloud.name}"
            yield Unreadable(why, advice(own), at=("secrets", name))


def secrets_of(cloud: Cloud, spec: RunSpec | None) -> dict[str, Reference]:
    """Return the secrets of a job on a cloud. A job that is rehearsed on another cloud counts as one for this cloud."""
    found: dict[str, Reference] = {}
    for name, text in ({} if spec is None else spec.secrets).items():
        own = cloud.secret(name)
        place = resolved(text, own)
        if place.kind == own.kind:
            found[name] = place
    return found


def never_rented_kinds(cloud: Cloud, spec: RunSpec) -> Iterator[Unreadable]:
    """A refusal of each type and accelerator of a job that its cloud never rents out."""
    one, key = spec.resources.instance_type, ("resources", "accelerators")
    several = isinstance(spec.resources.accelerators, AnyOf)
    named: list[tuple[tuple[str | int, ...], object]] = [
        (("resources", "instance_type"), one),
        *(((*key, ANY_OF, index) if several else key, kind) for index, kind in enumerate(spec.resources.kinds)),
        *(((cloud.name, "instance_types", index), name) for index, name in enumerate(cloud.types_listed(spec))),
    ]
    for at, kind in named:
        if kind is not None and (refused := cloud.never_rented(str(kind))) is not None:
            yield Unreadable(refused.message, refused.suggestion, at=at)


def refuse_regions(cloud: Cloud, regions: Sequence[str]) -> None:
    """
    Raises:
        SpecInvalid: regions are named, for a cloud that has none.
    """
    if regions:
        raise SpecInvalid(f"the {cloud.name} cloud has no regions", hint="leave out --region")
