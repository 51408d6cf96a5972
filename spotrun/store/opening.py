"""Opens a store with the driver that its address requires."""

from __future__ import annotations

from pathlib import Path

from spotrun import address
from spotrun.errors import StoreNotInstalled, needs_extra
from spotrun.store.port import Store


def open_store(uri: str) -> Store:
    """
    Open the store at `uri`: s3://bucket/prefix, gs://bucket/prefix, or a local folder (a path, or a file:// address).
    If the local folder does not exist, the first write creates it.

    Raises:
        StoreError: `uri` is none of these, or the cloud's SDK or credentials are missing.
    """
    place = address.parse(uri)
    if isinstance(place, str):
        from spotrun.store.local import LocalStore

        return LocalStore(Path(place))
    with needs_extra("aws" if place.scheme == "s3" else "gcp", str(place), StoreNotInstalled):
        if place.scheme == "s3":
            from spotrun.store.s3 import S3Store

            return S3Store(place)
        from spotrun.store.gcs import GcsStore

        return GcsStore(place)
