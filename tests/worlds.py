"""An object store in memory, and one whose answers go astray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from spotrun.errors import ObjectMissing, StoreUnavailable
from spotrun.store import Store, StoredObject


class MemoryStore:
    """A Store that is a dictionary."""

    uri = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            return self.objects.setdefault(key, data) is data

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.objects[key] = bytes(data)

    put_hint = put

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(f"there is no {key}")
        return self.objects[key][start : None if size is None else start + size]

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        now = datetime.now(UTC)
        chosen = sorted(key for key in list(self.objects) if key.startswith(prefix) and key > after)
        return [StoredObject(key=key, size_bytes=len(self.objects[key]), modified_at=now) for key in chosen]

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class LossyStore:
    """
    Another store, reached over a bad line.

    `fate` is asked at each put_if_absent: "ok"; "answer lost" after it was done; "lost" before; "denied", the store
    saying that something is there although it was this writer who put it.
    """

    def __init__(self, store: Store, fate: Callable[[], str]) -> None:
        self.uri = store.uri
        self._store = store
        self._fate = fate
        self.put, self.put_hint, self.get = store.put, store.put_hint, store.get
        self.list, self.delete = store.list, store.delete

    def put_if_absent(self, key: str, data: bytes) -> bool:
        fate = self._fate()
        if fate == "lost":
            raise StoreUnavailable("connection reset")
        created = self._store.put_if_absent(key, data)
        if fate == "answer lost":
            raise StoreUnavailable("connection reset")
        return created and fate != "denied"
