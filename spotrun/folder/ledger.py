"""
The ledger of a run: numbered entries that are created once and never changed.

An append is compare-and-swap on the whole history: number n is proposed only from a fold of all before it, with
put-if-absent. Whatever the store answers but success means *unknown*; reading number n back decides.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from spotrun.clock import Clock
from spotrun.errors import LedgerDamaged, ObjectMissing, SpotrunError, StoreUnavailable
from spotrun.run import fold
from spotrun.run.events import ENTRY_SIZE_MAX, RESTORE, AnyEvent, Entry, decode_entry, encode_entry, is_whole, kind
from spotrun.run.state import RunState
from spotrun.store.port import Store, StoredObject
from spotrun.store.retrying import through_faults

FOLDER = "ledger/"
RETRY_FOR_S = 60.0
"""How long a passing fault of the store is retried before it is the caller's. System time."""
READERS = 8
READS_MAX = 5
"""Of an entry that comes otherwise each time."""

Decide = Callable[[RunState], AnyEvent | None]
P = ParamSpec("P")
T = TypeVar("T")


class EntryRefused(SpotrunError):
    """The event would be void: somebody else has changed the run since it was thought of."""


def key_of(number: int) -> str:
    return f"{FOLDER}{number:08d}.json"


def read_entry(store: Store, number: int) -> bytes | None:
    """
    What stands under a number, or None.

    Bytes that no writer sealed are read again until they come twice the same: what changes on the way comes otherwise
    each time. No more of them are read than an entry can have, since nobody knows who put them there.
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


class Ledger:
    """
    One writer's view of a run's ledger: the prefix it has read, and the fold of it.

    Safe to share between threads. `writer` is for people ("agent:17", "runner:host:4711"); no rule looks at it. A cold
    start reads `readers` entries at a time.
    """

    def __init__(
        self,
        store: Store,
        run_uid: str,
        writer: str,
        clock: Clock,
        retry_for_s: float = RETRY_FOR_S,
        readers: int = READERS,
    ) -> None:
        self._store = store
        self._uid = run_uid
        self._writer = writer
        self._clock = clock
        self._retry_for_s = retry_for_s
        self._readers = readers
        self._lock = threading.RLock()
        self._entries: list[Entry] = []
        self._state = RunState()

    @property
    def state(self) -> RunState:
        """The fold of what has been read so far; `refresh` reads on."""
        return self._state

    @property
    def entries(self) -> list[Entry]:
        """The well-formed entries read so far, void ones included."""
        return list(self._entries)

    def refresh(self) -> RunState:
        """
        Read on to the end, and fold.

        Raises:
            LedgerDamaged: an entry is missing below one that is there, or is not what was written.
            StoreUnavailable: the store could not be read for a minute; nothing was learned.
        """
        with self._lock:
            if self._state.next_number == 0:
                self._read_all()
            while (data := self._read(self._state.next_number)) is not None:
                self._fold(self._state.next_number, data)
            return self._state

    def append(self, decide: Decide) -> Entry | None:
        """
        Write the event that `decide` makes of the newest state, or nothing where it returns None.

        `decide` is asked again after each entry that another writer got in before. It must not append by itself.

        Raises:
            EntryRefused: the event would be void on the newest state.
            LedgerDamaged, StoreUnavailable: as in `refresh`; whether it was written is then unknown.
        """
        with self._lock:
            while True:
                event = decide(self.refresh())
                if event is None:
                    return None
                entry = self._entry(event)
                if self._propose(entry):
                    return entry

    def _entry(self, event: AnyEvent) -> Entry:
        entry = Entry(
            number=self._state.next_number,
            run=self._uid,
            nonce=secrets.token_hex(8),
            at=self._clock.now(),
            writer=self._writer,
            event=event,
        )
        reason = fold.refusal(self._state, entry)
        if reason is not None:
            raise EntryRefused(f"{kind(event)} was not written: {reason}", hint="see `spotrun events RUN`")
        return entry

    def _propose(self, entry: Entry) -> bool:
        """True when the entry now stands under its number; False when another does, which is then folded."""
        data = encode_entry(entry)
        if len(data) > ENTRY_SIZE_MAX:
            raise SpotrunError(f"{kind(entry.event)} is {len(data):,} bytes; an entry may have {ENTRY_SIZE_MAX:,}")
        self._refuse_gap()
        stored = self._patiently(self._settle, entry.number, data)
        self._fold(entry.number, stored)
        settled = decode_entry(stored)
        return settled is not None and settled.nonce == entry.nonce

    def _settle(self, number: int, data: bytes) -> bytes:
        """What stands under `number` after we tried to put `data` there, whether or not the answer was lost."""
        try:
            if self._store.put_if_absent(key_of(number), data):
                return data
        except StoreUnavailable:
            pass  # unknown, as any answer but success is: reading back decides
        stored = read_entry(self._store, number)
        if stored is None:
            raise StoreUnavailable(f"ledger entry {number} could not be written")
        return stored

    def _refuse_gap(self) -> None:
        number = self._state.next_number
        later = self._list(after=key_of(number))
        if later and self._read(number) is None:
            raise _missing(number, later[0].key)

    def _fold(self, number: int, data: bytes) -> None:
        if not is_whole(data):
            raise _damaged(f"entry {number} does not match its own checksum")
        entry = decode_entry(data)
        if entry is None:
            self._state = fold.apply_malformed(self._state, number)
            return
        if entry.number != number:
            raise _damaged(f"entry {entry.number} is where entry {number} should be")
        self._entries.append(entry)
        self._state = fold.apply(self._state, entry)

    def _read_all(self) -> None:
        """A cold start: one listing, then the entries in parallel."""
        keys = [stored.key for stored in self._list()]
        whole = next((number for number, key in enumerate(keys) if key != key_of(number)), len(keys))
        # A listing that writers overtook may show n + 1 without n; only what cannot be read either is missing.
        if whole < len(keys) and self._read(whole) is None:
            raise _missing(whole, keys[whole])
        if self._readers == 1:
            self._fold_all(map(self._read, range(whole)))
            return
        with ThreadPoolExecutor(self._readers) as pool:
            self._fold_all(pool.map(self._read, range(whole)))

    def _fold_all(self, objects: Iterable[bytes | None]) -> None:
        for number, data in enumerate(objects):
            if data is None:
                raise _missing(number, key_of(number))
            self._fold(number, data)

    def _list(self, after: str = "") -> list[StoredObject]:
        return self._patiently(self._store.list, FOLDER, after)

    def _read(self, number: int) -> bytes | None:
        return self._patiently(read_entry, self._store, number)

    def _patiently(self, act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Through the passing faults of the store; where those are the caller's at once, by a plain call."""
        if not self._retry_for_s:
            return act(*args, **more)
        return through_faults(self._retry_for_s)(act, *args, **more)


def _missing(number: int, later: str) -> LedgerDamaged:
    return _damaged(f"entry {number} is missing although {later} is there")


def _damaged(what: str) -> LedgerDamaged:
    return LedgerDamaged(f"the ledger is damaged: {what}", hint=RESTORE)
