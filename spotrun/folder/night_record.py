"""
The nights of a job that need no machine of the user: what is trained, when, and which run each night has become.

    nights/NAME/night.json               what is installed
    nights/NAME/work/SHA256.tar.gz       its work folder
    nights/NAME/begun/00000017.json      the 18th night that began: when it was due, and its run
    nights/NAME/notified/…               who was told of a night that did not begin, as in the folder of a run

A night is begun by the next number, with put-if-absent, and only by a process that has read the numbers before it. So
of two processes that begin a night at once one does, and the other finds the run in its record; and a night that is
due while the run of the last one goes on gets no second run. The folder lies beside the runs of the store, so no
instance may read or write it.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spotrun.errors import ObjectMissing, RunNotFound, StoreError
from spotrun.folder import workdir
from spotrun.run.bounds import Count, Moment, OutOfBounds, decode
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist

FOLDER = "nights"
"""No run's folder has this name: each ends in a uid."""
BYTES_MAX = 1 << 20
BY_HAND = "by-hand-"
"""What is due because a person asked for it is called by this and the moment."""
DUE_AGAIN = 8
"""So many of the newest records are searched for a night that is due again: its call came twice, or late."""
_LATE = timedelta(hours=6)
"""Calls for a night come up to two hours after its time, and clocks in summer differ by one."""
_BEGUN = re.compile(r"begun/(\d{8})[.]json", re.ASCII)
_NIGHT = "night.json"
T = TypeVar("T")


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job that is trained `at` a time of day of a time `zone` (HH:MM), on `days` (mon, tue, …). `spec` is as the job is
    launched, but for its work folder. `winter_offset_s` is how far the zone's clock is ahead of UTC without summer
    time. `region` of `cloud` has what calls the runner, which may read the addresses at `webhooks`.
    """

    name: str
    spec: dict[str, Any]
    workdir_sha256: str
    at: str
    zone: str
    days: tuple[str, ...]
    winter_offset_s: int
    cloud: str
    region: str
    installed_at: Moment
    spotrun: str
    webhooks: tuple[str, ...] = ()

    def due(self, called_at: datetime) -> str:
        """
        The night that a call is for, by the date of its evening. All calls for a night have the same, those that come
        twice or late too, and whatever became of the clock in that night.
        """
        hours, minutes = (int(part) for part in self.at.split(":"))
        local = called_at + timedelta(seconds=self.winter_offset_s)
        found: date = (local - timedelta(hours=hours, minutes=minutes) + _LATE).date()
        return found.isoformat()


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A night that began: its run has this uid. One that is `carried` on was begun by an earlier night."""

    due: str
    run: str
    at: Moment
    carried: bool = False


class Numbered(msgspec.Struct, frozen=True):
    """A record and its number."""

    number: Count
    begun: Begun


class NightRecord:
    """The nights of one name in a store of runs."""

    def __init__(self, runs_uri: str, name: str) -> None:
        self.store: Store = open_store(f"{runs_uri.rstrip('/')}/{FOLDER}/{name}")
        """Its folder."""
        self._name = name

    def install(self, night: Night) -> None:
        """Its work folder is there already: see `upload`."""
        persist(lambda: self.store.put(_NIGHT, msgspec.json.encode(night)))

    def known(self) -> Night | None:
        """What is installed, if that can be read."""
        try:
            return self.read()
        except (RunNotFound, StoreError):
            return None

    def put_back(self, night: Night | None) -> None:
        """What was `known` before is installed again."""
        if night is None:
            self.remove()
        else:
            self.install(night)

    def upload(self, folder: Path) -> str:
        """Keep a work folder for the nights to come; its sha256."""
        return persist(lambda: workdir.upload(self.store, folder))

    def fetch(self, night: Night, folder: Path) -> None:
        persist(lambda: workdir.fetch(self.store, night.workdir_sha256, folder))

    def read(self) -> Night:
        """
        Raises:
            RunNotFound: none of this name is installed.
            StoreError: what is stored is no night.
        """
        try:
            data = persist(lambda: self.store.get(_NIGHT, 0, BYTES_MAX))
        except ObjectMissing:
            raise RunNotFound(
                f"no night {self._name!r} is installed in {self.store.uri.rpartition('/')[0]}",
                hint="see `spotrun night ls`, or name another store by --store",
            ) from None
        return self._decoded(data, Night)

    def newest(self) -> list[Numbered]:
        """The newest records, the newest last; at most as many as are searched for a night that is due again."""
        listed = persist(lambda: self.store.list("begun/"))
        numbers = [int(found[1]) for each in listed if (found := _BEGUN.fullmatch(each.key))]
        records = (self.numbered(number) for number in numbers[-DUE_AGAIN:])
        return [each for each in records if each is not None]

    def numbered(self, number: int) -> Numbered | None:
        """The record of this number, if there is one."""
        try:
            data = persist(lambda: self.store.get(_key(number), 0, BYTES_MAX))
        except ObjectMissing:
            return None
        return Numbered(number, self._decoded(data, Begun))

    def add(self, numbered: Numbered) -> bool:
        """False: another process was first with that number, or an earlier try of this one."""
        data = msgspec.json.encode(numbered.begun)
        return persist(lambda: self.store.put_if_absent(_key(numbered.number), data))

    def remove(self) -> None:
        """Forget what is installed first, so that what is left is no night any more."""
        persist(lambda: self.store.delete(_NIGHT))
        for each in persist(lambda: self.store.list("")):
            persist(partial(self.store.delete, each.key))

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return decode(data, kind)
        except OutOfBounds as error:
            raise StoreError(
                f"{self.store.uri} holds what is no night: {error}", hint="install it anew: spotrun night install"
            ) from error


def names(runs_uri: str) -> list[str]:
    """Of the nights that are installed in a store of runs."""
    store = open_store(runs_uri)
    listed = persist(lambda: store.list(f"{FOLDER}/"))
    return sorted({parts[1] for each in listed if (parts := each.key.split("/"))[2:] == [_NIGHT]})


def _key(number: int) -> str:
    return f"begun/{number:08d}.json"
