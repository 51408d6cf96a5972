"""A store whose machine may go in the middle of a call, and what lies in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.memory_store import MemoryStore


class Killed(BaseException):
    """The machine is gone in the middle of a call."""


class MortalStore(MemoryStore):
    """Its machine is gone after so many changes; the last of them happens or not."""

    def __init__(self) -> None:
        super().__init__()
        self.left: float = float("inf")
        self.last_happens = False
        self.before: Callable[[], None] = lambda: None

    def put(self, key: str, data: bytes | memoryview) -> bool:
        return self._change(lambda: super(MortalStore, self).put(key, data))

    def delete(self, key: str) -> None:
        self._change(lambda: super(MortalStore, self).delete(key))

    def _change(self, act: Callable[[], Any]) -> Any:
        self.before()
        self.left -= 1
        if self.left < 0 and not (self.last_happens and self.left == -1):
            raise Killed
        done = act()
        if self.left < 0:
            raise Killed
        return done


def files_in(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace") for path in found}
