"""Ledger entries about checkpoints: a test names the fields that it cares about, the others have defaults."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from spotrun.checkpoint.manifest import FORMAT, Manifest
from spotrun.checkpoint.restore import Image, fetch
from spotrun.checkpoint.upload import Uploaded, upload
from spotrun.run import events as ev
from spotrun.run.state import Commit
from spotrun.store.port import Store

NOTHING_SENT = Uploaded(
    manifest=Manifest(format=FORMAT, size_bytes=1, parts=()), manifest_blake3="0" * 64, objects=1, sent_bytes=1
)


def committed(
    attempt: int, prefix: str, step: int, taken_at: datetime, uploaded: Uploaded = NOTHING_SENT, **fields: Any
) -> ev.CheckpointCommitted:
    """The entry that says: a checkpoint of `step` lies at `prefix`. `fields` sets any other field of the entry."""
    others: dict[str, Any] = {"incarnation": 0, "epoch": 0, "batch": step, "stall_s": 0, "durable_s": 0, "why": "test"}
    others |= {"manifest_blake3": uploaded.manifest_blake3, "objects": uploaded.objects}
    others |= {"size_bytes": uploaded.manifest.size_bytes, "borrows": uploaded.manifest.borrows}
    return ev.CheckpointCommitted(attempt=attempt, prefix=prefix, step=step, taken_at=taken_at, **(others | fields))


def saved(store: Store, number: int, image: bytes, begin_bytes: int | None = None) -> Commit:
    """Upload `image`, and return the commit that a ledger would have of it; no ledger has it."""
    prefix = f"checkpoints/1-0-{number}"
    uploaded = upload(store, prefix, memoryview(image), {"step": number}, begin_bytes=begin_bytes)
    event = committed(1, prefix, number, datetime.now(UTC), uploaded)
    return Commit(number=number, at=event.taken_at, event=event)


def restored(store: Store, commit: Commit) -> bytes:
    """The bytes of a commit as a trainer gets them."""
    return content_of(fetch(store, commit))


def content_of(image: Image) -> bytes:
    """All bytes of a fetched image, which this closes."""
    try:
        return os.pread(image.fd, image.size_bytes, 0)
    finally:
        image.close()
