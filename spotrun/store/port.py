"""
The object store: the only thing that all programs of a run share.

A store is opened on a folder (a prefix). Keys are relative to that folder, with `/` between their parts. `opening.py`
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

    A write that returned is durable and whole; a write that raised may have happened or not. Reads see every write that
    returned before they began. Keys are made of `[A-Za-z0-9._-]`, in parts that do not begin with a dot.

    Every failure of a store is raised as a StoreError:

        ObjectMissing      no object of that name        -> an answer, not a fault
        StoreUnavailable   a passing fault, or unknown   -> retry until a deadline
        WritesRefused      full, or read-only            -> tell the user immediately, and wait
        StoreError         not allowed, not there        -> tell the user
    """

    uri: str

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """
        Create an object, unless one of that name exists.

        Returns:
            True: this call created the object.
            False: an object of that name exists already, perhaps from an earlier try of this writer.
        """

    def put(self, key: str, data: bytes | memoryview) -> bool:
        """
        Write an object whole and durably; replace any object of that name.

        Returns:
            True: the store computed a checksum of everything that it stored, and it matches `data`.
            False: the store computes no checksum; only reading the object back shows what was stored.
        """

    def put_status(self, key: str, data: bytes) -> None:
        """Write an object whole, and replace any of that name. If the machine crashes, the new object may be lost."""

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return at most `size` bytes, from byte `start`."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        """
        Return the objects whose key begins with `prefix` and sorts after `after`, in the order of their keys. Objects
        whose names are not keys are left out: other programs wrote them, and no call here could read or delete them.
        """

    def folders(self) -> tuple[str, ...]:
        """Return, in order, the first parts of all keys with several parts: in a store of runs, the runs' folders."""

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""


def is_key(text: str) -> bool:
    return _SAFE_KEY.fullmatch(text) is not None


def checked_key(key: str) -> str:
    """
    Return `key` unchanged if every store accepts it as a name below its own folder.

    Raises:
        StoreError: `key` is not a valid key.
    """
    if not is_key(key):
        raise StoreError(f"{key!r} is not a key: parts of letters, digits, '.', '_' and '-' between slashes")
    return key


@runtime_checkable
class ReportsForeignNames(Protocol):
    """A store that can report the names that its lists leave out."""

    def strange_names(self, prefix: str) -> list[str]:
        """Return the names below `prefix` that are not keys, from other programs. They are never deleted."""


@runtime_checkable
class InPieces(Protocol):
    """A store that yields an object piece by piece while it reads."""

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """
        Yield the first `size_bytes` of an object in order, or the whole object if it is shorter. After an error, the
        bytes so far may be wrong.
        """


@runtime_checkable
class CopiesItself(Protocol):
    """A store that copies objects itself, without sending them through this machine."""

    def copy_from(self, source: Store, key: str) -> bool:
        """
        Copy the object `key` of another store to the same key here, and replace any object of that name. Return False,
        and change nothing, if this store cannot read the other store directly.
        """


class UnknownFact(msgspec.Struct, frozen=True):
    """A fact that is unknown, because the store does not report it, or this account may not read it."""

    reason: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The facts that a store reports about itself, apart from its objects.

    `expiries` describes the store's rules that would delete or archive objects below its prefix. If `versioned`, the
    store keeps overwritten and deleted objects, which cost money: for at most `older_versions_days`, or for an unknown
    time if that is None. `region` is None for a store without regions, and `free_bytes` for a store without a limit.
    """

    region: str | UnknownFact | None
    expiries: tuple[str, ...] | UnknownFact
    versioned: bool | UnknownFact
    older_versions_days: int | None = None
    free_bytes: int | None = None


@runtime_checkable
class Located(Protocol):
    """A store that is in one or several regions of a cloud."""

    def region(self) -> str | UnknownFact:
        """
        Return the region, or the reason why it is unknown.

        Raises:
            StoreError: the store itself cannot be used.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A store that reports facts about itself. Only the checks before a run need them."""

    def inspect(self) -> StoreFacts:
        """
        Return the facts. A fact that the store does not report is Unsaid.

        Raises:
            StoreError: the store itself cannot be used.
        """
