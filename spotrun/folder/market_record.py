"""
Shares what a run has observed about a market (losses, for example) with other runs in the same store. The observations
are objects next to the runs' folders.

    market/CLOUD/REGION/20261121T200632.123456Z_lost_ZONE_TYPE_spot_1800_RUN_17

Each observation is one small object, which is created once and never changed. All its facts are in its name, so listing
a region's objects is enough to read them. The name ends with the run and the launch; in a gang, 17.1 is the second
member of launch 17. If a run has two runners, both create the same object, so nothing is overwritten.

Runs use the record only to decide which offerings to request first, so no harm is done if a part of it is lost. Runs on
a local cloud with `time_scale` use a separate record, because their simulated markets change faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from spotrun.errors import StoreError
from spotrun.market.observations import Fate, Observation, observations_of
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.run.events import RunCreated
from spotrun.run.state import RunState
from spotrun.store.port import Store, StoredObject, is_key

FOLDER = "market"
"""Folder of the record. No run's folder can have this name, because the name of a run's folder ends in a uid."""
KEPT = timedelta(days=2)
"""
Maximum age of an observation, in run time. The older an observation is, the less weight it has in a run's decisions. An
observation older than this would have less than 1/40 of its original weight, so it is deleted.
"""
READ_EVERY = timedelta(minutes=1)
READ_SYSTEM_MIN = timedelta(seconds=5)
"""Minimum system time between two readings, whatever the speed of run time, because each listing costs money."""
DELETED_AT_ONCE = 100
_AT = "%Y%m%dT%H%M%S.%fZ"
_NAME = re.compile(  # the zone may be a partition of a cluster, with "_" in its name; a type has no "_"
    r"(?P<at>\d{8}T\d{6}\.\d{6}Z)_(?P<kind>lost|kept|refused)_(?P<zone>.+)_(?P<type>[^_]+)"
    r"_(?P<capacity>spot|on-demand)_(?P<up_s>\d{1,9})_(?P<run>[0-9a-z]+)_(?P<launch>\d{1,9})"
    r"(\.(?P<member>[1-9]\d?))?",
    re.ASCII,
)


class MarketRecord:
    """
    Reads and extends the market record for one run. A run must not fail because the record cannot be read, so
    `exchange` never raises a StoreError. `trouble` is the reason why the record cannot be used now.
    """

    def __init__(self, store: Store, read_every: timedelta = READ_EVERY) -> None:
        self._store = store
        self._read_every = read_every
        self._told: set[tuple[int, int, Fate]] = set()
        self._known: tuple[Observation, ...] = ()
        self._read_at: datetime | None = None
        self.trouble: str | None = None

    def exchange(self, state: RunState, offerings: Sequence[Offering], now: datetime) -> tuple[Observation, ...]:
        """
        Write the observations that this run has made since the last call. Return the other runs' observations. The
        newest ones may be missing, because the record is read only at intervals.
        """
        news = [seen for seen in observations_of(state) if (seen.launch, seen.member, seen.kind) not in self._told]
        pause = max(self._read_every, READ_SYSTEM_MIN * state.created.time_scale)
        due = self._read_at is None or now - self._read_at >= pause
        if not due and (not news or self.trouble is not None):
            return self._known
        self._read_at = now
        try:
            self._tell(news, state.created, now)
            self._known = self.read(state.created, offerings, now)
        except StoreError as error:
            self.trouble = f"other runs' observations of the market cannot be used: {error.message}"
        return self._known

    def read(self, created: RunCreated, offerings: Iterable[Offering], now: datetime) -> tuple[Observation, ...]:
        """
        Return the observations that other runs made of these offerings, oldest first.

        Raises:
            StoreError: the record cannot be read.
        """
        prefixes = sorted({_prefix(offering.cloud, offering.region, created) for offering in offerings})
        listed = [stored for prefix in prefixes for stored in self._store.list(prefix)]
        found = [(stored, _read(stored, created)) for stored in listed]
        unreadable = sum(seen is None for _, seen in found)
        self.trouble = f"skipped objects in {FOLDER}/ that are not observations: {unreadable}" if unreadable else None
        recent = [seen for _, seen in found if seen is not None and now - seen.at < KEPT]
        return tuple(seen for seen in recent if seen.run != created.uid)

    def _tell(self, news: Iterable[Observation], created: RunCreated, now: datetime) -> None:
        worth_telling = [seen for seen in news if now - seen.at < KEPT]
        for seen in worth_telling:
            self._store.put_if_absent(_key(seen, created), b"")
            self._told.add((seen.launch, seen.member, seen.kind))
        for prefix in {_prefix(seen.cloud, seen.region, created) for seen in worth_telling}:
            self._forget(prefix, created, now)

    def _forget(self, prefix: str, created: RunCreated, now: datetime) -> None:
        """
        Delete all observations that are older than KEPT, whichever run made them. Other runs may delete the same
        observations at the same time.
        """
        oldest = f"{prefix}{_system_time(now - KEPT, created):{_AT}}"
        old = [stored.key for stored in self._store.list(prefix) if stored.key < oldest and _NAME.search(stored.key)]
        for key in old[:DELETED_AT_ONCE]:
            self._store.delete(key)


def _prefix(cloud: str, region: str, created: RunCreated) -> str:
    clock = f"-x{created.time_scale:g}" if created.time_scale != 1 else ""
    return f"{FOLDER}/{cloud}{clock}/{region}/"


def _key(seen: Observation, created: RunCreated) -> str:
    pool = seen.pool
    at = f"{_system_time(seen.at, created):{_AT}}"
    capacity = pool.capacity_type.replace("_", "-")
    whose = f"{seen.launch}.{seen.member}" if seen.member else f"{seen.launch}"
    facts = (at, seen.kind, pool.zone, pool.instance_type, capacity, f"{seen.up_s:.0f}", seen.run, whose)
    return _prefix(seen.cloud, seen.region, created) + "_".join(facts)


def _read(stored: StoredObject, created: RunCreated) -> Observation | None:
    """
    Decode an observation from an object's name, and convert its time to the reader's run time. Return None if the
    object is not an observation.
    """
    _, cloud, region, name = stored.key.split("/", 3)
    match = _NAME.fullmatch(name)
    if match is None or not is_key(stored.key):
        return None
    try:
        told_at = datetime.strptime(match["at"], _AT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Observation(
        run=match["run"],
        launch=int(match["launch"]),
        member=int(match["member"] or 0),
        cloud=cloud.partition("-x")[0],
        region=region,
        pool=Pool(
            zone=match["zone"],
            instance_type=match["type"],
            capacity_type=CapacityType(match["capacity"].replace("-", "_")),
        ),
        kind=Fate(match["kind"]),
        at=_run_time(min(told_at, stored.modified_at), created),  # an observation cannot be younger than its object
        up_s=float(match["up_s"]),
    )


def _system_time(at: datetime, created: RunCreated) -> datetime:
    """
    Return the system time at which a run's clock shows `at`. Observations are stored in system time, because the clocks
    of two runs may show different times.
    """
    return created.clock_epoch + (at - created.clock_epoch) / created.time_scale


def _run_time(at: datetime, created: RunCreated) -> datetime:
    return created.clock_epoch + (at - created.clock_epoch) * created.time_scale
