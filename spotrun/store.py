"""
The object store: the only thing that the programs of a run share.

A store is opened on a folder (a prefix); keys are relative to it, with `/` between their parts. What is here is the
port; `spotrun.stores` has a module for each kind of address.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Protocol

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
        StoreError         not allowed, not there, full  -> tell the user
    """

    uri: str

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """
        Create an object, unless there is one of that name.

        Returns:
            True: created by this call. False: something is there, perhaps by an earlier try of this writer.
        """

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object whole, durably, over what was there."""

    def put_hint(self, key: str, data: bytes) -> None:
        """Write an object whole, over what was there; a crash of the machine may lose it."""

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """The bytes from `start` on, `size` of them at most."""

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        """The objects whose key begins with `prefix` and sorts after `after`, in the order of their keys."""

    def folders(self) -> tuple[str, ...]:
        """The first parts, in order, of the keys that have more than one: on a store of runs, their folders."""

    def delete(self, key: str) -> None:
        """Remove an object. One that is absent is removed already."""


def open_store(uri: str) -> Store:
    """
    The store at `uri`: a local folder, made if absent, given as a path or a file:// address.

    Raises:
        StoreError: for any other kind of address; the ledger needs a store that can create only what is absent.
    """
    from spotrun.stores.local import LocalStore

    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalStore(Path(uri))
    if scheme == "file":
        return LocalStore(Path(rest))
    raise StoreError(
        f"{scheme}:// cannot hold a run yet: only local folders can",
        hint="set checkpoint.uri to a folder, for example ~/.spotrun/runs",
    )


def checked_key(key: str) -> str:
    """
    `key`, which no store may take for anything but a name below its own folder.

    Raises:
        StoreError: it is not a key.
    """
    if not _SAFE_KEY.fullmatch(key):
        raise StoreError(f"{key!r} is not a key: parts of letters, digits, '.', '_' and '-' between slashes")
    return key
