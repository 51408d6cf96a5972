"""What the stores behind HTTP have in common."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable

import google_crc32c

from spotrun.errors import StoreError
from spotrun.store.port import StoredObject, is_key

CONNECT_S = 10.0
READ_S = 60.0
"""System time, for each piece of an answer. A call is tried once: its caller knows how long trying again helps."""
NO_STORE = "no-store"
"""Of everything here: a cache between us and the store would show the past (protocol 28)."""
_CHECKED_BYTES = 64 << 10
"""The checksum takes bytes only: so much is copied into the processor's own cache."""
_NEVER_PASSES = (501, 507)
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


class BucketStore(ABC):
    """The three ways to write, by the one in which a service writes."""

    @abstractmethod
    def _put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """
        Whether the service has said that the checksum of what it stored is that of `data`.

        Raises:
            Exists: something was there, `if_absent`.
        """

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


def crc32c(data: bytes | memoryview) -> str:
    """The checksum of what travels, as S3 and GCS both write it. What vouches for a checkpoint is in its manifest."""
    checksum = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    view = memoryview(data)
    for start in range(0, len(view), _CHECKED_BYTES):
        checksum.update(bytes(view[start : start + _CHECKED_BYTES]))  # type: ignore[no-untyped-call]
    return base64.b64encode(checksum.digest()).decode()  # type: ignore[no-untyped-call]


def listed(found: Iterable[StoredObject], after: str) -> list[StoredObject]:
    """
    What a listing told, in the order of keys: SeaweedFS lists folder by folder, where b/1 comes before b-1.

    Some tools mark a folder by an empty object of its name: that is none of ours.
    """
    ours = (stored for stored in found if stored.key > after and not stored.key.endswith("/"))
    return sorted(ours, key=lambda stored: stored.key)


def folders_named(prefixes: Iterable[str], root: str) -> tuple[str, ...]:
    """The folders right below `root`, from the common prefixes that a service tells."""
    folders = sorted({prefix.removeprefix(root).removesuffix("/") for prefix in prefixes})
    return tuple(folder for folder in folders if is_key(folder))
