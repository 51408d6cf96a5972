"""
The object store: the only thing that the programs of a run share.

A store is opened on a folder (a prefix); keys are relative to it, with `/` between their parts. `opening.py`
chooses the driver for an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from spotrun.errors import StoreError

_SAFE_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size_bytes: int
    modified_at: datetime


class Store(Protocol):
    """
    Named bytes that many processes on many machines read and write.

    A write that returned is durable and whole; one that raised may or may not have happened. Reads see every write
    that returned before they began. Keys are made of `[A-Za-z0-9._-]`, in parts that do not begin with a dot.

    Every failure leaves a store as a StoreError:

        ObjectMissing      no object of that name        -> an answer, not a fault
        StoreUnavailable   a passing fault, or unknown   -> retry until a deadline
        WritesRefused      full, or read-only            -> tell the user at once, and wait
        StoreError         not allowed, not there        -> tell the user
    """

    uri: str

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """
        Create an object, unless there is one of that name.

        Returns:
            True: created by this call. False: something is there, perhaps by an earlier try of this writer.
        """

    def put(self, key: str, data: bytes | memoryview) -> bool:
        """
        Write an object whole, durably, over what was there.

        Returns:
            True: the store has computed a checksum of all that it stored, and it is that of `data`. False: it computes
            none; only reading back tells what is there.
        """

    def put_status(self, key: str, data: bytes) -> None:
        """Write an object whole, over what was there; a crash of the machine may lose it."""

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """The bytes from `start` on, `size` of them at most."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        """
        The objects whose key begins with `prefix` and sorts after `after`, in the order of their keys. What others have
        put there under a name that is no key is left out: nobody could read or delete it.
        """

    def folders(self) -> tuple[str, ...]:
        """The first parts, in order, of the keys that have more than one: on a store of runs, their folders."""

    def delete(self, key: str) -> None:
        """Remove an object. One that is absent is removed already."""


def is_key(text: str) -> bool:
    return _SAFE_KEY.fullmatch(text) is not None


def checked_key(key: str) -> str:
    """
    `key`, which no store may take for anything but a name below its own folder.

    Raises:
        StoreError: it is not a key.
    """
    if not is_key(key):
        raise StoreError(f"{key!r} is not a key: parts of letters, digits, '.', '_' and '-' between slashes")
    return key


@runtime_checkable
class Sifted(Protocol):
    """A store that tells what it leaves out of its lists."""

    def strange_names(self, prefix: str) -> list[str]:
        """What is there below `prefix` under names that are no keys: others have put it there, and it stays."""


@runtime_checkable
class InPieces(Protocol):
    """A store that hands on what it reads while it reads."""

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """
        The first `size_bytes` of an object, or all it has, in order. What has come by the time of an error may be
        anything.
        """


@runtime_checkable
class CopiesItself(Protocol):
    """A store that copies objects by itself, so that they do not come here."""

    def copy_from(self, source: Store, key: str) -> bool:
        """
        Write the object `key` of another store under the same key, over what was there. False: this store cannot reach
        that one by itself, and nothing happened.
        """


class Unsaid(msgspec.Struct, frozen=True):
    """The store does not say, or this account may not ask."""

    reason: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a store says of itself, apart from its objects.

    `expiries` are its rules, in words, that would delete or put out of reach what lies below the store's prefix.
    `versioned`: what is overwritten or deleted is kept, and paid for; for `older_versions_days` at most, or for an
    unknown time if that is None. `region` is None where there are none,
    `free_bytes` where space has no end.
    """

    region: str | Unsaid | None
    expiries: tuple[str, ...] | Unsaid
    versioned: bool | Unsaid
    older_versions_days: int | None = None
    free_bytes: int | None = None


@runtime_checkable
class Located(Protocol):
    """A store that is in some region of a cloud, or in several."""

    def region(self) -> str | Unsaid:
        """
        Raises:
            StoreError: the store itself cannot be used.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A store that can be asked about itself; never needed for a run, only before the first one."""

    def inspect(self) -> StoreFacts:
        """
        Raises:
            StoreError: the store itself cannot be used. What it merely does not tell is Unsaid.
        """
