"""A store that lives and dies with its process: for simulated worlds, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from spotrun.clock import Clock
from spotrun.errors import ObjectMissing
from spotrun.store.port import StoredObject, checked_key, is_key


class MemoryStore:
    """
    A Store that is a dictionary, safe to share between threads. Its time is its clock's, else the system's.

    It has no address: only its holder can reach what is in it.
    """

    uri = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self._written_at: dict[str, datetime] = {}
        self._now: Callable[[], datetime] = clock.now if clock is not None else lambda: datetime.now(UTC)
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        checked_key(key)
        with self._lock:
            if key in self.objects:
                return False
            self._write(key, data)
            return True

    def put(self, key: str, data: bytes | memoryview) -> bool:
        self.put_status(key, data)
        return False

    def put_status(self, key: str, data: bytes | memoryview) -> None:
        checked_key(key)
        with self._lock:
            self._write(key, data)

    def _write(self, key: str, data: bytes | memoryview) -> None:
        self.objects[key] = bytes(data)
        self._written_at[key] = self._now()

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        data = self.objects.get(checked_key(key))
        if data is None:
            raise ObjectMissing(f"there is no {key}")
        return data[start : None if size is None else start + size]

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        with self._lock:
            chosen = sorted(key for key in self.objects if key > after and key.startswith(prefix) and is_key(key))
            return [self._stored(key) for key in chosen]

    def _stored(self, key: str) -> StoredObject:
        at = self._written_at.get(key) or self._now()
        return StoredObject(key=key, size_bytes=len(self.objects[key]), modified_at=at)

    def folders(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted({key.split("/")[0] for key in self.objects if "/" in key}))

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(checked_key(key), None)
