"""
The object store: the only thing that all programs of a run share.

A store is opened on a folder or on a bucket's prefix. Keys are relative to this folder or prefix, with `/` between
their parts. `opening.py` chooses the driver for an address.
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

    When a write returns, the object is durable and complete. If it raises an error, the object may or may not have been
    written. A read sees every write that returned before the read began. Each part of a key consists of
    `[A-Za-z0-9._-]` and does not begin with a dot.

    Every failure of a store is raised as a StoreError:

        ObjectMissing      no object with that key       -> an answer, not a fault
        StoreUnavailable   temporary fault, or unknown   -> retry until a deadline
        WritesRefused      full, or read-only            -> tell the user immediately, and wait
        StoreError         no permission, no such bucket -> tell the user
    """

    uri: str

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """
        Create an object if no object with this key exists.

        Returns:
            True: this call created the object.
            False: an object with this key already exists, perhaps from an earlier try of the same writer.
        """

    def put(self, key: str, data: bytes | memoryview) -> bool:
        """
        Write a complete object durably. Replace any object that has this key.

        Returns:
            True: the store computed a checksum of everything that it stored, and it matches `data`.
            False: the store computes no checksum; only reading the object back shows what was stored.
        """

    def put_status(self, key: str, data: bytes) -> None:
        """
        Write a complete object, and replace any object that has this key. The write is not durable: if the machine
        crashes, the new object may be lost.
        """

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes from byte `start` on, at most `size` bytes."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        """
        Return the objects whose keys begin with `prefix` and sort after `after`, in the order of their keys. Objects
        whose names are not valid keys are left out: other programs wrote them, and a Store cannot read or delete them.
        """

    def folders(self) -> tuple[str, ...]:
        """Return the folders directly below the top, in order. In a store of runs, these are the runs' folders."""

    def delete(self, key: str) -> None:
        """Delete the object with this key, if it exists."""


def is_key(text: str) -> bool:
    return _SAFE_KEY.fullmatch(text) is not None


def checked_key(key: str) -> str:
    """
    Return `key` unchanged if every store accepts it as the name of an object.

    Raises:
        StoreError: `key` is not a valid key.
    """
    if not is_key(key):
        raise StoreError(
            f"{key!r} is not a key: a key has parts of letters, digits, '.', '_' and '-', separated by slashes"
        )
    return key


@runtime_checkable
class ReportsForeignNames(Protocol):
    """A store that can report the names of objects that its `list` leaves out."""

    def strange_names(self, prefix: str) -> list[str]:
        """
        Return the names below `prefix` that are not keys. Other programs wrote these objects; spotrun never deletes
        them.
        """


@runtime_checkable
class InPieces(Protocol):
    """A store that can yield an object piece by piece while the download continues."""

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """
        Yield the first `size_bytes` of an object in order, or the whole object if it is shorter. If this raises an
        error, the pieces yielded before may be wrong.
        """


@runtime_checkable
class CopiesItself(Protocol):
    """A store that can copy an object from another store itself, without sending the bytes through this machine."""

    def copy_from(self, source: Store, key: str) -> bool:
        """
        Copy the object `key` of the store `source` to the same key in this store. Replace any object that has this key.
        If this store cannot read `source` directly, change nothing and return False.
        """


class UnknownFact(msgspec.Struct, frozen=True):
    """
    A fact that is unknown because the store does not report it, or because this account is not allowed to read it.
    """

    reason: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The facts that a store reports about itself.

    `expiries` describes the store's own rules that would delete or archive objects below its prefix. `region` is None
    if the store has no regions. `free_bytes` is None if its space has no limit.

    `versioned` is True if the store keeps old versions of objects that were overwritten or deleted. Old versions cost
    money. `older_versions_days` is the age at which a rule of the store deletes all old versions; None if no such rule
    is known.

    `key_readers` are those who can read the keys of runs besides runners, as far as the store's own policy says; None
    if the store has no policy.
    """

    region: str | UnknownFact | None
    expiries: tuple[str, ...] | UnknownFact
    versioned: bool | UnknownFact
    older_versions_days: int | None = None
    free_bytes: int | None = None
    key_readers: tuple[str, ...] | UnknownFact | None = None


@runtime_checkable
class Located(Protocol):
    """A store in one or several regions of a cloud."""

    def region(self) -> str | UnknownFact:
        """
        Return the region, or the reason why it is unknown.

        Raises:
            StoreError: the store itself cannot be used.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A store that reports facts about itself. Only the checks before a run use these facts."""

    def inspect(self) -> StoreFacts:
        """
        Return the facts. A fact that cannot be read is an UnknownFact.

        Raises:
            StoreError: the store itself cannot be used.
        """
