"""
The interface to a cloud: everything that the rest of spotrun needs from it.

A cloud's module imports no large packages at the top, because agents and job specifications import it, too. Its methods
import what they need when they are called.
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
    """The interfaces that list and remove the instances, guards, identities and leftovers of all runs in an account."""

    driver: CloudDriver
    guards: Guards = NoGuards()
    identities: Identities = NoIdentities()
    leftovers: Leftovers = NoLeftovers()


class RentalFlags(NamedTuple):
    """The values of the flags that say what to rent. In `doctor` they take precedence over the job's values."""

    regions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    image: str | None = None
    rates: str | None = None
    """A file or URL with a table of how often spot instances are interrupted."""
    store: str | None = None
    """
    The store in which the account's runs are. It is used only if no job is checked, because a job names its own store.
    """

    def over(self, spec: RunSpec | None, cloud: str, *, like: str) -> ResourcesSpec:
        """
        Return the job's resources, with the values of the flags in place of the job's own. `like` is an example of an
        accelerator on this cloud, for the error message.

        Raises:
            SpecInvalid: the text of --accelerators is malformed.
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


class UsualStore(NamedTuple):
    """The store that the files in infra/ make. `region` is its bucket's only region; "" if it has several."""

    uri: str
    region: str


class Shell(NamedTuple):
    """
    A command that opens a shell, and the folder to run it in. `needs` maps each program that the command uses to advice
    on where to get it. `advice` says what to do if the connection fails.
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
    """
    Return a note on how to open a shell in the job's container on a rented instance; "" if the job does not train in a
    container.
    """
    place = f"`sudo /var/lib/spotrun/{ENTRANCE}`"
    return "" if spec.image is None else f"the training is in a container: {place} opens a shell in it\n"


class Forward(NamedTuple):
    """The port `here` of this machine, which is forwarded to 127.0.0.1:`there` on an instance."""

    here: int
    there: int


class Cloud(CloudRules[RunSpec], Protocol):
    """
    The base class of a cloud. To add a cloud, subclass it, and put an instance of the subclass where
    `spotrun.clouds.registry` looks for it. Methods that are not abstract are for features that some clouds lack; a
    subclass overrides them if its cloud has the feature. Methods raise the errors that CloudDriver lists.
    """

    sends_bills: bool = True
    """True if the cloud sends a bill, so that spotrun can compare a run's cost with it."""
    failed_starts: str = ""
    """
    Path prefix, in a run's folder, of the logs of launches whose agent never ran; "" if the cloud has no such logs.
    """

    example_kind: str = ""
    """
    An accelerator of this cloud, as an example in messages and first jobs; "" if the cloud keeps no runs in buckets.
    """

    # -- a run ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def driver(self, spec: RunSpec, clock: ScaledClock) -> CloudDriver:
        """Return the driver that rents instances for a run of `spec`; raise CloudError if the SDK is not installed."""

    def guards(self, spec: RunSpec, clock: Clock) -> Guards:
        """Return the interface to the guards, which end an instance if neither the instance nor a runner does so."""
        return NoGuards()

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        """Return the interface to the run's identity: the role or service account that its instances use."""
        return NoIdentities()

    def clock(self, spec: RunSpec) -> ScaledClock:
        """
        Return the clock for a new run. Its time passes as fast as system time, unless a rehearsal on a simulated cloud
        has set a faster clock in the environment.
        """
        handed_down = clock_from_environment()
        return handed_down if handed_down.scale != 1 else ScaledClock(datetime.now(UTC), 1.0)

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        """Set the clock of a new run to the cloud's time, if the cloud reports it."""
        return

    def furnish(self, store: Store) -> None:
        """Upload the files from which instances install and start the agent (`spotrun.boot`) to a new run's folder."""

    def require_known(self, spec: RunSpec) -> None:
        """
        Ask the cloud whether the places that a job names exist, before its run begins. Clouds that know their places
        without a call check them in `refusals`.

        Raises:
            SpecInvalid: a place does not exist.
        """
        return

    def require_named(self, spec: RunSpec) -> Sequence[str]:
        """
        Check the resources of the account that the job names, such as a machine image, or an identity that all runs
        share: each must exist, and the identity must be allowed to use the job's store. Nothing is created. Return
        notes about what may be wrong. What the user is not allowed to look up about rights is left out.

        Raises:
            CloudError: a resource does not exist, or may not be used; SeveralInvalid if several are wrong.
            AccessDenied, CloudUnavailable: the check could not find out whether a resource exists.
        """
        return ()

    @abstractmethod
    def billing(self, spec: RunSpec) -> BillingRule:
        """Return the billing rule: when billing starts and ends, how times are rounded, and which times are free."""

    def types_listed(self, spec: RunSpec) -> Sequence[str]:
        """Return the instance types that the job's section for this cloud lists; () if it allows all types."""
        return ()

    def of_any_type(self, spec: RunSpec) -> RunSpec:
        """Return `spec` without a type and accelerators, to show all offerings in the job's regions and zones."""
        return spec.model_copy(
            update={"resources": spec.resources.model_copy(update={"instance_type": None, "accelerators": None})}
        )

    def never_rented(self, kind: str) -> Unreadable | None:
        """
        Return the reason why this cloud never rents out `kind` (an instance type, or accelerators). Return None if the
        cloud may rent it out.
        """
        return None

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        """
        Return the interruption bands that the cloud publishes, such as "<5%", keyed by `REGION/TYPE`. Called when a run
        is created.
        """
        return {}

    # -- an instance ---------------------------------------------------------------------------------------------

    @abstractmethod
    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        """
        Return the sources of notices for an instance. `environment` has the environment variables of its agent.
        """

    @abstractmethod
    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """Return the shell for a user on an instance of a run of `spec`."""

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        """
        Return a command that forwards ports to an instance.

        Raises:
            CloudError: spotrun cannot forward ports on this cloud.
        """
        raise CloudError(f"spotrun cannot forward a port to an instance on {self.name}", hint="leave out -L")

    def console(self, instance: Instance) -> str | None:
        """
        Return the console output of an instance. Return None if it is empty, or if the instances of this cloud write it
        into the run's folder.

        Raises:
            CloudError: the console cannot be read.
        """
        return None

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        """
        Interrupt a spot instance of a run of `spec`, in `zone`, for a rehearsal. `notice` is the time from the notice
        to the interruption; None if there is no notice.

        Raises:
            CloudError: the instance does not exist, or spotrun cannot interrupt instances on this cloud.
        """
        raise CloudError(f"{instance_id} is on {self.name}, where spotrun cannot interrupt instances")

    def forget(self, run_uid: str) -> None:
        """Delete what is left of a run's ended instances on this machine, such as their disks."""
        return

    # -- an account ----------------------------------------------------------------------------------------------

    @abstractmethod
    def account(self, regions: Sequence[str]) -> Account:
        """
        Return the interfaces to the instances of all runs in these regions, or in all regions if `regions` is empty.

        Raises:
            SpecInvalid: the cloud does not have these regions.
        """

    def require_regions(self, regions: Sequence[str]) -> None:
        """Raise SpecInvalid if one of `regions` does not exist. The network is not used."""
        return

    @abstractmethod
    def offers(self, wish: RentalFlags) -> Quotes:
        """Return the offerings that match `wish`, with their current and past prices."""

    @abstractmethod
    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        """Return the offerings for a job, with current and past prices. Only these instance `types` are included."""

    @abstractmethod
    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        """Run the checks of `spotrun doctor` on the account, and on the instances that the job or the flags want."""

    def nights(self, region: str, spec: RunSpec) -> Nights:
        """
        Return the service in `region` that begins nights and runs their runners, even if the user's machine is off.

        Raises:
            SpecInvalid: the cloud has no such service.
        """
        raise SpecInvalid(
            f"{self.name} has no service that runs nights while your machine is off",
            hint="`spotrun launch JOB.yaml --nightly` in a crontab trains every night (docs/notify-and-nightly.md)",
        )

    def runner_calls(self, calls: Calls) -> RunnerCalls | None:
        """Return the cost of `calls` of a night's function; None if the cloud has no functions for nights."""
        return None

    def regions(self, spec: RunSpec | None, wish: RentalFlags) -> tuple[str, ...]:
        """
        Return the regions in which the job is allowed to rent; () if neither the flags nor the job names a region.
        """
        named = wish.regions or (() if spec is None else (spec.resources.region,))
        return tuple(region for region in named if region is not None)

    def usual_store(self, spec: RunSpec | None, wish: RentalFlags) -> UsualStore | None:
        """
        Return the store that the files in infra/ make by default in the user's account. Return None if the account has
        no such store, or if the cloud has no bucket of its own.

        Raises:
            CloudError: there is no valid login, or the cloud does not answer.
        """
        return None

    def reachable(self, address: str) -> str:
        """Return an address of the store that instances can reach. Raise StoreError if there is none."""
        return address


def zone_elsewhere(spec: RunSpec) -> Iterator[Unreadable]:
    """
    Yield an error if the job's zone is outside the job's region. Works for clouds whose zone names begin with the
    region's name.
    """
    region, zone = spec.resources.region, spec.resources.zone
    if region and zone and not zone.lower().startswith(region.lower()):
        yield Unreadable(f"{zone} is not in the region {region}", "remove one of them", at=("resources", "zone"))


def secrets_elsewhere(cloud: Cloud, spec: RunSpec, advice: Callable[[Reference], str]) -> Iterator[Unreadable]:
    """
    Yield an error for each secret of the job that this cloud's instances cannot read, because it is stored in another
    cloud or on the user's machine. `advice` returns the error's hint; its argument is the place in this cloud where the
    secret could be stored.
    """
    for name, reference in spec.secret_references.items():
        own = cloud.secret(name)
        if reference.kind != own.kind:
            why = f"{WORDS[reference.kind]} is not on an instance of {cloud.name}"
            yield Unreadable(why, advice(own), at=("secrets", name))


def secrets_of(cloud: Cloud, spec: RunSpec | None) -> dict[str, Reference]:
    """
    Return those of the job's secrets that are stored in this cloud. A job that was written for another cloud, and is
    rehearsed on this one, may have secrets that are stored in the other cloud.
    """
    found: dict[str, Reference] = {}
    for name, text in ({} if spec is None else spec.secrets).items():
        own = cloud.secret(name)
        place = resolved(text, own)
        if place.kind == own.kind:
            found[name] = place
    return found


def never_rented_kinds(cloud: Cloud) -> tuple[Callable[[RunSpec], Iterator[Unreadable]], ...]:
    """
    Return checks that yield an error for each instance type or accelerator that a job names, and that the cloud never
    rents out.
    """

    def refused(kind: object, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
        if kind is not None and (found := cloud.never_rented(str(kind))) is not None:
            yield Unreadable(found.message, found.suggestion, at=at)

    def one_type(spec: RunSpec) -> Iterator[Unreadable]:
        return refused(spec.resources.instance_type, ("resources", "instance_type"))

    def kinds(spec: RunSpec) -> Iterator[Unreadable]:
        key, several = ("resources", "accelerators"), isinstance(spec.resources.accelerators, AnyOf)
        for index, kind in enumerate(spec.resources.kinds):
            yield from refused(kind, (*key, ANY_OF, index) if several else key)

    def listed_types(spec: RunSpec) -> Iterator[Unreadable]:
        for index, kind in enumerate(cloud.types_listed(spec)):
            yield from refused(kind, (cloud.name, "instance_types", index))

    return one_type, kinds, listed_types


def refuse_regions(cloud: Cloud, regions: Sequence[str]) -> None:
    """Raise SpecInvalid if `regions` is not empty. Clouds without regions call this function."""
    if regions:
        raise SpecInvalid(f"the {cloud.name} cloud has no regions", hint="leave out --region")
