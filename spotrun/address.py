"""Addresses of stores: a local folder, or a prefix of a bucket."""

from __future__ import annotations

import os
import re
from typing import ClassVar

import msgspec

from spotrun.errors import StoreError
from spotrun.units import shown

DEFAULT_STORE = "~/.spotrun/runs"
BETWEEN_REGIONS = "+"
"""The separator between the two region names of a dual-region bucket."""
_LIKE_AN_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+-]+)(://|:/?|//)(.*)")
_MEANT = {"gcs": "gs", "s3a": "s3", "s3n": "s3"}
"""Maps the URL schemes of other tools to spotrun's."""
_KNOWN = ("s3", "gs", "file", "http", "https")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*(/[A-Za-z0-9_-][A-Za-z0-9._=-]*)*")


class BucketAddress(msgspec.Struct, frozen=True):
    """A prefix of a bucket. `prefix` neither begins nor ends with a slash; it is empty for the whole bucket."""

    SCHEMES: ClassVar[tuple[str, ...]] = ("s3", "gs")

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def root(self) -> str:
        """The prefix of the names of all objects in the store."""
        return f"{self.prefix}/" if self.prefix else ""


def parse(uri: str) -> BucketAddress | str:
    """
    Parse an address: return a prefix of a bucket, or the path of a local folder as written.

    Raises:
        StoreError: `uri` is not an address of a store; the message says why.
    """
    scheme, separator, rest = uri.partition("://")
    if meant := mistyped(uri):
        parse(meant)  # if `meant` is not an address of a store either, its own error says why
        raise StoreError(
            f"{shown(uri)} is not the address of a store",
            hint=f"did you mean {shown(meant)}? (for a folder of that name, write ./{shown(uri)})",
        )
    if not separator:
        return uri
    if scheme == "file":
        return _path(uri, rest)
    if scheme not in BucketAddress.SCHEMES:
        raise StoreError(
            f"{shown(scheme)}:// cannot hold a run: the ledger needs a store that never overwrites an existing entry",
            hint=f"write a folder like {DEFAULT_STORE}, s3://bucket/prefix or gs://bucket/prefix",
        )
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        raise StoreError(f"{shown(uri)} names no bucket", hint=f"write it like {scheme}://bucket/prefix")
    if not _BUCKET.fullmatch(bucket):
        hint = "use 3 or more lowercase letters, digits, '.', '_' and '-'; begin and end with a letter or a digit"
        raise StoreError(f"{shown(bucket)} cannot be the name of a bucket, in {shown(uri)}", hint=hint)
    if prefix and not _PREFIX.fullmatch(prefix):
        hint = "use letters, digits, '.', '_', '=' and '-' between slashes; no part may begin with a dot"
        raise StoreError(f"{shown(uri)} has a prefix that cannot hold a run", hint=hint)
    return BucketAddress(scheme, bucket, prefix)


def mistyped(text: str) -> str | None:
    """
    Return the address that the user probably meant with `s3:/bucket`, `S3://bucket`, `s3//bucket`, `s3:bucket` or
    `gcs://bucket`; None if `text` is a path or a correctly written address.
    """
    found = _LIKE_AN_ADDRESS.fullmatch(text)
    if found is None:
        return None
    written, marks, rest = found.groups()
    scheme = _MEANT.get(written.lower(), written.lower())
    if (written, marks) == (scheme, "://") or (scheme not in _KNOWN and marks != ":/"):
        return None  # the name of a folder may hold a colon
    meant = f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"
    return None if meant == text else meant


def _path(uri: str, path: str) -> str:
    if not path.startswith("/"):
        raise StoreError(f"{shown(uri)} names another machine", hint="write file:///full/path")
    return path


def absolute(uri: str) -> str:
    """
    Return an address that names the same store whatever the current folder is: an absolute path, or the normalized
    address of a bucket.

    Raises:
        StoreError: `uri` is not an address.
    """
    parsed = parse(uri)
    return os.path.abspath(os.path.expanduser(parsed)) if isinstance(parsed, str) else str(parsed)
