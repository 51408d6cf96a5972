"""Creates a run: its folder, its work folder's content, and entry 0."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from types import MappingProxyType

from msgspec import UNSET
from msgspec.structs import replace

from spotrun.account.storage_prices import storage_prices, with_home
from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.errors import StoreError
from spotrun.folder import keys, start_file, workdir
from spotrun.folder.bench_record import benched, steps_of_the_first
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.folder.revision import revision_of
from spotrun.folder.travelling import require_script, travelling
from spotrun.run import fold
from spotrun.run.events import Entry, EpochsEnd, RunCreated, StoragePrices, version_for
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.store.conditional_put_probe import race
from spotrun.store.opening import open_store
from spotrun.store.port import Located, Store
from spotrun.store.retrying import persist
from spotrun.version import __version__

TRIAL = "trial"
"""The name of the object that is tried out in a new run's folder, and deleted again."""


def new_uid() -> str:
    return secrets.token_hex(5)


def create_run(
    spec: RunSpec,
    writer: str,
    start: Path | None = None,
    uid: str | None = None,
    *,
    shared: bool = False,
    part_of: str = "",
) -> str:
    """
    Put into the store everything that an instance needs, then create the run.

    `start` is a Lightning checkpoint for the training to begin from. `uid` is that of the run, if it was chosen before.
    `shared`: several processes may create the run at once; one of them does, and the others find it there. The store is
    not tried out then, because they would disturb one another. `part_of` is what alone can carry it on: see RunCreated.

    Returns:
        The address of the run's folder.

    Raises:
        StoreError: the store cannot hold a run.
        EntryRefused: there is a run of that `uid`.
        SpecInvalid: the work folder is too large, or its script does not travel.
        CloudError: the interruption rates that the specification names cannot be read.
    """
    if (source := spec.train.source(Path(spec.workdir))) is not None:
        require_script(travelling(Path(spec.workdir), spec.checkpoint.uri), source)
    uid = uid or new_uid()
    uri = f"{spec.checkpoint.uri.rstrip('/')}/{spec.name}-{uid}"
    store, runs = open_store(uri), open_store(spec.checkpoint.uri)
    if not shared:
        _try_out(store)
    clock = clock_of(spec)
    cloud_of(spec).put_right(clock, spec)
    cloud_of(spec).furnish(store)
    event = run_created(spec, uid, workdir.upload(store, Path(spec.workdir)), clock, persist(lambda: region_of(store)))
    event = replace(event, revision=revision_of(Path(spec.workdir)))
    event = replace(event, benched=persist(lambda: benched_steps(runs, spec, clock)) or UNSET, part_of=part_of or UNSET)
    if source is not None:
        digest = hashlib.sha256((Path(spec.workdir) / source).read_bytes()).hexdigest()
        event = replace(event, script_sha256=digest)
    if start is not None:
        event = replace(event, start_sha256=start_file.upload(store, start))
    event = replace(event, public_key=keys.make(runs, uid))
    try:
        Ledger(store, uid, writer, clock).create(event)
    except EntryRefused:
        if not shared:
            raise
    return store.uri


def clock_of(spec: RunSpec) -> ScaledClock:
    """Return the clock of a run that begins now."""
    return cloud_of(spec).clock(spec)


def _try_out(store: Store) -> None:
    """Try what every run needs of its store before anything is rented. `spotrun doctor` tries more."""
    try:
        race(store, TRIAL)
    except StoreError:
        with contextlib.suppress(StoreError):  # the first reason is the one to report
            store.delete(TRIAL)
        raise
    persist(lambda: store.delete(TRIAL))


def region_of(store: Store) -> str:
    """Return the region of a bucket, for the price of what leaves it; "" for a folder, or if the store does not say."""
    found = store.region() if isinstance(store, Located) else ""
    return found if isinstance(found, str) else ""


def benched_steps(runs: Store, spec: RunSpec, clock: ScaledClock) -> dict[str, float]:
    """
    Return the seconds of a step by kind of the choice that a run of `spec` has, as the store of runs knows them.

    Raises:
        StoreError: it cannot be read.
    """
    if not spec.resources.is_choice:
        return {}
    known = steps_of_the_first(spec.resources.kinds, benched(runs, spec))
    return {kind: seconds * clock.scale for kind, seconds in known.items()}


def newborn(
    spec: RunSpec, clock: ScaledClock, region: str = "", benched: Mapping[str, float] = MappingProxyType({})
) -> RunState:
    """
    Return the state in which a run of `spec` begins, with its bucket in `region` and the speeds in `benched`; nothing
    is written anywhere.
    """
    event = replace(run_created(spec, "unborn", "", clock, region), benched=dict(benched) or UNSET)
    return fold.begin(Entry(number=0, run=event.uid, nonce="", at=clock.now(), writer="", event=event))


def run_created(spec: RunSpec, uid: str, workdir_sha256: str, clock: ScaledClock, region: str = "") -> RunCreated:
    """
    Entry 0 of a run of `spec`, as it is launched at the epoch of `clock`; its bucket is in `region`.

    Raises:
        SpecInvalid: its cloud does not have the places that it names.
    """
    cloud, began_at = cloud_of(spec), clock.epoch - clock.ahead
    cloud.require_known(spec)
    return RunCreated(
        uid=uid,
        name=spec.name,
        ledger_version=version_for(spec.num_nodes),
        spec=spec.to_dict(),
        spec_sha256=spec.spec_sha256,
        workdir_sha256=workdir_sha256,
        clock_epoch=began_at,
        time_scale=clock.scale,
        price_cap_usd_per_hour=spec.resources.max_price,
        budget_usd=spec.budget.max_usd,
        storage=_storage_prices(spec, region),
        interruption_bands=cloud.interruption_rates(spec),
        billing=cloud.billing(spec),
        simulated=cloud.simulated,
        deadline_at=None if spec.policy.deadline is None else deadline_at(spec.policy.deadline, began_at),
        epochs_end=EpochsEnd.FINISHED,
        spotrun=__version__,
    )


def _storage_prices(spec: RunSpec, region: str) -> StoragePrices:
    prices = storage_prices(spec.checkpoint.uri, region)
    return prices if spec.home is None else with_home(prices, spec.checkpoint.uri)


def deadline_at(deadline: timedelta | time | datetime, launched_at: datetime) -> datetime:
    """
    Return the moment of a deadline, in UTC, for a run that is launched at `launched_at`.

    A time of day means the next such time after the launch. It, and a moment without a zone, are on the clock of this
    machine.
    """
    if isinstance(deadline, timedelta):
        return launched_at + deadline
    if isinstance(deadline, datetime):
        return deadline.astimezone(UTC)
    today = launched_at.astimezone().date()
    chosen = (datetime.combine(today + timedelta(days=days), deadline).astimezone(UTC) for days in (0, 1, 2))
    return next(moment for moment in chosen if moment > launched_at)
