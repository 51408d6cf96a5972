"""How a run comes to be: its folder, its work folder's content, and entry 0."""

from __future__ import annotations

import contextlib
import secrets
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from msgspec.structs import replace

from spotrun.account.storage_prices import storage_prices
from spotrun.boot import upload as boot
from spotrun.clock import ScaledClock, clock_from_environment, system_clock
from spotrun.errors import StoreError
from spotrun.folder import start_file, workdir
from spotrun.folder.ledger import Ledger
from spotrun.run import fold
from spotrun.run.billing import rule_of
from spotrun.run.events import LEDGER_VERSION, Entry, RunCreated
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec, instance_types_of, regions_of
from spotrun.store.conditional_put_probe import race
from spotrun.store.opening import open_store
from spotrun.store.port import Located, Store
from spotrun.store.retrying import persist

TRIAL = "trial"
"""What is tried out in a new run's folder, and deleted again."""


def new_uid() -> str:
    return secrets.token_hex(5)


def create_run(spec: RunSpec, writer: str, start: Path | None = None) -> str:
    """
    Put everything into the store that an instance needs, then create the run.

    `start` is a Lightning checkpoint for the training to begin from.

    Returns:
        The address of the run's folder.

    Raises:
        StoreError: the store cannot hold a run.
        SpecInvalid: the work folder is too large.
        CloudError: the advisor that the specification names cannot be read.
    """
    uid = new_uid()
    uri = f"{spec.checkpoint.uri.rstrip('/')}/{spec.name}-{uid}"
    store = open_store(uri)
    _try_out(store)
    clock = clock_of(spec)
    if spec.resources.cloud != "local":
        boot.upload(store)
    event = run_created(spec, uid, workdir.upload(store, Path(spec.workdir)), clock, persist(lambda: region_of(store)))
    if start is not None:
        event = replace(event, start_sha256=start_file.upload(store, start))
    Ledger(store, uid, writer, clock).create(event)
    return store.uri


def clock_of(spec: RunSpec) -> ScaledClock:
    """
    The clock of a run that begins now.

    On a rented machine a second is a second, unless a rehearsal has handed down the clock that its cloud goes by.
    """
    if spec.resources.cloud == "local":
        return ScaledClock(datetime.now(UTC), spec.local.time_scale)
    handed_down = clock_from_environment()
    return handed_down if handed_down.scale != 1 else ScaledClock(datetime.now(UTC), 1.0)


def _try_out(store: Store) -> None:
    """What every run needs of its store, before anything is rented: `spotrun doctor` tries more."""
    try:
        race(store, TRIAL)
    except StoreError:
        with contextlib.suppress(StoreError):  # the reason that comes first is the one to tell
            store.delete(TRIAL)
        raise
    persist(lambda: store.delete(TRIAL))


def region_of(store: Store) -> str:
    """Where a bucket is, for the price of what leaves it; "" for a folder, and where the store does not tell."""
    found = store.region() if isinstance(store, Located) else ""
    return found if isinstance(found, str) else ""


def newborn(spec: RunSpec, clock: ScaledClock, region: str = "") -> RunState:
    """The state in which a run of `spec` begins, with its bucket in `region`; nothing is written anywhere."""
    event = run_created(spec, "unborn", "", clock, region)
    return fold.begin(Entry(number=0, run=event.uid, nonce="", at=clock.now(), writer="", event=event))


def run_created(spec: RunSpec, uid: str, workdir_sha256: str, clock: ScaledClock, region: str = "") -> RunCreated:
    """Entry 0 of a run of `spec`, as it is launched at the epoch of `clock`; its bucket is in `region`."""
    return RunCreated(
        uid=uid,
        name=spec.name,
        ledger_version=LEDGER_VERSION,
        spec=spec.to_dict(),
        spec_sha256=spec.spec_sha256,
        workdir_sha256=workdir_sha256,
        clock_epoch=clock.epoch,
        time_scale=clock.scale,
        price_cap_usd_per_hour=spec.resources.max_price,
        budget_usd=spec.budget.max_usd,
        storage=storage_prices(spec.checkpoint.uri, region),
        interruption_bands=_interruption_bands(spec),
        billing=rule_of(spec.resources.cloud, spec.aws.volume_gb, regions_of(spec.resources, spec.aws)),
        simulated=spec.resources.cloud == "local",
        deadline_at=None if spec.policy.deadline is None else deadline_at(spec.policy.deadline, clock.epoch),
    )


def _interruption_bands(spec: RunSpec) -> dict[str, str]:
    if spec.resources.cloud != "aws" or spec.aws.advisor is None:
        return {}
    from spotrun.clouds.aws.advisor import bands_known

    regions, named = regions_of(spec.resources, spec.aws), instance_types_of(spec.resources, spec.aws)
    return bands_known(spec.aws.advisor, regions, named, system_clock())


def deadline_at(deadline: timedelta | time, launched_at: datetime) -> datetime:
    """
    The moment that a deadline means for a run launched then, in UTC.

    A time of day is the next one after the launch on the clock of this machine, tomorrow if it is past.
    """
    if isinstance(deadline, timedelta):
        return launched_at + deadline
    today = launched_at.astimezone().date()
    chosen = (datetime.combine(today + timedelta(days=days), deadline).astimezone(UTC) for days in (0, 1, 2))
    return next(moment for moment in chosen if moment > launched_at)
