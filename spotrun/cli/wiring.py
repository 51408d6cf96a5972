"""The only place where concrete classes are chosen: which store, cloud and clock a run is attended with."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotrun import address
from spotrun.address import DEFAULT_STORE
from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import Guards, NoGuards
from spotrun.clouds.identities import Identities, NoIdentities
from spotrun.clouds.local.config import MarketConfig, ScriptStep
from spotrun.clouds.local.driver import LocalCloud, default_root
from spotrun.creation import clock_of, newborn, region_of
from spotrun.errors import (
    CloudError,
    LedgerDamaged,
    LedgerVersionUnknown,
    RunNotFound,
    SpecInvalid,
    SpotrunError,
    StoreError,
)
from spotrun.folder.ledger import Ledger, first_entry
from spotrun.folder.market_record import FOLDER as MARKET
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.status_objects import RUNNER_KEY, RunnerHint, read_hint
from spotrun.market.observations import Sighting
from spotrun.market.quotes import Quotes
from spotrun.market.world import World, suitable
from spotrun.offering import CapacityType, Offering
from spotrun.run.events import RunCreated
from spotrun.run.fold import begin
from spotrun.run.state import RunState
from spotrun.runner import Runner
from spotrun.spec.model import AwsSpec, LocalMarketSpec, ResourcesSpec, RunSpec, instance_types_of, regions_of
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist

OPENERS = 8
"""How many runs of a store are opened side by side: each takes an answer of the store."""


class OpenRun:
    """A run that exists, with everything needed to look at it or to attend to it."""

    def __init__(self, uri: str, writer: str) -> None:
        self.store: Store = open_store(uri)
        self.uri = self.store.uri
        first = first_entry(self.store)
        self.created: RunCreated = begin(first).created
        self.clock = ScaledClock(self.created.clock_epoch, self.created.time_scale)
        self.ledger = Ledger(self.store, self.created.uid, writer, self.clock, first=first)

    @property
    def id(self) -> str:
        return f"{self.created.name}-{self.created.uid}"

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.from_dict(self.created.spec)

    @cached_property
    def cloud(self) -> CloudDriver:
        return cloud_of(self.spec, self.clock)

    @cached_property
    def runner(self) -> Runner:
        market = MarketRecord(open_store(self.uri.rpartition("/")[0] or "/"))
        guards, identities = guards_of(self.spec, self.clock), identities_of(self.spec, self.clock)
        return Runner(self.ledger, self.store, self.cloud, self.clock, self.spec, self.uri, market, guards, identities)


def cloud_of(spec: RunSpec, clock: ScaledClock) -> CloudDriver:
    """
    The cloud that a run rents from.

    Raises:
        CloudError: its SDK is not installed.
    """
    if spec.resources.cloud == "local":
        return local_cloud(spec.local, clock)
    return _aws_cloud(aws_config(spec.resources, spec.aws), clock)


def _aws_cloud(config: AwsConfig, clock: ScaledClock) -> CloudDriver:
    try:
        from spotrun.clouds.aws.driver import AwsCloud
    except ModuleNotFoundError as error:
        raise CloudError(f"aws needs the Python package {error.name}", hint="pip install 'spotrun[aws]'") from error
    return AwsCloud(config, clock)


def guards_of(spec: RunSpec, clock: Clock) -> Guards:
    """What ends that cloud's instances from outside; only for a spec whose cloud there is."""
    if spec.resources.cloud == "local":
        return NoGuards()
    return _aws_guards(aws_config(spec.resources, spec.aws).regions, clock)


def _aws_guards(regions: Sequence[str], clock: Clock) -> Guards:
    from spotrun.clouds.aws.guard import AwsGuards

    return AwsGuards(regions, clock)


def identities_of(spec: RunSpec, clock: Clock) -> Identities:
    """Whom that cloud's instances are; only for a spec whose cloud there is."""
    if spec.resources.cloud == "local" or spec.aws.instance_profile is not None:
        return NoIdentities()
    return _aws_identities(aws_config(spec.resources, spec.aws).regions, clock)


def _aws_identities(regions: Sequence[str], clock: Clock) -> Identities:
    from spotrun.clouds.aws.calls import Region
    from spotrun.clouds.aws.run_role import RunRoles

    return RunRoles(Region(regions[0], clock), clock)


def aws_config(resources: ResourcesSpec, aws: AwsSpec) -> AwsConfig:
    """What a run's specification says of EC2."""
    return AwsConfig(
        regions=regions_of(resources, aws),
        instance_types=instance_types_of(resources, aws),
        security_group=aws.security_group,
        instance_profile=aws.instance_profile,
        launch_template=aws.launch_template,
        image_id=aws.image_id,
        image_parameter=aws.image_parameter,
        volume_gib=aws.volume_gb,
    )


def local_cloud(spec: LocalMarketSpec, clock: ScaledClock) -> LocalCloud:
    """The local cloud with the market that a run's specification describes."""
    return LocalCloud(default_root(), clock, local_market(spec))


def local_market(spec: LocalMarketSpec) -> MarketConfig:
    steps = tuple(
        ScriptStep(
            when=str(step.when),
            then=step.then,
            notice_s=None if step.notice is None else step.notice.total_seconds(),
        )
        for step in spec.script
    )
    return MarketConfig(
        seed=spec.seed,
        kind=spec.market,
        boot_s=spec.boot.total_seconds(),
        recommended=float(spec.recommended or 0),
        script=steps,
    )


def quotes_of(spec: RunSpec, offerings: Sequence[Offering]) -> Quotes:
    """
    What the cloud of `spec` asks for these, and has asked lately.

    Raises:
        CloudError: the cloud does not answer.
    """
    types = tuple(sorted({found.instance_type for found in offerings}))
    clock = clock_of(spec)
    if spec.resources.cloud == "local":
        return local_cloud(spec.local, clock).quotes(None, types, ())
    from spotrun.clouds.aws.quotes import read_quotes

    config = msgspec.structs.replace(aws_config(spec.resources, spec.aws), instance_types=types)
    return read_quotes(config, clock, None)


def first_look(spec: RunSpec, store: str | None = None) -> tuple[RunState, World]:
    """
    A run of `spec` at the moment of its birth, and what it would see of the market; nothing is written anywhere.

    `store` has the runs, where that is not checkpoint.uri. One that cannot be read yet is the business of the launch:
    without it there is only less to know.
    """
    clock, folder = clock_of(spec), store or spec.checkpoint.uri
    unborn = newborn(spec, clock, _region(folder))
    offerings = suitable(cloud_of(spec, clock).offerings(), spec)  # its own market, which begins with it
    sightings = _told(folder, unborn.created, offerings)
    return unborn, World(offerings=tuple(offerings), instances=(), sightings=sightings)


def with_baseline_price(spec: RunSpec) -> RunSpec:
    """
    The same with what an hour of its `report.baseline` costs on demand now, where that names an instance type.

    Raises:
        SpecInvalid: nobody rents it out there.
        CloudError: the cloud cannot be asked.
    """
    kind = spec.report.baseline_type
    if kind is None or spec.report.baseline_usd_per_hour is not None:
        return spec
    resources = spec.resources.model_copy(update={"instance_type": kind})
    offered = cloud_of(spec.model_copy(update={"resources": resources}), clock_of(spec)).offerings()
    here = [each for each in offered if spec.resources.region in (None, each.region)]
    on_demand = [each for each in here if each.capacity_type is CapacityType.ON_DEMAND]
    price = min((each.price_usd_per_hour for each in on_demand if each.instance_type == kind), default=None)
    if price is None:
        nearest = get_close_matches(kind, {each.instance_type for each in on_demand}, 1)
        raise SpecInvalid(
            f"report.baseline: {spec.resources.cloud} does not rent out {kind} there",
            hint=f"did you mean {nearest[0]}?" if nearest else "see `spotrun offers`, or write US dollars per hour",
        )
    report = spec.report.model_copy(update={"baseline_usd_per_hour": price})
    return spec.model_copy(update={"report": report})


def _region(folder: str) -> str:
    if _absent(folder):
        return ""
    try:
        return region_of(open_store(folder))
    except StoreError:
        return ""


def _told(folder: str, created: RunCreated, offerings: list[Offering]) -> tuple[Sighting, ...]:
    if _absent(folder):
        return ()
    try:
        return MarketRecord(open_store(folder)).read(created, offerings, created.clock_epoch)
    except StoreError:
        return ()


def earlier_run(spec: RunSpec) -> RunState | None:
    """The newest run of that name that can be read, if there is one in its store."""
    folder = spec.checkpoint.uri
    if _absent(folder):
        return None
    try:
        store = open_store(folder)
        names = [name for name in store.folders() if name.rpartition("-")[0] == spec.name]
        with ThreadPoolExecutor(OPENERS) as pool:
            found = list(pool.map(lambda name: _try_open(name, f"{store.uri}/{name}"), names))
        runs = sorted(_opened(found), key=lambda run: run.created.clock_epoch)
        return runs[-1].ledger.refresh() if runs else None
    except StoreError:
        return None  # whether it can hold a run, the launch will find out


def _absent(folder: str) -> bool:
    """A folder of this machine that opening would make."""
    place = address.parse(folder)
    return isinstance(place, str) and not Path(place).expanduser().is_dir()


def cloud_named(name: str, regions: Sequence[str] | None) -> CloudDriver:
    """
    A cloud, only to look at and to end what is there, whichever run it belongs to.

    Raises:
        SpecInvalid: there is none of that name, or it has no regions.
    """
    if name == "local" and not regions:
        return any_cloud()
    if name != "aws":
        what = "the local cloud has no regions" if name == "local" else f"no cloud is called {name}"
        raise SpecInvalid(what, hint="write --cloud aws --region us-east-1, or nothing for the local cloud")
    return _aws_cloud(AwsConfig(regions=_looked_in(regions)), system_clock())


def guards_named(name: str, regions: Sequence[str] | None) -> Guards:
    """Those of `cloud_named`."""
    return _aws_guards(_looked_in(regions), system_clock()) if name == "aws" else NoGuards()


def identities_named(name: str, regions: Sequence[str] | None) -> Identities:
    """Those of `cloud_named`."""
    return _aws_identities(_looked_in(regions), system_clock()) if name == "aws" else NoIdentities()


def _looked_in(regions: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(regions or AwsSpec().regions)


def any_cloud() -> LocalCloud:
    """The local cloud, only to look at and to end what is there, whichever run it belongs to."""
    return LocalCloud(default_root(), system_clock())


def default_store() -> str:
    """Where runs are kept and looked for unless a flag or a specification says it."""
    return os.environ.get("SPOTRUN_STORE") or DEFAULT_STORE


def who() -> str:
    """The person at this terminal, for the ledger. In a container a user may have a number and no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def writer(role: str) -> str:
    return f"{role}:{socket.gethostname()}:{os.getpid()}"


def open_run(reference: str, store: str | None, role: str = "cli") -> OpenRun:
    """
    The run that a person means: a full address, an id, or a name (then the newest of that name).

    Raises:
        RunNotFound: there is no such run; says where it was looked for.
    """
    if "/" in reference:
        return OpenRun(reference, writer(role))
    newest = _runs_meant_by(reference, store)[-1]
    return OpenRun(newest.uri, writer(role))


def last_runs(reference: str, count: int, store: str | None, role: str = "cli") -> list[OpenRun]:
    """
    The newest runs of that name, `count` at most, the oldest of them first.

    Raises:
        RunNotFound: there is none.
    """
    newest = _runs_meant_by(reference, store)[-count:]
    return newest if role == "cli" else [OpenRun(run.uri, writer(role)) for run in newest]


UNATTENDED_AFTER_S = 60.0
"""System time without a sign of life from any runner, which gives one every 15 s."""


def attended(run: OpenRun) -> bool:
    """Whether a runner has shown a sign of life just now, and is not known to have died since."""
    hints = persist(lambda: run.store.list(RUNNER_KEY))
    if not hints or (datetime.now(UTC) - hints[0].modified_at).total_seconds() >= UNATTENDED_AFTER_S:
        return False
    import psutil

    hint = read_hint(run.store, RUNNER_KEY, RunnerHint)
    return hint is None or hint.host != socket.gethostname() or psutil.pid_exists(hint.pid)


def _runs_meant_by(reference: str, store: str | None) -> list[OpenRun]:
    """Every run of that id or name, the oldest first; at least one."""
    folder = store or DEFAULT_STORE
    runs, unreadable = look_in(folder)
    found = [run for run in runs if reference in (run.id, run.created.uid, run.created.name)]
    if not found:
        raise _why_not_found(reference, folder, unreadable)
    return sorted(found, key=lambda run: run.created.clock_epoch)


class Unreadable(NamedTuple):
    """A folder that holds a run whose first entry is damaged, or of another version."""

    name: str
    uri: str
    error: LedgerDamaged | LedgerVersionUnknown


def runs_in(folder: str) -> list[OpenRun]:
    """Every run in a store that can be opened, in no order."""
    return look_in(folder)[0]


def look_in(folder: str) -> tuple[list[OpenRun], list[Unreadable]]:
    """
    Every run in a store, and every one whose first entry cannot be read. Folders that hold no run are passed over.

    Raises:
        StoreError: the store, or a folder in it, cannot be read: nobody knows whether there is a run.
    """
    store = open_store(folder)
    with ThreadPoolExecutor(OPENERS) as pool:
        names = [name for name in persist(store.folders) if name != MARKET]
        found = list(pool.map(lambda name: _try_open(name, f"{store.uri}/{name}"), names))
    return _opened(found), [run for run in found if isinstance(run, Unreadable)]


def _opened(found: Iterable[OpenRun | Unreadable | None]) -> list[OpenRun]:
    return [run for run in found if isinstance(run, OpenRun)]


def _try_open(name: str, uri: str) -> OpenRun | Unreadable | None:
    try:
        return OpenRun(uri, writer("cli"))
    except RunNotFound:
        return None
    except (LedgerDamaged, LedgerVersionUnknown) as error:
        return Unreadable(name, uri, error)


def _why_not_found(reference: str, folder: str, unreadable: list[Unreadable]) -> SpotrunError:
    """A run that is there and cannot be read is not a run that is not there. Its folder is called NAME-UID."""
    for each in unreadable:
        if reference in (each.name, *each.name.rsplit("-", 1)):
            return each.error
    hint = "see `spotrun status`, or name another store by --store"
    return RunNotFound(f"no run {reference!r} in {folder}", hint=hint)
