"""
A store in an S3 bucket, below a prefix. `AWS_ENDPOINT_URL` or `AWS_ENDPOINT_URL_S3` selects an S3 server other than
Amazon's.

All requests go through boto3. It sends payloads without copying them, and needs 0.5 s of processor time to upload a GB.
`obstore.fsspec` was tried too, and has these drawbacks:
- It takes 1.1 s per GB.
- It raises the same FileNotFoundError for a missing bucket and for a missing object. A restore has to tell them apart:
  if an object is missing, it tries an older checkpoint; if the bucket is missing, it must not do so.
- For any other error, the error code is available only as part of the message.
- It does not report the checksum that S3 computed.
- It does not look for credentials in the same places as the AWS tools.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError as BrokenBody

from spotrun.errors import LoginExpired, LoginMissing, ObjectMissing, StoreError, StoreUnavailable, WritesRefused
from spotrun.store import request_counts
from spotrun.store.http import (
    ANSWERS,
    CONNECT_S,
    FULL,
    NO_STORE,
    READ_S,
    BeyondTheEnd,
    BucketStore,
    Verbs,
    passes,
    settings,
)
from spotrun.store.port import StoreFacts, UnknownFact
from spotrun.store.s3_facts import answered, facts_of, region_of
from spotrun.store.s3_login import NEW_CODE, RoleSession

_CONNECTIONS = 32
_BAD_REQUEST, _NOT_FOUND, _INTERNAL = 400, 404, 500
_PAYLOAD_BYTES = 1 << 20
"""
Minimum size, in bytes, of a body that is sent in pieces. Each piece has its own timeout. A smaller body is sent as a
whole within one timeout; a large body would take longer than that on a slow line.
"""

_PIECE_BYTES = 256 << 10

_CREDENTIALS = (
    "check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; `aws sts get-caller-identity` shows more"
)
_LOG_IN = "log in by `aws sso login` or `aws configure`, or export AWS_PROFILE, or the keys that AWS gave you"
_LOGGED_OUT = (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.ProfileNotFound)
_EXPIRED = "log in again, for example by `aws sso login`, or export new AWS_ variables"
_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_REGION = "set AWS_DEFAULT_REGION to the bucket's region"
_FULL_TOO = "if this lasts, check whether the store has space left: SeaweedFS reports a full disk only by this error"
_HINTS = {
    "AccessDenied": "allow s3:ListBucket on the bucket, and s3:GetObject, PutObject and DeleteObject on the prefix",
    "AllAccessDisabled": "ask the owner of the bucket",
    **dict.fromkeys(_EXPIRED_CODES, _EXPIRED),
    "InvalidAccessKeyId": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "NoSuchBucket": "make the bucket (`aws s3 mb`), or correct checkpoint.uri",
    "NotImplemented": "use a store that supports If-None-Match on PutObject",
    "QuotaExceeded": "make room in the store, or raise its quota",
    "XMinioStorageFull": "make room in the store",
    "InsufficientStorage": "make room in the store",
}
_REFUSED_CODES = ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage")
_PASSING_CODES = {
    *(
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    ),
    *("InternalError", "ServiceUnavailable", "OperationAborted", "ConditionalRequestConflict"),
    *("IncompleteBody", "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
}
"""
Error codes of faults for which a retry may help, whatever the HTTP status. The codes in the last row mean that the data
was damaged on its way to S3.
"""
_PASSING = (
    BrokenBody,
    sdk.HTTPClientError,
    sdk.ConnectionError,
    sdk.IncompleteReadError,
    sdk.FlexibleChecksumError,
    sdk.CredentialRetrievalError,
    sdk.MetadataRetrievalError,
    ResponseParserError,
    OSError,
    ValueError,
    KeyError,
)
"""
Errors for which a retry may help. The last two mean that the answer was damaged: a date or number is malformed, or a
field that S3 always sends is missing.
"""


class S3Store(BucketStore):
    """A store on S3. S3 refuses an object whose CRC32C differs from the CRC32C in the request."""

    _VERBS = Verbs("PutObject", "GetObject", "ListObjectsV2", "DeleteObject", "CopyObject")

    def _open(self) -> None:
        self._client = _client(os.getpid(), settings("AWS_"))

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        name = self._name(key)
        with (
            contextlib.suppress(BeyondTheEnd),
            self._translated(self._VERBS.get, key),
            contextlib.closing(self._body(name, 0, max(size_bytes, 1) - 1)) as body,
        ):
            while piece := body.read(_PIECE_BYTES):
                yield piece

    def region(self) -> str | UnknownFact:
        with self._translated("HeadBucket", ""):
            return region_of(self._client, self._address.bucket)

    def _send(self, name: str, data: bytes | memoryview, checksum: str, *, if_absent: bool) -> str | None:
        answer = self._client.put_object(
            Bucket=self._address.bucket,
            Key=name,
            Body=bytes(data) if len(data) < _PAYLOAD_BYTES else _Body(data),
            CacheControl=NO_STORE,
            ChecksumCRC32C=checksum,
            **({"IfNoneMatch": "*"} if if_absent else {}),
        )
        computed: str | None = answer.get("ChecksumCRC32C")
        return computed

    def _read(self, name: str, first: int, last: int | None) -> bytes:
        data: bytes = self._body(name, first, last).read()
        return data

    def _body(self, name: str, first: int, last: int | None) -> Any:
        wanted = {} if (first, last) == (0, None) else {"Range": f"bytes={first}-{'' if last is None else last}"}
        return self._client.get_object(Bucket=self._address.bucket, Key=name, **wanted)["Body"]

    def _objects(self, prefix: str, after: str) -> Iterator[tuple[str, int, datetime]]:
        for page in self._pages(Prefix=prefix, **({"StartAfter": after} if after else {})):
            for item in page.get("Contents", ()):
                yield item["Key"], item["Size"], item["LastModified"]

    def _folders(self) -> Iterator[str]:
        for page in self._pages(Prefix=self._root, Delimiter="/"):
            yield from (found["Prefix"] for found in page.get("CommonPrefixes", ()))

    def _pages(self, **query: str) -> Any:
        return self._client.get_paginator("list_objects_v2").paginate(Bucket=self._address.bucket, **query)

    def _copy(self, source: str, name: str) -> None:
        bucket = self._address.bucket
        self._client.copy_object(Bucket=bucket, Key=name, CopySource={"Bucket": bucket, "Key": source})

    def _remove(self, name: str) -> None:
        self._client.delete_object(Bucket=self._address.bucket, Key=name)

    def _facts(self) -> StoreFacts:
        return facts_of(self._client, self._address)

    def _translate(self, error: Exception, what: str) -> StoreError | None:
        match error:
            case sdk.ClientError():
                found = _from_answer(error, what)
                if isinstance(found, LoginExpired):  # a client keeps using the credentials that it was created with
                    _client.cache_clear()
                    self._open()
                return found
            case sdk.RefreshWithMFAUnsupportedError():
                _client.cache_clear()
                self._open()
                return LoginExpired(f"{what}: {error}", hint=NEW_CODE)
            case sdk.SSOError() | sdk.LoginError() | sdk.TokenRetrievalError():
                return LoginExpired(f"{what}: {error}", hint=_EXPIRED)
            case RuntimeError() if "credentials are still expired" in str(error):  # no botocore class
                return StoreUnavailable(f"{what}: {error}", hint=_EXPIRED)
            case _ if isinstance(error, _PASSING):
                return StoreUnavailable(f"{what}: {error}", hint="check the network, and AWS_ENDPOINT_URL if it is set")
            case _ if isinstance(error, _LOGGED_OUT):
                return LoginMissing(f"{what}: {error}", hint=_LOG_IN)
            case sdk.BotoCoreError() | Boto3Error():
                return StoreError(f"{what}: {error}", hint=_CREDENTIALS)
        return None


class _Body:
    """
    The payload of a request as a file object. urllib3 requests 16 KiB per read, but sends whatever it gets. So `read`
    ignores the requested size and returns a much larger piece, without copying it.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, _size: int = -1) -> memoryview:
        piece = self._data[self._at : self._at + _PIECE_BYTES]
        self._at += len(piece)
        return piece

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        return self._at


def _from_answer(error: sdk.ClientError, what: str) -> StoreError:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = error.response.get("Error", {}).get("Code", "")
    text = f"{answered(error)} to {what}"
    if code == "NoSuchKey":
        return ObjectMissing(f"there is no {what.partition(' of ')[2]}")
    if status in ANSWERS:
        return ANSWERS[status](text)
    if code not in _HINTS and (code in _PASSING_CODES or passes(status)):
        return StoreUnavailable(text, hint=_FULL_TOO if status == _INTERNAL else None)
    if code in _REFUSED_CODES or status == FULL:
        return WritesRefused(text, hint=_HINTS.get(code, _HINTS["InsufficientStorage"]))
    if code in _EXPIRED_CODES:
        return LoginExpired(text, hint=_EXPIRED)
    if _is_vague(status, code):
        return StoreUnavailable(text, hint="the answer did not come from S3; if AWS_ENDPOINT_URL is set, check it")
    return StoreError(text, hint=_HINTS.get(code, "check checkpoint.uri, and AWS_ENDPOINT_URL if it is set"))


def _is_vague(status: int, code: str) -> bool:
    """
    Return True if an error answer does not show the cause of the error. For example, the object or the bucket may be
    missing, or the answer may be damaged or come from a server between this machine and the store. The caller then
    retries, because a retry does less harm than a wrong guess. (If an answer has no error code, botocore uses its HTTP
    status as the code.)
    """
    return (status == _NOT_FOUND and code not in _HINTS) or (status == _BAD_REQUEST and code == str(status))


@lru_cache(maxsize=8)
def _client(process: int, settings: frozenset[tuple[str, str]]) -> Any:
    """
    Return the client that all stores of a process with the same settings share. The settings come from environment
    variables.
    """
    client = boto3.Session(botocore_session=RoleSession()).client(
        "s3",
        region_name=os.environ.get("AWS_REGION"),
        config=Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=_CONNECTIONS,
            user_agent_extra="spotrun",
            s3={"payload_signing_enabled": False},  # the signed checksum covers the payload
            response_checksum_validation="when_required",  # the ledger's digest already verifies a checkpoint
        ),
    )
    client.meta.events.register("before-send.s3", request_counts.count)
    return client
