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
        """Return the bytes from `start` on, at most `size` of them."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        """
        Return the objects whose key begins with `prefix` and sorts after `after`, in the order of their keys. Objects
        of others under names that are no keys are left out: no call could read or delete them.
        """

    def folders(self) -> tuple[str, ...]:
        """Return, in order, the first parts of the keys that have several: on a store of runs, their folders."""

    def delete(self, key: str) -> None:
        """Remove an object; do nothing if it is absent."""


def is_key(text: str) -> bool:
    return _SAFE_KEY.fullmatch(text) is not None


def checked_key(key: str) -> str:
    """
    Return `key` if every store takes it for a name below its own folder.

    Raises:
        StoreError: it is not a key.
    """
    if not is_key(key):
        raise StoreError(f"{key!r} is not a key: parts of letters, digits, '.', '_' and '-' between slashes")
    return key


@runtime_checkable
class Sifted(Protocol):
    """A store that reports the names that it leaves out of its lists."""

    def strange_names(self, prefix: str) -> list[str]:
        """Return the names below `prefix` that are no keys: others have put those objects there, and they stay."""


@runtime_checkable
class InPieces(Protocol):
    """A store that yields an object piece by piece while it reads."""

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """
        Yield the first `size_bytes` of an object, or all it has, in order. After an error, the bytes so far may be
        wrong.
        """


@runtime_checkable
class CopiesItself(Protocol):
    """A store that copies objects itself, without sending them through this machine."""

    def copy_from(self, source: Store, key: str) -> bool:
        """
        Write the object `key` of another store under the same key, over what was there. Return False, having done
        nothing, if this store cannot reach that one itself.
        """


class Unsaid(msgspec.Struct, frozen=True):
    """A fact that is unknown: the store does not state it, or this account may not read it."""

    reason: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The facts that a store reports about itself, apart from its objects.

    `expiries` are its rules, in words, that would delete or archive objects below the store's prefix. `versioned`: the
    store keeps overwritten and deleted objects, which cost money; for at most `older_versions_days`, or for an unknown
    time if that is None. `region` is None for a store without regions, `free_bytes` for one without a limit.
    """

    region: str | Unsaid | None
    expiries: tuple[str, ...] | Unsaid
    versioned: bool | Unsaid
    older_versions_days: int | None = None
    free_bytes: int | None = None


@runtime_checkable
class Located(Protocol):
    """A store that is in one or several regions of a cloud."""

    def region(self) -> str | Unsaid:
        """
        Return the region, or why it is unknown.

        Raises:
            StoreError: the store itself cannot be used.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A store that reports facts about itself; no run needs them, only the checks before the first one."""

    def inspect(self) -> StoreFacts:
        """
        Return the facts.

        Raises:
            StoreError: the store itself cannot be used. Facts that it merely does not report are Unsaid.
        """
