"""
Stores the line that `spotrun status` prints for an ended run in one small object, so that `spotrun status` does not
have to read and fold the run's ledger.

A runner writes the object when the run and all its instances have ended, and signs it as the run's owner, so that no
instance and no other writer of the store can make a run look complete or cheap. The object also contains the digest of
the last entry, and a digest of the ledger's listing (the names, sizes and times of all entries). A reader ignores the
object if these digests do not match the ledger. So the listing alone is enough to detect a replaced or truncated entry.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec

from spotrun.account.gaps import Gap
from spotrun.account.outcome import status_word
from spotrun.account.prices import hourly_prices
from spotrun.account.summary import RunSummary, summarise
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.folder.keys import KeyMissing, is_signed
from spotrun.folder.ledger import FOLDER as LEDGER
from spotrun.folder.ledger import Ledger, NewestSeen, forged, key_of
from spotrun.folder.status_objects import FOLDER
from spotrun.run.bounds import Count, OutOfBounds, decode
from spotrun.run.entry_bytes import parted, seal
from spotrun.run.events import ENTRY_SIZE_MAX, RunCreated
from spotrun.run.state import RunState
from spotrun.store.port import Store, StoredObject

KEY = f"{FOLDER}summary.json"
SUMMARY_BYTES_MAX = 1 << 20
"""
Maximum bytes of the object that are read. If the object is longer, the bytes that were read do not match its checksum,
so the object is ignored.
"""
VERSION = 6
"""
Version of the object. It increases when a figure of RunStatus is computed differently, for example. Objects of earlier
versions are ignored.
"""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The one-line status of a run.

    `prices_usd_per_hour` are the prices at evenly spaced times; a price is None if no instance was rented at that time.
    `detail` describes the end of the run. `files` is the number of the script's stored files. `gaps` are the parts of
    the training's state that no checkpoint contains. `voids` is the number of void entries. `forged` is the number of
    entries that are void because the owner's signature is missing.

    Three fields are only for jobs that run a command. `usd_per_kept_hour` is the cost of the run divided by the hours
    of work that were not lost. `keeps_nothing` is True if the run has no checkpoint, so an interruption would have lost
    all work. `unprotected` is True if the command's training has not connected to its agent, so its state was not
    saved.
    """

    state: str
    step: Count
    epochs_completed: Count
    interruptions: Count
    cost_usd: Decimal
    prices_usd_per_hour: tuple[Decimal | None, ...]
    voids: Count
    forged: Count
    deadline_lost: bool
    detail: str
    files: Count = 0
    gaps: tuple[Gap, ...] = ()
    usd_per_kept_hour: Decimal | None = None
    keeps_nothing: bool = False
    unprotected: bool = False


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored final status, with the digests of the last entry's object and of the ledger's listing."""

    version: Count
    run: str
    listed_sha256: str
    sha256: str
    status: RunStatus


def run_status(state: RunState, summary: RunSummary, now: datetime) -> RunStatus:
    return RunStatus(
        state=status_word(state),
        step=max((commit.event.step for commit in state.commits if commit.usable), default=0),
        epochs_completed=len(summary.epochs),
        interruptions=summary.total.interruptions,
        cost_usd=summary.total.cost_usd,
        prices_usd_per_hour=tuple(hourly_prices(state, now)),
        voids=len(state.voids),
        forged=forged(state),
        deadline_lost=state.deadline_lost is not None,
        detail="" if state.terminal is None else state.terminal.detail,
        files=state.stored_files,
        gaps=summary.gaps,
        usd_per_kept_hour=summary.total.usd_per_productive_hour if summary.plain else None,
        keeps_nothing=summary.plain and _has_begun(state) and state.latest_commit() is None,
        unprotected=state.is_unprotected,
    )


def _has_begun(state: RunState) -> bool:
    """Return True if a command has begun its work. A script that still imports its modules has not."""
    return any(trainer.began_at is not None for attempt in state.attempts.values() for trainer in attempt.trainers)


def final_status(state: RunState) -> RunStatus | None:
    """Return the final status; None if any of its figures may still change."""
    end = state.terminal
    return run_status(state, summarise(state, end.at), end.at) if end is not None and is_final(state) else None


def is_final(state: RunState) -> bool:
    """Return True if the run has ended and the ledger records the end of each of its instances."""
    return state.terminal is not None and not any(
        launch.recorded and not launch.gone for launch in state.launches.values()
    )


def write_final_status(store: Store, ledger: Ledger) -> None:
    """Write the status if it is final. A failure does no harm: `spotrun status` then reads the ledger."""
    status, sha256 = final_status(ledger.state), ledger.newest_sha256
    if status is None:
        return
    with contextlib.suppress(StoreError, KeyMissing):
        listed = store.list(LEDGER)
        if len(listed) != ledger.state.next_number or not _is_whole(listed):
            return
        uid, listed_sha256 = ledger.state.created.uid, _digest(listed)
        stored = _Stored(version=VERSION, run=uid, listed_sha256=listed_sha256, sha256=sha256, status=status)
        store.put_status(KEY, seal(ledger.signed(msgspec.json.encode(stored))))


def read_final_status(store: Store, created: RunCreated, seen: NewestSeen | None = None) -> RunStatus | None:
    """
    Return the final status; None if no stored status matches the ledger. A status matches if the ledger's listing and
    its last entry are the same as when the status was written. An unreadable status counts as missing, and so does one
    that the owner has not signed, if the run has a key.

    `seen` is the newest entry that this machine has read. A status of a ledger that has fewer entries counts as missing
    too: another writer of the store may have taken entries away, and put an earlier status back.

    Raises:
        StoreUnavailable: the store does not answer now.
    """
    try:
        signature, body = parted(store.get(KEY, 0, SUMMARY_BYTES_MAX))
        stored = decode(body, _Stored)
        if (stored.version, stored.run) != (VERSION, created.uid):
            return None
        if created.public_key and not is_signed(created.public_key, signature, body):
            return None
        listed = store.list(LEDGER)
        if not _is_whole(listed) or _digest(listed) != stored.listed_sha256:
            return None
        if seen is not None and seen.number >= len(listed):
            return None
        last = store.get(listed[-1].key, 0, ENTRY_SIZE_MAX + 1)
    except StoreUnavailable:
        raise
    except (StoreError, OutOfBounds):
        return None
    return stored.status if hashlib.sha256(last).hexdigest() == stored.sha256 else None


def _is_whole(listed: Sequence[StoredObject]) -> bool:
    """Return True if `listed` contains every entry from number 0 to the last one."""
    return bool(listed) and [found.key for found in listed] == [key_of(number) for number in range(len(listed))]


def _digest(listed: Iterable[StoredObject]) -> str:
    lines = (f"{found.key} {found.size_bytes} {found.modified_at.timestamp():.6f}\n" for found in listed)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
