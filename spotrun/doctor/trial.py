"""
Tests a store with small objects in a separate folder, and removes them afterwards.

A ledger needs a store with this property: if two writers create the same object at the same time, only one of them
succeeds. The documentation of a store does not reliably say whether it has this property, so this module tests it.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from spotrun import address
from spotrun.clock import Clock
from spotrun.doctor.finding import Finding, ok, warned
from spotrun.errors import ObjectMissing, StoreError, StoreUnavailable
from spotrun.folder.ledger import key_of
from spotrun.store.conditional_put_probe import RACERS, race
from spotrun.store.key_readers import KEYS
from spotrun.store.port import Store
from spotrun.store.retrying import persist

RACES = 3
SAMPLES = 5
SAMPLE_BYTES = 1024
SLOW_S = 1.0
"""
If a call takes more seconds than this, the trial gives a warning. Calls have to be fast because a commit needs a dozen
calls, and after a notice there may be only 30 s for a commit.
"""
SKEW_WARNED = timedelta(seconds=30)
SKEW_MAX = timedelta(minutes=15)
"""Maximum clock skew. S3 refuses every request with a larger skew (RequestTimeTooSkewed)."""


class StoreTrial:
    """
    Tests a store in a folder with a random name. If the store's own folder does not exist yet, the trial creates it,
    and removes it afterwards.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._folder = f"doctor-{secrets.token_hex(8)}"
        self._absent = _absent_folders(store.uri)

    def findings(self) -> Iterator[Finding]:
        """
        Yield the findings of all trials.

        Raises:
            StoreError: an operation that every run needs does not work. The remaining trials are then skipped.
        """
        try:
            yield from self._permissions()
            yield from self._races()
            yield from self._latency()
            yield from self._skew()
        finally:
            self._tidy_up()
        yield self._nothing_left()

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    # -- permissions -------------------------------------------------------------------------------------------------

    def _permissions(self) -> Iterator[Finding]:
        """Perform each operation that a run performs on a store, once."""
        key = self._key("permissions")
        with _while("create an object"):
            persist(lambda: self._store.put_if_absent(key, b"created"))
        with _while("read it back"):
            _require(persist(lambda: self._store.get(key)) == b"created", "the bytes read differ from those written")
        with _while("list it"):
            keys = [found.key for found in persist(lambda: self._store.list(f"{self._folder}/"))]
            _require(keys == [key], f"a listing shows {keys} instead of the one object that exists")
        with _while("overwrite it, as runs do with status objects and partly sent checkpoints"):
            persist(lambda: self._store.put(key, b"overwritten"))
            _require(persist(lambda: self._store.get(key)) == b"overwritten", "the old bytes are read")
        with _while("delete it"):
            persist(lambda: self._store.delete(key))
            _require(not self._exists(key), "the deleted object still exists")
        yield ok("permissions", "objects can be created, read, listed, overwritten and deleted")
        if isinstance(
            address.parse(self._store.uri), address.BucketAddress
        ):  # in a local folder the user may do anything
            yield self._protection()
            self._read_no_key()

    def _read_no_key(self) -> None:
        """
        Read a key that does not exist. A bucket that lets only runners read keys refuses this to everyone else, before
        it looks for the object.
        """
        try:
            persist(lambda: self._store.get(f"{KEYS}/{self._folder}"))
        except ObjectMissing:
            return
        except StoreUnavailable:
            raise
        except StoreError as error:
            hint = "ask for the rights of a runner: see The keys of runs in infra/aws/README.md or infra/gcp/README.md"
            raise StoreError(f"cannot read the keys of runs: {error.message}", hint=hint) from error

    def _protection(self) -> Finding:
        """
        Check whether these credentials could delete an entry of a ledger, by trying to delete an entry that does not
        exist. A store checks rights before it looks for the object. So if it refuses, it protects the entries of
        ledgers. It does not refuse all deletions, because this trial has just deleted other objects.
        """
        try:
            persist(lambda: self._store.delete(self._key(key_of(0))))
        except StoreUnavailable:
            raise
        except StoreError:
            return ok("protection", "these credentials cannot delete the entries of a ledger")
        hint = "deny deletion of */ledger/* to the identity of the instances, so no training code can delete entries"
        return warned("protection", "these credentials could delete the entries of a ledger; spotrun never does", hint)

    def _exists(self, key: str) -> bool:
        try:
            persist(lambda: self._store.get(key))
        except ObjectMissing:
            return False
        return True

    # -- creating an object only if it does not exist ----------------------------------------------------------------

    def _races(self) -> Iterator[Finding]:
        """
        Let several writers create the same object at the same time, as runners do with the next entry of a ledger.
        Check that only one succeeds.
        """
        for number in range(RACES):
            race(self._store, self._key(f"race-{number}"))
        yield ok("creation", f"only absent objects are created ({RACES} races of {RACERS} writers, one winner each)")

    # -- latency -----------------------------------------------------------------------------------------------------

    def _latency(self) -> Iterator[Finding]:
        key, data = self._key("latency"), bytes(SAMPLE_BYTES)
        put_s = statistics.median(self._seconds(lambda: self._store.put(key, data)) for _ in range(SAMPLES))
        get_s = statistics.median(self._seconds(lambda: self._store.get(key)) for _ in range(SAMPLES))
        detail = f"{put_s * 1000:,.0f} ms to write 1 KiB, {get_s * 1000:,.0f} ms to read it (medians of {SAMPLES})"
        if max(put_s, get_s) > SLOW_S:
            yield warned("latency", detail, "use a store near this machine; instances also need a store near them")
        else:
            yield ok("latency", detail)

    def _seconds(self, act: Callable[[], object]) -> float:
        began = self._clock.monotonic()
        persist(act)
        return self._clock.monotonic() - began

    def _skew(self) -> Iterator[Finding]:
        """
        Compare this machine's clock with the store's: write an object, and read the time that the store reports for it.
        Differences below a second are ignored, because stores report whole seconds.
        """
        key = self._key("clock")
        before = self._clock.now()
        persist(lambda: self._store.put(key, b""))
        after = self._clock.now()
        written_at = next(found.modified_at for found in persist(lambda: self._store.list(key)))
        early, late = before - written_at, written_at - after
        skew = max(early, late, timedelta(0))
        side = "ahead of" if early > late else "behind"
        detail = f"this machine's clock is {skew.total_seconds():.0f} s {side} the store's"
        if skew > SKEW_MAX:
            raise StoreError(detail, hint="set this machine's clock, for example by `timedatectl set-ntp true`")
        if skew > SKEW_WARNED:
            yield warned("clock", detail, "set this machine's clock: the times of bills and epochs come from it")
        else:
            yield ok("clock", "this machine's clock agrees with the store's")

    # -- cleaning up -------------------------------------------------------------------------------------------------

    def _tidy_up(self) -> None:
        """
        Delete the trial's objects. Errors are ignored here, because `_nothing_left` reports the objects that could not
        be deleted.
        """
        with contextlib.suppress(StoreError):
            for found in self._store.list(f"{self._folder}/"):
                persist(partial(self._store.delete, found.key))
        for folder in self._absent:
            with contextlib.suppress(OSError):  # another process may have put something into the folder
                folder.rmdir()

    def _nothing_left(self) -> Finding:
        left = persist(lambda: self._store.list(f"{self._folder}/"))
        if left:
            raise StoreError(f"objects left in {self._folder}: {len(left)}", hint="delete them by hand")
        return ok("tidiness", "these checks left no objects behind")


def _absent_folders(uri: str) -> list[Path]:
    """
    Return those of the store's folder and its parents that do not exist yet, deepest first. Writing the first object
    creates them.
    """
    place = address.parse(uri)
    above = (Path(place), *Path(place).parents) if isinstance(place, str) else ()
    return [folder for folder in above if not folder.exists()]


@contextlib.contextmanager
def _while(doing: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise type(error)(f"cannot {doing}: {error.message}", hint=error.hint) from error


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StoreError(otherwise, hint="use another store, or remove the cache in front of it")
