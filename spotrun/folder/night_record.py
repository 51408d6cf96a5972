"""
Reads and writes the record of a night. A night is a job that a runner in the cloud begins at certain times of day, even
if the user's machine is off. The record contains the job, these times, and the runs that the night has had so far. It
is kept in the store, next to the runs.

    nights/NAME/night.json               the installed night: its job and its times
    nights/NAME/work/SHA256.tar.gz       the work folder of its job
    nights/NAME/begun/00000017.json      the 18th beginning of the night: the date for which it was due, and its run
    nights/NAME/notified/…               notifications about a night that did not begin, as in a run's folder

Each beginning gets the next number. The process that begins the night reads the existing numbers, and then writes an
object under the next number with put-if-absent. If two processes do so at the same time, one succeeds, and the other
finds the first one's run in the record. If a night is due while the run of an earlier date is still in progress, no
second run begins.

Instances are not allowed to read or write this folder, because it is outside the folder of their run. Even an attacker
who can write to this folder cannot change which code is started. A reader that has the pin (night.py) accepts only the
night.json and the work folder that were installed, and skips each numbered object that the night's runner has not
signed.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace

from spotrun.errors import ObjectMissing, RunNotFound, SpotrunError, StoreError
from spotrun.folder import workdir
from spotrun.folder.night import AGAIN, Night, Pin
from spotrun.run.bounds import Count, Moment, OutOfBounds, decode
from spotrun.spec.values import NAME_PATTERN
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist

FOLDER = "nights"
"""Folder of the nights. No run's folder can have this name, because the name of a run's folder ends in a uid."""
BYTES_MAX = 1 << 20
BY_HAND = "by-hand-"
"""Prefix of the name of a night that a person started. The start time follows the prefix."""
DUE_AGAIN = 8
"""
Number of records that are read, the newest first, to find out whether a night has already begun. The cloud may call the
function for the same night a second time, or late, but only one run is allowed to begin.
"""
_BEGUN = re.compile(r"begun/(\d{8})[.]json", re.ASCII)
_NIGHT = "night.json"
SEE_WHO = f"{AGAIN}; then check who is allowed to write to that store"


class NightStrange(StoreError):
    """An object in a night's record differs from what `spotrun night install` stored."""


class BegunNight(msgspec.Struct, frozen=True, kw_only=True):
    """
    A night that began. `run` is the uid of the night's run. `carried` is True if an earlier night began that run, and
    this night only continues it. The night's function signs the record with the key in its pin.
    """

    due: str
    run: str
    at: Moment
    carried: bool = False
    signature: str = ""


class NumberedNight(msgspec.Struct, frozen=True):
    number: Count
    begun: BegunNight

    @property
    def signed_text(self) -> bytes:
        """
        The bytes that are signed. Later versions of spotrun must compute the same bytes, because spotrun may be updated
        while a run lasts.
        """
        begun = self.begun
        facts = (str(self.number), begun.due, begun.run, begun.at.isoformat(), str(begun.carried))
        return "\n".join(("begun", *facts)).encode()


class NightRecord:
    """
    The record of all nights with one name in a store. If the caller passes the night's `pin`, the record accepts only
    the installed night that the pin describes, and only numbered objects that this night's function has signed.

    Raises:
        RunNotFound: no night can have this name.
    """

    def __init__(self, runs_uri: str, name: str, pin: Pin | None = None) -> None:
        if not re.fullmatch(NAME_PATTERN, name, re.ASCII):
            raise RunNotFound(f"{name!r} cannot be the name of a night", hint="see `spotrun night ls`")
        self._runs_uri, self._name = runs_uri.rstrip("/"), name
        self.store: Store = open_store(f"{self._runs_uri}/{FOLDER}/{name}")
        """The store of the nights' folder."""
        self._sha256 = None if pin is None else pin.sha256
        self._signer = None if pin is None else pin.signer
        self.passed_over: tuple[int, ...] = ()
        """
        Numbers of the invalid objects that come after the newest valid record. Set by `newest`.
        """
        self.next_number = 0
        """The first number after the newest valid record that no object has taken. Set by `newest`."""

    @property
    def is_installed(self) -> bool:
        return self._has(_NIGHT)

    def run_uri(self, uid: str) -> str:
        """Return the address of the folder for this night's run with the uid `uid`."""
        return f"{self._runs_uri}/{self._name}-{uid}"

    def install(self, night: Night) -> None:
        """Store the record of a night. Call `upload` first, which stores the work folder."""
        persist(lambda: self.store.put(_NIGHT, night.encoded))

    def upload(self, folder: Path) -> str:
        """Store a work folder for future nights, and return its sha256."""
        return persist(lambda: workdir.upload(self.store, folder))

    def fetch(self, night: Night, folder: Path) -> None:
        """
        Unpack the work folder of a night into `folder`.

        Raises:
            NightStrange: the stored folder is not the one that was uploaded.
        """
        try:
            persist(lambda: workdir.fetch(self.store, night.workdir_sha256, folder))
        except StoreError:
            raise
        except SpotrunError as error:
            what = f"{self.store.uri}/{workdir.key_of(night.workdir_sha256)} is not what was installed"
            raise NightStrange(f"{what}, so no run begins", hint=SEE_WHO) from error

    def read(self) -> Night:
        """
        Return the installed night.

        Raises:
            RunNotFound: no night of this name is installed.
            NightStrange: the record is not the one that was installed, or it names another night.
            StoreError: the stored object is not a night.
        """
        try:
            data = persist(lambda: self.store.get(_NIGHT, 0, BYTES_MAX))
        except ObjectMissing:
            raise RunNotFound(
                f"no night {self._name!r} is installed in {self.store.uri.rpartition('/')[0]}",
                hint="see `spotrun night ls`, or use --store to name another store",
            ) from None
        if self._sha256 not in (None, found := hashlib.sha256(data).hexdigest()):
            what = f"{self.store.uri}/{_NIGHT} is not what was installed (its sha256 is {found[:12]}…)"
            raise NightStrange(f"{what}, so no run begins", hint=SEE_WHO)
        try:
            night = decode(data, Night)
        except OutOfBounds as error:
            raise StoreError(f"{self.store.uri} does not hold a valid night: {error}", hint=AGAIN) from error
        if night.name != self._name:
            what = f"{self.store.uri}/{_NIGHT} is the record of another night, {night.name[:64]!r}"
            raise NightStrange(what, hint=SEE_WHO)
        return night

    def newest(self) -> list[NumberedNight]:
        """
        Return the DUE_AGAIN newest records, oldest first. They suffice to determine whether a night has already begun.
        """
        listed = persist(lambda: self.store.list("begun/"))
        numbers = [int(parts[1]) for each in listed if (parts := _BEGUN.fullmatch(each.key))]
        found = list[NumberedNight]()
        for number in reversed(numbers):
            if len(found) < DUE_AGAIN and (numbered := self.numbered(number)) is not None:
                found.insert(0, numbered)
        newest = found[-1].number if found else -1
        self.passed_over = tuple(number for number in numbers if number > newest)
        taken = {*self.passed_over}
        self.next_number = next(number for number in count(newest + 1) if number not in taken)
        return found

    def later(self, than: NumberedNight) -> NumberedNight | None:
        """Return the newest record if it is newer than `than`; None otherwise."""
        if not self._has(_key(than.number + 1)):
            return None
        found = self.newest()
        return found[-1] if found and found[-1].number > than.number else None

    def add(self, numbered: NumberedNight) -> bool:
        """
        Write a record. Return False if its number is already used, either by another process or by an earlier call in
        this process.
        """
        signature = "" if self._signer is None else self._signer.sign(numbered.signed_text)
        data = msgspec.json.encode(replace(numbered.begun, signature=signature))
        return persist(lambda: self.store.put_if_absent(_key(numbered.number), data))

    def _has(self, key: str) -> bool:
        try:
            persist(lambda: self.store.get(key, 0, 1))
        except ObjectMissing:
            return False
        return True

    def numbered(self, number: int) -> NumberedNight | None:
        """Return the record with this number; None if it is missing or invalid."""
        try:
            found = NumberedNight(
                number, decode(persist(lambda: self.store.get(_key(number), 0, BYTES_MAX)), BegunNight)
            )
        except (ObjectMissing, OutOfBounds):
            return None
        is_ours = self._signer is None or self._signer.has_signed(found.begun.signature, found.signed_text)
        return found if is_ours else None

    def remove(self) -> None:
        """
        Delete the record of this night. night.json is deleted first: without it the night cannot begin, even if the
        deletion is interrupted after that.
        """
        persist(lambda: self.store.delete(_NIGHT))
        for each in persist(lambda: self.store.list("")):
            persist(partial(self.store.delete, each.key))


def names(runs_uri: str) -> list[str]:
    """Return the names of the installed nights whose records are in the store at `runs_uri`."""
    store = open_store(runs_uri)
    listed = persist(lambda: store.list(f"{FOLDER}/"))
    found = {parts[1] for each in listed if (parts := each.key.split("/"))[2:] == [_NIGHT]}
    return sorted(name for name in found if re.fullmatch(NAME_PATTERN, name, re.ASCII))


def _key(number: int) -> str:
    return f"begun/{number:08d}.json"
