"""
The ledger of a run: numbered entries that are created once and never changed.

To append entry n, a writer folds all earlier entries and then writes entry n with put-if-absent. So an append succeeds
only if the writer knew the whole ledger. If the store answers anything but success, it is *unknown* whether the entry
was written. The writer then reads entry n back, and sees from its content who wrote it.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from shlex import quote
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from spotrun.clock import Clock
from spotrun.errors import (
    LedgerDamaged,
    LedgerFlooded,
    LedgerVersionUnknown,
    ObjectMissing,
    RunNotFound,
    SpotrunError,
    StoreUnavailable,
    WritesRefused,
)
from spotrun.folder.keys import KeyMissing, OwnersKey, is_signed
from spotrun.run import fold
from spotrun.run.entry_bytes import RESTORE, Sign, decode_entry, encode_entry, is_whole, parted, signed
from spotrun.run.events import ENTRY_SIZE_MAX, READABLE_VERSIONS, AnyEvent, Entry, LaunchIntended, RunCreated, kind
from spotrun.run.owners import is_of_owner
from spotrun.run.refusal import Refusal
from spotrun.run.state import RunState
from spotrun.store.port import Store, StoredObject
from spotrun.store.retrying import persist, through_faults

FOLDER = "ledger/"
RETRY_FOR_S = 60.0
"""
Seconds of system time for which a call to the store is retried after a temporary fault. After that, the call's error is
raised.
"""
READERS = 8
FIRST_ENTRIES = 2
"""
Number of entries at the beginning of a ledger that no agent can have written: entry 0 creates the run, and entry 1 is
the run's first launch, which happens before any agent exists.
"""
READS_MAX = 5
"""Maximum reads of an entry if each read returns different bytes."""
READ_ON_MAX = 100
"""
Maximum number of new entries that are read one by one. If there are more new entries, the store lists them, and they
are read in parallel.
"""
RACE_FOR_S = 30.0
"""Seconds of system time for which an append is retried if, each time, another process writes the next entry first."""
ENTRIES_MAX = 1_000_000
"""Maximum entries of a ledger. It is enough for commits at the shortest interval for a year."""

FORGED = "the run's owner has not signed the entry"


def forged(state: RunState) -> int:
    """
    Return the number of forged entries. A forged entry is void because only the run's owner may write it, and the
    owner's signature is missing.
    """
    return sum(void.reason == FORGED for void in state.voids)


Decide = Callable[[RunState], AnyEvent | None]
P = ParamSpec("P")
T = TypeVar("T")


class EntryRefused(SpotrunError):
    """The event would be void, because the run has changed since the writer decided on the event."""


def key_of(number: int) -> str:
    return f"{FOLDER}{number:08d}.json"


def read_entry(store: Store, number: int) -> bytes | None:
    """
    Return the bytes of entry `number`'s object; None if the object does not exist.

    If the bytes do not match the checksum that they contain, either the object is damaged, or a faulty connection has
    corrupted the bytes. A faulty connection corrupts each read differently, so the object is read again until two reads
    give the same bytes. At most ENTRY_SIZE_MAX + 1 bytes are read, because any process may have stored a huge object
    under this name.
    """
    data = None
    for _ in range(READS_MAX):
        before = data
        try:
            data = store.get(key_of(number), 0, ENTRY_SIZE_MAX + 1)
        except ObjectMissing:
            return None
        if is_whole(data) or data == before:
            break
    return data


def first_object(store: Store) -> tuple[Entry, bytes]:
    """
    Return entry 0 of a run, which defines the clock, the cloud and the rules for all other entries, and the bytes of
    the object that contains it.

    Raises:
        RunNotFound: entry 0 is missing, or does not create a run.
        LedgerDamaged: entry 0 is not what was written.
        LedgerVersionUnknown: entry 0 was written by a spotrun whose ledgers this one cannot read.
        StoreUnavailable: entry 0 could not be read within a few seconds. The limit is short because a person may be
            waiting.
    """
    data = persist(lambda: read_entry(store, 0))
    if data is None:
        # If the folder has later entries, the ledger is damaged. If not, the user probably mistyped the run's name.
        raise _without_first(store, persist(lambda: store.list(FOLDER)))
    return _creating(store, data), data


def _creating(store: Store, data: bytes) -> Entry:
    """Decode entry 0 from its bytes. Raise the errors of `first_object`."""
    if not is_whole(data):
        raise LedgerDamaged(f"{store.uri} is damaged: entry 0 does not match the checksum in it", hint=RESTORE)
    entry = decode_entry(data)
    if entry is not None and entry.number != 0:
        raise _displaced(entry, 0)
    if entry is None:
        what = f"{store.uri} is damaged: entry 0 is not well-formed, or has a figure that is out of bounds"
        raise LedgerDamaged(what, hint=RESTORE)
    if not isinstance(entry.event, RunCreated):
        what = f"entry 0 of {store.uri} does not create a run"
        raise RunNotFound(what, hint="the folder is damaged, or not a run at all")
    if entry.run != entry.event.uid:
        what = f"{store.uri} is damaged: entry 0 is of run {entry.run!r:.40} but creates {entry.event.uid!r:.40}"
        raise LedgerDamaged(what, hint=RESTORE)
    version = entry.event.ledger_version
    if version not in READABLE_VERSIONS:
        read = f"{min(READABLE_VERSIONS)} to {max(READABLE_VERSIONS)}"
        raise LedgerVersionUnknown(
            f"the ledger of {store.uri} is of version {version}, and this spotrun reads versions {read}",
            hint="use the spotrun that the run was launched with, or another --store",
        )
    return entry


def _without_first(store: Store, later: list[StoredObject]) -> SpotrunError:
    if later:
        return LedgerDamaged(f"{store.uri} is damaged: entry 0 is missing although later entries exist", hint=RESTORE)
    return RunNotFound(f"{store.uri} holds no run", hint="`spotrun status` lists the runs in the store")


class NewestSeen(NamedTuple):
    """
    The newest entry of a ledger that this machine has read: its number, and the digest of the ledger up to this entry
    (see `Ledger.history_sha256`).
    """

    number: int
    history_sha256: str


class Witness(Protocol):
    """
    Remembers on this machine, where no other writer of the store can write, how far a ledger went when it was last
    read. Neither method raises an error: if the record cannot be read or written, the ledger is read without it.
    """

    def newest(self) -> NewestSeen | None:
        """Return the entry with the highest number that was recorded; None if no entry was."""

    def record(self, seen: NewestSeen) -> None:
        """Record an entry that was read or written, unless a higher one is recorded already."""


class Ledger:
    """
    One writer's view of a run's ledger: the entries that it has read so far, and their fold.

    Several threads can share one Ledger. `writer` is the writer's name in the entries that it writes ("agent:17",
    "runner:host:4711"); programs only show this name, and never act on it. `first` is entry 0 with its object, if the
    caller has already read it. The first refresh reads up to `readers` entries at the same time. `sign` signs the
    entries that only the run's owner is allowed to write; an agent passes None. If `witness` has recorded an entry that
    is missing now, or differs, the ledger is damaged.
    """

    def __init__(
        self,
        store: Store,
        run_uid: str,
        writer: str,
        clock: Clock,
        retry_for_s: float = RETRY_FOR_S,
        readers: int = READERS,
        first: tuple[Entry, bytes] | None = None,
        sign: Sign | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._store = store
        self._sign = sign
        self._witness = witness
        self._seen: NewestSeen | None = None
        self._uid = run_uid
        self._writer = writer
        self._clock = clock
        self._retry_for_s = retry_for_s
        self._readers = readers
        self._lock = threading.RLock()
        self._entries: list[Entry] = []
        self._state: RunState | None = None
        self._newest = b""
        self._history_sha256 = ""
        self._sizes: list[int] = []
        self._first: Entry | None = None
        self._cold = True
        if first is not None:
            entry, data = first
            self._begin(entry)
            self._has_read(data, _sha256(data))

    @property
    def state(self) -> RunState:
        """
        The run's state according to the entries read so far, which include at least entry 0. `refresh` reads new
        entries.
        """
        assert self._state is not None, "nothing was read yet"
        return self._state

    @property
    def newest_sha256(self) -> str:
        """The digest of the object that contains the newest entry."""
        return _sha256(self._newest)

    @property
    def history_sha256(self) -> str:
        """
        The digest of all objects read so far. It is the digest of entry 0's object and then, for each further entry,
        the digest of the digest so far (in hex) followed by the entry's object.
        """
        return self._history_sha256

    @property
    def entries(self) -> list[Entry]:
        """The well-formed entries read so far. Void entries are included, except forged ones."""
        return list(self._entries)

    def refresh(self) -> RunState:
        """
        Read and fold all new entries. If the ledger is damaged, `state` is the fold of the entries before the damage.
        If there are very many new entries, leave those that are written during this call to the next call. Otherwise
        this call might never return, because an instance can write entries faster than this process reads them.

        Raises:
            RunNotFound: entry 0 is missing, or does not create a run.
            LedgerDamaged: an entry is missing although a later one exists, or an entry is not what was written, or not
                what this machine has read before.
            LedgerFlooded: there are more entries than a run can have.
            LedgerVersionUnknown: the ledger was written by a spotrun whose ledgers this one cannot read.
            StoreUnavailable: the store could not be read for a minute; `state` is unchanged.
        """
        with self._lock:
            if self._cold:
                # Before the listing: another process of this machine may append and record further entries meanwhile.
                self._seen = None if self._witness is None else self._witness.newest()
                self._read_all()
                self._read_what_was_seen()
                self._cold = False
            self._read_on()
            self._record()
            return self.state

    def _read_on(self) -> None:
        for _ in range(READ_ON_MAX):
            if (data := self._read(self._next)) is None:
                return
            self._fold(self._next, data)
        self._read_all()

    def _read_what_was_seen(self) -> None:
        """
        Check that the ledger has all entries that this machine has read before. Entries that the listing did not
        contain are read, because a folder on a network may be listed late.

        Raises:
            LedgerDamaged: an entry is missing.
        """
        if self._seen is None:
            return
        for number in range(self._next, self._seen.number + 1):
            if (data := self._read(number)) is None:
                raise _damaged(f"entry {number} is missing, and this machine has read entry {self._seen.number} before")
            self._fold(number, data)

    def _record(self) -> None:
        """Record the newest entry, so that later processes on this machine notice if it is missing."""
        newest = self._next - 1
        if self._witness is not None and (self._seen is None or newest > self._seen.number):
            self._seen = NewestSeen(newest, self.history_sha256)
            self._witness.record(self._seen)

    def first(self, event: RunCreated) -> Entry:
        """Return the entry 0 that `create` will write. Each call returns the same entry."""
        with self._lock:
            if self._first is None:
                self._first = self._entry(event)
            return self._first

    def first_sha256(self, event: RunCreated) -> str:
        """Return the digest of the object that `create` writes for entry 0."""
        entry = self.first(event)
        return _sha256(encode_entry(entry, self._signer_of(entry)))

    def create(self, event: RunCreated) -> Entry:
        """
        Write entry 0. If the store's answer was lost, call `create` a second time: it finds the entry that the first
        call wrote.

        Raises:
            EntryRefused: this ledger belongs to another run; `state` is the state of that run.
            StoreUnavailable: as in `refresh`; the entry may have been written or not.
        """
        with self._lock:
            entry = self.first(event)
            if self._state is None:
                self._propose(entry)
            if self._entries[0].nonce != entry.nonce:
                raise EntryRefused(f"{self._store.uri} already contains a run")
            return entry

    def append(self, decide: Decide) -> Entry | None:
        """
        Write the event that `decide` returns for the newest state. If `decide` returns None, write nothing.

        If another writer takes the entry's number first, read that writer's entry, and call `decide` again with the new
        state. Repeat this until the event is written or `decide` returns None. `decide` must not append anything
        itself.

        Raises:
            EntryRefused: the event would be void on the newest state.
            LedgerDamaged: the event is a launch, and an entry that this process has read before no longer exists.
            KeyMissing: the event is a launch, and the owner's key no longer exists.
            LedgerFlooded: for RACE_FOR_S, another writer was always the first to write the next entry.
            RunNotFound, LedgerDamaged, LedgerVersionUnknown, StoreUnavailable: as in `refresh`; the event may have been
                written or not.
        """
        with self._lock:
            until_s = time.monotonic() + RACE_FOR_S
            while True:
                state = self.refresh()
                event = decide(state)
                if event is None:
                    return None
                entry = self._entry(event)
                reason = fold.refusal(state, entry)
                if reason is not None:
                    raise EntryRefused(
                        f"{kind(event)} was not written: {reason}",
                        hint=f"see `spotrun events {quote(self._store.uri)}`",
                    )
                if self._propose(entry):
                    return entry
                if time.monotonic() > until_s:
                    raise self._flooded(
                        f"{kind(event)} was not written: other programs always wrote the next entry first"
                    )

    def is_gone(self) -> bool:
        """
        Return True if the run's folder was moved or deleted. The folder counts as gone if the ledger's first entries
        are missing, but the store still has the run's key. (Later entries may exist, if an agent did not notice the
        deletion.) If the key is missing too, return False, because then the whole store is probably absent: for
        example, its disk is not mounted.

        Raises:
            StoreUnavailable: as in `refresh`.
        """
        if not self.state.created.public_key or not isinstance(self._sign, OwnersKey):
            return False
        with self._lock:
            there = {stored.key for stored in self._list()}
            first = range(min(self._next, FIRST_ENTRIES))
            if any(key_of(number) in there or self._read(number) is not None for number in first):
                return False
        try:
            self._sign.read_again()
        except KeyMissing:
            return False
        return True

    def _require_whole(self, listed: Iterable[StoredObject]) -> None:
        """
        Check that each entry that this process has read still exists with the same size, and that the owner's key still
        exists. The check is made before each launch.

        Without this check, a runner could rent one instance after another, and no command could stop it: once an entry
        is missing, other programs can no longer read or write the ledger. So `spotrun down` could end an instance, but
        could not tell the runner to stop, and the runner would rent another.

        Raises:
            LedgerDamaged: an entry is gone, or was replaced.
            KeyMissing: the key is gone, or was replaced.
            StoreUnavailable: as in `refresh`.
        """
        there = {stored.key: stored.size_bytes for stored in listed}
        for number, size in enumerate(self._sizes):
            if (found := there.get(key_of(number))) is None:
                raise _damaged(f"entry {number} was read, and is missing now")
            if size != found:
                raise _damaged(f"the size of entry {number} has changed since it was read")
        if self.state.created.public_key and isinstance(self._sign, OwnersKey):
            self._sign.read_again()

    @property
    def _next(self) -> int:
        """The number of the entry to be read or written next."""
        return 0 if self._state is None else self._state.next_number

    def _entry(self, event: AnyEvent) -> Entry:
        history: str | UnsetType = UNSET
        if isinstance(event, RunCreated):
            history = "" if event.public_key else UNSET
        elif self._entries[0].history is not UNSET and is_of_owner(event):
            history = self.history_sha256
        return Entry(
            number=self._next,
            run=self._uid,
            nonce=secrets.token_hex(8),
            at=self._clock.now(),
            writer=self._writer,
            event=event,
            history=history,
        )

    def _propose(self, entry: Entry) -> bool:
        """
        Write and fold `entry`, and return True. If the ledger already has another entry with this number, fold that
        entry instead and return False.
        """
        self._require_possible(entry.number)
        data = encode_entry(entry, self._signer_of(entry))
        if len(data) > ENTRY_SIZE_MAX:
            raise SpotrunError(
                f"{kind(entry.event)} is {len(data):,} bytes; an entry may have at most {ENTRY_SIZE_MAX:,}"
            )
        if decode_entry(data) is None:
            raise SpotrunError(f"{kind(entry.event)} was not written: it has a figure that is out of bounds")
        rents = isinstance(entry.event, LaunchIntended)
        listed = self._list(after="" if rents else key_of(entry.number))
        if rents:
            self._require_whole(listed)
        self._refuse_gap(entry.number, listed)
        stored = self._patiently(self._settle, entry.number, data)
        self._fold(entry.number, stored)
        self._record()
        settled = decode_entry(stored)
        return settled is not None and settled.nonce == entry.nonce

    def signed(self, body: bytes) -> bytes:
        """
        Insert the owner's signature into a JSON object about the run. Return the object unchanged if the run has no
        key.

        Raises:
            KeyMissing: this writer cannot sign for the owner.
            StoreError: the key cannot be read.
        """
        if not self.state.created.public_key:
            return body
        if self._sign is None:
            raise KeyMissing("only the owner of the run can sign", hint="run the command where the run was launched")
        return signed(body, self._sign(body))

    def _signer_of(self, entry: Entry) -> Sign | None:
        """
        Return the function that signs `entry`; None if the entry needs no signature. Entry 0 is signed only if this
        writer has a key.
        """
        if isinstance(entry.event, RunCreated):
            return self._sign
        if not is_of_owner(entry.event) or not self.state.created.public_key:
            return None
        if self._sign is None:
            raise EntryRefused(f"{kind(entry.event)} was not written: only the owner of the run may write it")
        return self._sign

    def _settle(self, number: int, data: bytes) -> bytes:
        """
        Try to store `data` as entry `number`. Return the content of the stored entry: `data`, or what another writer
        stored under that number first. If the store's answer is lost, read the entry back to find out.
        """
        refused: WritesRefused | None = None
        try:
            if self._store.put_if_absent(key_of(number), data):
                return data
        except WritesRefused as error:
            refused = error
        except StoreUnavailable:
            pass  # any answer but success means unknown: the object is read back
        stored = read_entry(self._store, number)
        if stored is None:
            raise refused or StoreUnavailable(f"ledger entry {number} could not be written")
        return stored

    def _refuse_gap(self, number: int, listed: Iterable[StoredObject]) -> None:
        later = next((stored.key for stored in listed if stored.key > key_of(number)), None)
        if later is not None and self._read(number) is None:
            raise _missing(number, later)

    def _begin(self, entry: Entry) -> None:
        try:
            self._state = fold.begin(entry)
        except Refusal as reason:
            raise RunNotFound(f"entry 0 of {self._store.uri} does not create a run: {reason}") from None
        self._entries.append(entry)

    def _fold(self, number: int, data: bytes) -> None:
        history_sha256 = _sha256(self._history_sha256.encode() + data)
        self._fold_one(number, data, history_sha256)
        self._has_read(data, history_sha256)

    def _has_read(self, data: bytes, history_sha256: str) -> None:
        self._newest, self._history_sha256 = data, history_sha256
        self._sizes.append(len(data))

    def _fold_one(self, number: int, data: bytes, history_sha256: str) -> None:
        if self._state is None:
            self._begin(_creating(self._store, data))
            return
        if not is_whole(data):
            raise _damaged(f"entry {number} does not match the checksum in it")
        if self._seen is not None and self._seen.number == number and self._seen.history_sha256 != history_sha256:
            raise _damaged(f"the entries up to {number} are not those that this machine has read before")
        entry = decode_entry(data)
        if entry is None:
            self._state = fold.apply_malformed(self._state, number)
            return
        if entry.number != number:
            raise _displaced(entry, number)
        if self._is_forged(entry, data):
            self._state = fold.apply_malformed(self._state, number, FORGED, kind(entry.event))
            return
        if is_of_owner(entry.event) and entry.history not in (UNSET, self.history_sha256):
            raise _damaged(f"the entries before {number} are not those after which the owner signed entry {number}")
        self._entries.append(entry)
        self._state = fold.apply(self._state, entry)

    def _is_forged(self, entry: Entry, data: bytes) -> bool:
        """
        Return True if only the run's owner is allowed to write this entry, and the owner has not signed it (protocol
        31).
        """
        public_key = self.state.created.public_key
        return bool(public_key) and is_of_owner(entry.event) and not is_signed(public_key, *parted(data))

    def _read_all(self) -> None:
        """Read all entries that are not known yet: list the ledger once, then read the entries in parallel."""
        first = self._next
        keys = [stored.key for stored in self._list(after=key_of(first - 1) if first else "")]
        if not keys and not first:
            raise _without_first(self._store, [])
        if keys:
            self._require_possible(first + len(keys) - 1)
        end = next((number for number, key in enumerate(keys, first) if key != key_of(number)), first + len(keys))
        self._read_range(first, end)
        # If other programs append during the listing, the list may contain entry n + 1 without entry n. So entry n
        # counts as missing only if reading it fails too.
        if end < first + len(keys) and self._read(end) is None:
            raise _missing(end, keys[end - first])

    def _read_range(self, first: int, end: int) -> None:
        if self._readers == 1:
            self._fold_all(map(self._read, range(first, end)))
            return
        with ThreadPoolExecutor(self._readers) as pool:
            self._fold_all(pool.map(self._read, range(first, end)))

    def _fold_all(self, objects: Iterable[bytes | None]) -> None:
        for data in objects:
            if data is None:
                raise _missing(self._next, key_of(self._next))
            self._fold(self._next, data)

    def _list(self, after: str = "") -> list[StoredObject]:
        return self._patiently(self._store.list, FOLDER, after)

    def _read(self, number: int) -> bytes | None:
        return self._patiently(read_entry, self._store, number)

    def _patiently(self, act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call `act`, and retry after temporary faults of the store. If `retry_for_s` is 0, do not retry."""
        if not self._retry_for_s:
            return act(*args, **more)
        return through_faults(self._retry_for_s)(act, *args, **more)

    def _require_possible(self, number: int) -> None:
        """Raise LedgerFlooded if `number` is above the maximum number of an entry."""
        if number >= ENTRIES_MAX:
            raise self._flooded(f"a ledger can have no more than {ENTRIES_MAX:,} entries")

    def _flooded(self, what: str) -> LedgerFlooded:
        end = f"`spotrun down {quote(self._store.uri)}`"
        return LedgerFlooded(what, hint=f"end the run's instances, which write there, by {end}; then repeat")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _missing(number: int, later: str) -> LedgerDamaged:
    return _damaged(f"entry {number} is missing although {later} exists")


def _displaced(entry: Entry, number: int) -> LedgerDamaged:
    return _damaged(f"the object of entry {number} contains entry {entry.number}")


def _damaged(what: str) -> LedgerDamaged:
    return LedgerDamaged(f"the ledger is damaged: {what}", hint=RESTORE)
