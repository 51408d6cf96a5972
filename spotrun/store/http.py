"""A store in a bucket that is reached by HTTP: all of it but what differs between services."""

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
"""System time, for each piece of an answer. A call is tried once: its caller knows how long trying again helps."""
NO_STORE = "no-store"
"""For every object: a cache between us and the store would show the past (protocol 28)."""
_CHECKED_BYTES = 64 << 10
"""The checksum takes bytes only: this much is copied at a time, which fits the processor's cache."""
FULL = 507
_NEVER_PASSES = (501, FULL)
"""Not implemented, and full."""


def passes(status: int) -> bool:
    """
    Whether the same request may be answered otherwise in a while; until then nothing is known of its effect.

    409 is among them: S3 says so of a conditional write that met another one, and has stored nothing of it.
    """
    return status in (408, 409, 425, 429) or (status >= 500 and status not in _NEVER_PASSES)


class Exists(StoreError):
    """A conditional write found an object of that name."""


class BeyondTheEnd(StoreError):
    """A read begins where the object has ended."""


ANSWERS: dict[int, type[StoreError]] = {412: Exists, 416: BeyondTheEnd}
"""What a status means that is an answer rather than a fault."""


class Verbs(NamedTuple):
    put: str
    get: str
    list: str
    delete: str
    copy: str


class BucketStore(ABC):
    """
    A prefix of a bucket; keys are the names of objects below it. A subclass speaks one service's dialect: it raises the
    service's own errors, which `_translate` makes into ours. `_VERBS` is how messages call what was asked.

    The service computes the CRC32C of each object that is written, and it is compared here with that of what was sent.
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
            raise StoreUnavailable(f"{self.uri}/{key} was stored with another checksum than it was sent with")
        return computed is not None

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        name = self._name(key)
        last = None if size is None else start + max(size, 1) - 1  # a range cannot be empty
        try:
            with self._translated(self._VERBS.get, key):
                return self._read(name, start, last)[:size]
        except BeyondTheEnd:
            return b""

    def list(self, prefix: str, after: str = "") -> builtins.list[StoredObject]:
        """In the order of keys: SeaweedFS lists folder by folder, where b/1 comes before b-1."""
        # Some tools mark a folder by an empty object of its name: that is not ours, and no key.
        ours = (stored for stored in self._found(prefix, after) if stored.key > after and is_key(stored.key))
        return sorted(ours, key=lambda stored: stored.key)

    def strange_names(self, prefix: str) -> builtins.list[str]:
        return sorted(stored.key for stored in self._found(prefix) if not is_key(stored.key))

    def _found(self, prefix: str, after: str = "") -> builtins.list[StoredObject]:
        """Whatever is there, key or not."""
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
        """From another folder of the same bucket."""
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
        """Find the account, and a client for it."""

    @abstractmethod
    def _send(self, name: str, data: bytes | memoryview, checksum: str, *, if_absent: bool) -> str | None:
        """Write an object; the checksum that the service has computed, if it says so."""

    @abstractmethod
    def _read(self, name: str, first: int, last: int | None) -> bytes:
        """Its bytes from `first` to `last`, both included."""

    @abstractmethod
    def _objects(self, prefix: str, after: str) -> Iterator[tuple[str, int, datetime]]:
        """Name, size and time of those whose name begins with `prefix`, from the name `after` on if there is one."""

    @abstractmethod
    def _folders(self) -> Iterator[str]:
        """The common prefixes right below the root, up to the next slash."""

    @abstractmethod
    def _copy(self, source: str, name: str) -> None:
        """An object of the bucket, under another name too."""

    @abstractmethod
    def _remove(self, name: str) -> None: ...

    @abstractmethod
    def _facts(self) -> StoreFacts: ...

    @abstractmethod
    def _translate(self, error: Exception, what: str) -> StoreError | None:
        """What the caller is told; None if the error is none of the service's."""


def settings(*prefixes: str) -> frozenset[tuple[str, str]]:
    """The variables of the environment by which a service's tools find their account."""
    return frozenset((name, value) for name, value in os.environ.items() if name.startswith(prefixes))


def crc32c(data: bytes | memoryview) -> str:
    """The checksum of what travels, as S3 and GCS both write it. What vouches for a checkpoint is in its manifest."""
    checksum = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    view = memoryview(data)
    for start in range(0, len(view), _CHECKED_BYTES):
        checksum.update(bytes(view[start : start + _CHECKED_BYTES]))  # type: ignore[no-untyped-call]
    return base64.b64encode(checksum.digest()).decode()  # type: ignore[no-untyped-call]
