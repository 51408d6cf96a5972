"""
A prefix of a Google Cloud Storage bucket as an object store; `STORAGE_EMULATOR_HOST` names another server than
Google's.

Everything goes through google-cloud-storage: it alone has the condition *generation 0*, which means that there is no
object of the name, and it compares CRC32C both ways.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption

from spotrun.address import BucketAddress
from spotrun.errors import ObjectMissing, StoreError, StoreUnavailable
from spotrun.store.http import (
    CONNECT_S,
    NO_STORE,
    READ_S,
    BeyondTheEnd,
    BucketStore,
    Exists,
    crc32c,
    folders_named,
    listed,
    passes,
)
from spotrun.store.lifecycle import gcs_expiries
from spotrun.store.port import StoredObject, StoreFacts, Unsaid, checked_key

_TIMEOUT = (CONNECT_S, READ_S)
_SEND_TIMEOUT = (READ_S, READ_S)
"""A body must have left within the time-out of its connection (urllib3 sends it before the other one begins)."""
_ABSENT = 0
_PASSING = (OSError, DataCorruption, urllib3.exceptions.HTTPError, ValueError, KeyError)
"""urllib3's own errors come through where a download breaks off; the last two are of an answer that was damaged."""

_LOG_IN = "log in by `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_HINTS = {
    401: _LOG_IN,
    403: "allow storage.objects.get, list, create and delete on the bucket (role Storage Object User)",
    404: "make the bucket (`gcloud storage buckets create`), or mend checkpoint.uri",
    507: "make space in the store",
}


class GcsStore(BucketStore):
    """
    Keys are the names of objects below the prefix.

    CRC32C is compared on each write, with what GCS says of the object that it stored.
    """

    def __init__(self, address: BucketAddress) -> None:
        self.uri = str(address)
        self._root = address.root
        with self._translated("open", ""):
            self._client = _client(os.getpid(), _settings())
            self._bucket = self._client.bucket(address.bucket)

    def _put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        blob, data = self._blob(key), bytes(data)
        blob.cache_control = NO_STORE
        with self._translated("upload", key):
            blob.upload_from_string(
                data,
                content_type="application/octet-stream",
                checksum="crc32c",
                timeout=_SEND_TIMEOUT,
                retry=None,
                if_generation_match=_ABSENT if if_absent else None,
            )
        if blob.crc32c is None:
            return False
        if blob.crc32c != crc32c(data):
            raise StoreUnavailable(f"{self.uri}/{key} was stored with another checksum than it was sent with")
        return True

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        blob = self._blob(key)
        end = None if size is None else start + max(size, 1) - 1
        try:
            with self._translated("download", key):
                data: bytes = blob.download_as_bytes(
                    start=start or None, end=end, timeout=_TIMEOUT, retry=None, single_shot_download=True
                )
                return data[:size]
        except BeyondTheEnd:
            return b""

    def list(self, prefix: str, after: str = "") -> builtins.list[StoredObject]:
        start = {"start_offset": self._root + after} if after else {}
        with self._translated("list", prefix):
            found = [self._stored(blob) for blob in self._blobs(prefix=self._root + prefix, **start)]
        return listed(found, after)

    def folders(self) -> tuple[str, ...]:
        with self._translated("list", ""):
            pages = self._blobs(prefix=self._root, delimiter="/").pages
            names = [name for page in pages for name in page.prefixes]
        return folders_named(names, self._root)

    def delete(self, key: str) -> None:
        blob = self._blob(key)
        with contextlib.suppress(ObjectMissing), self._translated("delete", key):
            blob.delete(timeout=_TIMEOUT, retry=None)

    def inspect(self) -> StoreFacts:
        """Needs storage.buckets.get, which the roles for objects do not have."""
        with self._translated("inspection", ""):
            try:
                self._bucket.reload(timeout=_TIMEOUT, retry=None)
            except api.Forbidden:
                unsaid = Unsaid("storage.buckets.get is not allowed")
                return StoreFacts(region=unsaid, versioned=unsaid, expiries=unsaid)
        return StoreFacts(
            region=str(self._bucket.location).lower(),
            versioned=bool(self._bucket.versioning_enabled),
            expiries=gcs_expiries(self._bucket.lifecycle_rules, self._root),
        )

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._root + checked_key(key))

    def _blobs(self, **query: str) -> Any:
        return self._client.list_blobs(self._bucket, timeout=_TIMEOUT, retry=None, **query)

    def _stored(self, blob: Any) -> StoredObject:
        return StoredObject(key=blob.name.removeprefix(self._root), size_bytes=blob.size, modified_at=blob.updated)

    @contextlib.contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        what = f"{operation} of {self.uri}/{key}"
        try:
            yield
        except api.GoogleAPICallError as error:
            raise _from_answer(error, what) from error
        except auth.GoogleAuthError as error:
            if isinstance(error, auth.TransportError) or error.retryable:
                raise StoreUnavailable(f"{what}: no credentials now: {error}") from error
            raise StoreError(f"{what}: {error}", hint=_LOG_IN) from error
        except _PASSING as error:
            raise StoreUnavailable(f"{what}: {error}", hint="check the network") from error


def _from_answer(error: api.GoogleAPICallError, what: str) -> StoreError:
    status = int(error.code or 0)
    text = f"GCS answered {status} to {what}"
    of_an_object = what.startswith(("download", "delete")) and "bucket does not exist" not in error.message
    if isinstance(error, api.NotFound) and of_an_object:
        return ObjectMissing(f"there is no {what.partition(' of ')[2]}")
    if isinstance(error, api.PreconditionFailed):
        return Exists(text)
    if isinstance(error, api.RequestRangeNotSatisfiable):
        return BeyondTheEnd(text)
    if passes(status):
        return StoreUnavailable(text)
    return StoreError(text, hint=_HINTS.get(status, "check checkpoint.uri"))


def _settings() -> frozenset[tuple[str, str]]:
    names = ("GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "GCE_METADATA_")
    return frozenset((name, value) for name, value in os.environ.items() if name.startswith(names))


@lru_cache(maxsize=8)
def _client(process: int, settings: frozenset[tuple[str, str]]) -> Any:
    """One for all stores of a process that find the same account. It reads the settings from the environment itself."""
    return storage.Client()
