"""Code shared by the stores that are reached over HTTP, which are S3 and GCS buckets."""

from __future__ import annotations

import base64
import builtins
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar, NamedTuple

import google_crc32c

from spotrun.address import BucketAddress
from spotrun.errors import ObjectMissing, StoreError, StoreUnavailable
from spotrun.store.port import Store, StoredObject, StoreFacts, checked_key, is_key

CONNECT_S = 10.0
READ_S = 60.0
"""
Maximum system seconds to wait for the next piece of an answer. A store tries each call only once; the caller decides
whether to try again.
"""
NO_STORE = "no-store"
"""
The Cache-Control header of every object. Without this header, a cache between spotrun and the store could return old
versions of an object (protocol 28).
"""
_CHECKED_BYTES = 64 << 10
"""
Number of bytes in each piece from which the checksum is computed. Each piece is copied, because the function for the
checksum accepts only `bytes`. A piece of this size fits into the processor's cache.
"""
FULL = 507
_NEVER_PASSES = (501, FULL)
"""
HTTP statuses that look like temporary faults, but after which a retry does not help: 501 (not implemented), and 507
(full).
"""


def passes(status: int) -> bool:
    """
    Return True if this status means a temporary failure, so the same request may succeed later. For every such
    status except 409, it is unknown whether the store has carried out the request.

    S3 answers 409 if two conditional writes of the same object collide. The write that gets this answer was certainly
    not carried out.
    """
    return status in (408, 409, 425, 429) or (status >= 500 and status not in _NEVER_PASSES)


class Exists(StoreError):
    """A conditional write failed because an object with that name already exists."""


class BeyondTheEnd(StoreError):
    """A read failed because it would begin after the last byte of the object."""


ANSWERS: dict[int, type[StoreError]] = {412: Exists, 416: BeyondTheEnd}
"""Errors for the HTTP statuses that are ordinary answers to a request, not faults."""


class Verbs(NamedTuple):
    put: str
    get: str
    list: str
    delete: str
    copy: str


class BucketStore(ABC):
    """
    A store in a bucket, below a prefix. The key of an object is the part of its name that follows the prefix.

    A subclass sends the requests of one service. Its `_translate` converts the service's errors to those of spotrun.
    Its `_VERBS` contains the names of the service's requests, for messages.

    The service computes the CRC32C of each object that it stores. `put` compares this with the CRC32C of the bytes that
    were sent.
    """

    _VERBS: ClassVar[Verbs]

    def __init__(self, address: BucketAddress) -> None:
        self.uri = str(address)
        self._address = address
        self._root = address.root
        with self._translated("open", ""):
            self._open()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            self._put(key, data, if_absent=True)
        except Exists:
            return False
        return True

    def put(self, key: str, data: bytes | memoryview) -> bool:
        return self._put(key, data)

    def put_status(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def _put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        name, checksum = self._name(key), crc32c(data)
        with self._translated(self._VERBS.put, key):
            computed = self._send(name, data, checksum, if_absent=if_absent)
        if computed not in (None, checksum):
            raise StoreUnavailable(f"the store's checksum for {self.uri}/{key} differs from the one that spotrun sent")
        return computed is not None

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        name = self._name(key)
        last = None if size is None else start + max(size, 1) - 1  # an HTTP range cannot be empty
        try:
            with self._translated(self._VERBS.get, key):
                return self._read(name, start, last)[:size]
        except BeyondTheEnd:
            return b""

    def list(self, prefix: str, after: str = "") -> builtins.list[StoredObject]:
        """
        Return the objects sorted by key. They have to be sorted here, because SeaweedFS lists them folder by folder,
        and returns b/1 before b-1.
        """
        # Some tools mark a folder with an empty object of the folder's name. It is not one of spotrun's objects.
        ours = (stored for stored in self._found(prefix, after) if stored.key > after and is_key(stored.key))
        return sorted(ours, key=lambda stored: stored.key)

    def strange_names(self, prefix: str) -> builtins.list[str]:
        return sorted(stored.key for stored in self._found(prefix) if not is_key(stored.key))

    def _found(self, prefix: str, after: str = "") -> builtins.list[StoredObject]:
        """Return all objects below `prefix`, even those whose names are not valid keys."""
        with self._translated(self._VERBS.list, prefix):
            return [
                StoredObject(key=name.removeprefix(self._root), size_bytes=size_bytes, modified_at=modified_at)
                for name, size_bytes, modified_at in self._objects(self._root + prefix, after and self._root + after)
            ]

    def folders(self) -> tuple[str, ...]:
        with self._translated(self._VERBS.list, ""):
            found = {name.removeprefix(self._root).removesuffix("/") for name in self._folders()}
        return tuple(sorted(filter(is_key, found)))

    def copy_from(self, source: Store, key: str) -> bool:
        """
        Copy an object from another folder of the same bucket. If `source` is any other store, copy nothing and return
        False.
        """
        if not isinstance(source, type(self)) or source._address.bucket != self._address.bucket:
            return False
        with self._translated(self._VERBS.copy, key):
            self._copy(source._name(key), self._name(key))
        return True

    def delete(self, key: str) -> None:
        name = self._name(key)
        with contextlib.suppress(ObjectMissing), self._translated(self._VERBS.delete, key):
            self._remove(name)

    def inspect(self) -> StoreFacts:
        with self._translated("inspection", ""):
            return self._facts()

    def _name(self, key: str) -> str:
        return self._root + checked_key(key)

    @contextlib.contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = self._translate(error, f"{verb} of {self.uri}/{key}")
            if found is None:
                raise
            raise found from error

    @abstractmethod
    def _open(self) -> None:
        """Find the account's credentials, and make a client with them."""

    @abstractmethod
    def _send(self, name: str, data: bytes | memoryview, checksum: str, *, if_absent: bool) -> str | None:
        """
        Write an object. Return the checksum that the service computed, or None if the service reports no checksum.
        """

    @abstractmethod
    def _read(self, name: str, first: int, last: int | None) -> bytes:
        """
        Return the object's bytes from `first` to `last`, both included. If `last` is None, return all bytes from
        `first` on.
        """

    @abstractmethod
    def _objects(self, prefix: str, after: str) -> Iterator[tuple[str, int, datetime]]:
        """
        Yield the name, the size and the time of the last change of each object whose name begins with `prefix`. If
        `after` is given, skip the names before it.
        """

    @abstractmethod
    def _folders(self) -> Iterator[str]:
        """Yield the names of the store's top-level folders, each with its trailing slash."""

    @abstractmethod
    def _copy(self, source: str, name: str) -> None:
        """Copy the bucket's object `source` to the name `name`."""

    @abstractmethod
    def _remove(self, name: str) -> None: ...

    @abstractmethod
    def _facts(self) -> StoreFacts: ...

    @abstractmethod
    def _translate(self, error: Exception, what: str) -> StoreError | None:
        """
        Convert an error of the service to one of spotrun's. Return None if the error does not come from the service.
        """


def settings(*prefixes: str) -> frozenset[tuple[str, str]]:
    """Return the environment variables with these prefixes. They decide which account a service's client uses."""
    return frozenset((name, value) for name, value in os.environ.items() if name.startswith(prefixes))


def crc32c(data: bytes | memoryview) -> str:
    """
    Return the CRC32C of `data` in the form that S3 and GCS use. It protects the bytes only in transit to the store.
    Later, the digests in the manifest of a checkpoint show whether its bytes are still the same.
    """
    checksum = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    view = memoryview(data)
    for start in range(0, len(view), _CHECKED_BYTES):
        checksum.update(bytes(view[start : start + _CHECKED_BYTES]))  # type: ignore[no-untyped-call]
    return base64.b64encode(checksum.digest()).decode()  # type: ignore[no-untyped-call]
