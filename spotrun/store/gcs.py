"""
Implements a store in a Google Cloud Storage bucket, under a prefix. `STORAGE_EMULATOR_HOST` names a server to use
instead of Google's.

All requests go through google-cloud-storage, for two reasons. It is the only library that can send the precondition
*generation 0*: the service then creates an object only if it does not exist yet. And it checks the CRC32C of each
upload and download.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption

from spotrun.address import BETWEEN_REGIONS
from spotrun.errors import LoginMissing, ObjectMissing, StoreError, StoreUnavailable, WritesRefused
from spotrun.store.http import ANSWERS, CONNECT_S, FULL, NO_STORE, READ_S, BucketStore, Verbs, passes, settings
from spotrun.store.key_readers import gcs_key_readers
from spotrun.store.lifecycle import gcs_expiries
from spotrun.store.port import StoreFacts, UnknownFact
from spotrun.store.request_counts import count_read, count_write

_TIMEOUT = (CONNECT_S, READ_S)
_SEND_TIMEOUT = (READ_S, READ_S)
"""
Two timeouts of an upload: for connecting, and for reading the answer. urllib3 counts the time for sending the body as
part of connecting, so the first timeout has to be as long as the second.
"""
_ABSENT = 0
_NO_LOOK = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""
Environment variable that stops the library from requesting the bucket's metadata with each call. The library uses the
metadata only for traces, and spotrun uses no traces. Instances are not allowed to read the metadata, so the request
would fail, and the library would repeat it with each call.
"""
_PASSING = (OSError, DataCorruption, urllib3.exceptions.HTTPError, ValueError, KeyError)
"""
Errors for which a retry may help. The errors of urllib3 mean that a download broke off; ValueError and KeyError mean
that the answer was damaged.
"""

_LOG_IN = "log in by `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_LOGIN_REFUSED = f"{_LOG_IN}; `spotrun doctor gcp` says what a federated or impersonated login lacks"
_PERIMETER = (
    "call from inside the perimeter of VPC Service Controls, or ask its administrator for an ingress rule: "
    "https://cloud.google.com/vpc-service-controls/docs/troubleshooting"
)
_HINTS = {
    401: _LOG_IN,
    403: "allow storage.objects.get, list, create and delete on the bucket (role Storage Object User)",
    404: "make the bucket (`gcloud storage buckets create`), or correct checkpoint.uri",
    FULL: "make room in the store",
}


class GcsStore(BucketStore):
    """A store on GCS. Google's library checks the CRC32C of each object that is uploaded or downloaded."""

    _VERBS = Verbs("upload", "download", "list", "delete", "copy")

    def _open(self) -> None:
        names = ("GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE", "GCE_METADATA_")
        self._client = _client(os.getpid(), settings(*names))
        self._bucket = self._client.bucket(self._address.bucket)

    def _send(self, name: str, data: bytes | memoryview, checksum: str, *, if_absent: bool) -> str | None:
        blob = self._bucket.blob(name)
        blob.cache_control = NO_STORE
        count_write()
        blob.upload_from_string(
            bytes(data),
            content_type="application/octet-stream",
            checksum="crc32c",
            timeout=_SEND_TIMEOUT,
            retry=None,
            if_generation_match=_ABSENT if if_absent else None,
        )
        computed: str | None = blob.crc32c
        return computed

    def _read(self, name: str, first: int, last: int | None) -> bytes:
        count_read()
        data: bytes = self._bucket.blob(name).download_as_bytes(
            start=first or None, end=last, timeout=_TIMEOUT, retry=None, single_shot_download=True
        )
        return data

    def _objects(self, prefix: str, after: str) -> Iterator[tuple[str, int, datetime]]:
        for page in self._pages(prefix=prefix, **({"start_offset": after} if after else {})):
            for blob in page:
                yield blob.name, blob.size, blob.updated

    def _folders(self) -> Iterator[str]:
        for page in self._pages(prefix=self._root, delimiter="/"):
            yield from page.prefixes

    def _pages(self, **query: str) -> Iterator[Any]:
        for page in self._client.list_blobs(self._bucket, timeout=_TIMEOUT, retry=None, **query).pages:
            count_write()  # Google bills a list request as a write
            yield page

    def _copy(self, source: str, name: str) -> None:
        count_write()
        self._bucket.copy_blob(self._bucket.blob(source), self._bucket, name, timeout=_TIMEOUT, retry=None)

    def _remove(self, name: str) -> None:
        self._bucket.blob(name).delete(timeout=_TIMEOUT, retry=None)

    def region(self) -> str | UnknownFact:
        found = self.inspect().region
        return "" if found is None else found

    def _facts(self) -> StoreFacts:
        """
        Read the bucket's properties. This needs the permission storage.buckets.get, which the roles for objects do not
        include. A client that has read a bucket's properties reads them again after each 404, even with `_NO_LOOK`, so
        this method uses a separate client.
        """
        bucket = storage.Client().bucket(self._address.bucket)
        try:
            bucket.reload(timeout=_TIMEOUT, retry=None)
        except api.Forbidden:
            unsaid = UnknownFact("storage.buckets.get is not allowed")
            return StoreFacts(region=unsaid, versioned=unsaid, expiries=unsaid, key_readers=unsaid)
        return StoreFacts(
            region=_location(bucket),
            versioned=bool(bucket.versioning_enabled),
            expiries=gcs_expiries(bucket.lifecycle_rules, self._root),
            key_readers=self._key_readers(),
        )

    def _key_readers(self) -> tuple[str, ...] | UnknownFact:
        try:
            policy = self._bucket.get_iam_policy(requested_policy_version=3, timeout=_TIMEOUT, retry=None)
        except api.ClientError as error:  # an emulator of Cloud Storage may have no policies
            return UnknownFact(f"GCS answered {error.code} to storage.buckets.getIamPolicy")
        return gcs_key_readers(policy.bindings)

    def _translate(self, error: Exception, what: str) -> StoreError | None:
        match error:
            case api.GoogleAPICallError():
                return _from_answer(error, what)
            case auth.GoogleAuthError() if isinstance(error, auth.TransportError) or error.retryable:
                return StoreUnavailable(f"{what}: the credentials are temporarily unavailable: {error}")
            case auth.GoogleAuthError():
                return LoginMissing(f"{what}: {error}", hint=_LOGIN_REFUSED)
            case _ if isinstance(error, _PASSING):
                return StoreUnavailable(f"{what}: {error}", hint="check the network")
        return None


def _location(bucket: Any) -> str:
    """
    Return the region of `bucket`. For a bucket in several regions, return the code of this group of regions, such as
    `eu`; for two regions that have no such code, return both names.
    """
    chosen = bucket.data_locations or (bucket.location,)
    return BETWEEN_REGIONS.join(sorted(str(each).lower() for each in chosen))


def _from_answer(error: api.GoogleAPICallError, what: str) -> StoreError:
    status = int(error.code or 0)
    text = f"GCS answered {status} to {what}"
    of_an_object = what.startswith(("download", "delete", "copy")) and "bucket does not exist" not in error.message
    if isinstance(error, api.NotFound) and of_an_object:
        return ObjectMissing(f"there is no {what.partition(' of ')[2]}")
    if status in ANSWERS:
        return ANSWERS[status](text)
    if status == FULL:
        return WritesRefused(text, hint=_HINTS[FULL])
    if passes(status):
        return StoreUnavailable(text)
    if "vpcServiceControls" in error.message:
        return StoreError(f"{text}: {error.message}", hint=_PERIMETER)
    return StoreError(text, hint=_HINTS.get(status, "check checkpoint.uri"))


@lru_cache(maxsize=8)
def _client(process: int, settings: frozenset[tuple[str, str]]) -> Any:
    """
    Return the client that all stores of this process with these settings share. The settings come from environment
    variables.
    """
    os.environ.setdefault(_NO_LOOK, "true")
    return storage.Client()
