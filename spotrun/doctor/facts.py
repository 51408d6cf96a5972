"""
Checks whether a store is suitable for a run. The checks use what the store reports about itself: its region,
versioning, free space and expiry rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from spotrun.doctor.finding import Finding, ok, unknown, warned
from spotrun.errors import StoreError
from spotrun.store.port import Inspectable, Store, StoreFacts, UnknownFact
from spotrun.units import count_of, some_of

FREE_WARNED_BYTES = 10 << 30
FREE_MIN_BYTES = 1 << 30


def fact_findings(store: Store, wanted_region: str | None) -> Iterator[Finding]:
    """
    Yield findings about the store, from what it reports about itself. `wanted_region` is the region of the instances;
    None if unknown.

    Raises:
        StoreError: according to these facts, the store cannot keep a run.
    """
    if not isinstance(store, Inspectable):
        yield unknown("store", "this kind of store reports no facts about itself")
        return
    facts = store.inspect()
    yield from _region(facts, wanted_region)
    yield from _versioning(facts)
    yield from _space(facts)
    yield from _expiry(facts)
    yield from _keys(facts)


def _region(facts: StoreFacts, wanted: str | None) -> Iterator[Finding]:
    if isinstance(facts.region, UnknownFact):
        yield unknown("region", facts.region.reason)
    elif facts.region is None:
        return
    elif wanted is not None and not _covers(facts.region, wanted):
        yield warned(
            "region",
            f"the store is in {facts.region}, but resources.region is {wanted}",
            f"use a store in {wanted}: otherwise every checkpoint crosses regions, slowly and at a price",
        )
    else:
        yield ok("region", facts.region)


def _covers(region: str, wanted: str) -> bool:
    """
    Return True if a bucket in `region` stores its data in the region `wanted` or near it. The region of a GCS bucket
    may be a whole continent, such as `us` or `eu`. The names of the continent's regions begin with these two letters.
    """
    return wanted == region or (len(region) == 2 and wanted.startswith(region))


def _versioning(facts: StoreFacts) -> Iterator[Finding]:
    if isinstance(facts.versioned, UnknownFact):
        yield unknown("versioning", facts.versioned.reason)
    elif facts.versioned and facts.older_versions_days is not None:
        days = count_of(facts.older_versions_days, "day")
        yield ok("versioning", f"on: deleted and overwritten objects are kept, and paid for, {days}")
    elif facts.versioned:
        hint = "let a lifecycle rule expire noncurrent versions; otherwise you pay for deleted checkpoints"
        yield warned("versioning", "on: retired checkpoints and older status objects are kept as versions", hint)
    else:
        yield ok("versioning", "off: deleted objects are gone at once, and cost nothing")


def _space(facts: StoreFacts) -> Iterator[Finding]:
    free_bytes = facts.free_bytes
    if free_bytes is None:
        return
    detail = f"{free_bytes / 1e9:,.1f} GB free"
    if free_bytes < FREE_MIN_BYTES:
        raise StoreError(f"the disk is full: {detail}", hint="make room, or choose a folder on another disk")
    if free_bytes < FREE_WARNED_BYTES:
        yield warned(
            "space", detail, "make room: a run keeps several checkpoints, each three times as large as the model"
        )
    else:
        yield ok("space", detail)


def _expiry(facts: StoreFacts) -> Iterator[Finding]:
    if isinstance(facts.expiries, UnknownFact):
        yield unknown(
            "expiry",
            f"it is unknown whether objects expire: {facts.expiries.reason}",
            "make sure that no lifecycle rule deletes or archives objects below the prefix",
        )
    elif facts.expiries:
        raise StoreError(
            f"objects below the prefix expire: {'; '.join(facts.expiries)}",
            hint="take the prefix out of these lifecycle rules: a run whose ledger entries are deleted is lost",
        )
    else:
        yield ok("expiry", "no rule deletes or archives objects below the prefix")


def _keys(facts: StoreFacts) -> Iterator[Finding]:
    """Check who can read the keys of runs, as far as the bucket's policy says."""
    if isinstance(facts.key_readers, UnknownFact):
        what = f"it is unknown who can read the keys of runs: {facts.key_readers.reason}"
        yield unknown("keys", what, "apply the current infra/aws or infra/gcp")
    elif facts.key_readers:
        what = f"these can read the keys of runs, and sign as their owners: {some_of(facts.key_readers)}"
        hint = "name the runners: see The keys of runs in infra/aws/README.md or infra/gcp/README.md"
        yield warned("keys", what, hint)
    elif facts.key_readers is not None:
        yield ok("keys", "the bucket's policy lets only runners read the keys of runs")
