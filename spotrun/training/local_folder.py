"""
Saves a training to a local folder and resumes it from there, if the script runs without an agent. Snapshots are taken
by the same code as with an agent; it uses a LocalFolder instead of the connection to the agent.

The folder has one file for each fit: its newest snapshot, in the format of checkpoints. A snapshot is taken once a
minute and at the end of a fit. It is written to disk while training continues, and replaces the previous snapshot once
it is complete.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from spotrun.checkpoint import layout
from spotrun.checkpoint.snapshot import ImagePlan, Piece
from spotrun.checkpoint.staging import CopyTask, Staged, Stager
from spotrun.errors import SpotrunError
from spotrun.trainer_link import Message, Resume, SnapshotTaken
from spotrun.training.image_memory import ImageMemory
from spotrun.training.session import Alone

T = TypeVar("T")
EVERY_S = 60.0
"""System time in seconds between two snapshots."""
SLACK_BYTES = 4 << 20
"""Bytes by which arenas are larger than the first snapshot. A snapshot that has grown by more needs new arenas."""
ANOTHER = "name another folder: Loop(local=…)"


class SnapshotDueEvent(threading.Event):
    """An event that is set once EVERY_S seconds have passed since the last snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self._taken_s = time.monotonic()

    def is_set(self) -> bool:
        return super().is_set() or time.monotonic() - self._taken_s >= EVERY_S

    def clear(self) -> None:
        super().clear()
        self._taken_s = time.monotonic()


class LocalFolder(Alone):
    """
    Replaces rank 0's session with an agent. It has two arenas, so training can continue while the content of one is
    written to disk.

    Raises:
        SpotrunError: the folder cannot be written to, or another process is saving its training in it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._lock = _locked(folder)
        self.snapshot_wanted = SnapshotDueEvent()
        self._stager = Stager()
        self._memory: mmap.mmap | None = None
        self._starts: dict[int, int] = {}
        self._writer = ThreadPoolExecutor(1, "spotrun-write")
        self._written: Future[None] | None = None

    @property
    def _path(self) -> Path:
        return self._folder / f"fit-{self._fits}"

    def begin(self) -> tuple[Resume, ImageMemory | None]:
        resume, _ = super().begin()
        resume = replace(resume, exact="tell")
        self.unfinished = True
        if not self._path.exists():
            return resume, None
        image = self._path.read_bytes()
        at = layout.decode_header(image).meta
        return replace(resume, size_bytes=len(image), epoch=at["epoch"], step=at["step"], fresh=False), _in_memory(
            image
        )

    def tell(self, message: Message, fds: Collection[int] = ()) -> bool:
        """Write the snapshot that `message` reports. Ignore all other messages."""
        if isinstance(message, SnapshotTaken):
            self._settle()
            self._written = self._writer.submit(self._write, self._path, message.arena, message.size_bytes)
        return True

    def end(self) -> None:
        self._settle()

    # --- arenas

    def want_arenas(self, size_bytes: int) -> None:
        self.arenas_asked = True
        if size_bytes <= self._stager.size_bytes:
            return
        self._settle()
        size = -(-(size_bytes + SLACK_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.memfd_create("spotrun-arenas", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, 2 * size)
        self._memory = mmap.mmap(descriptor, 2 * size, prot=mmap.PROT_READ)
        first = max(self._starts, default=-1) + 1
        self._starts = {first: 0, first + 1: size}
        self._stager.adopt(descriptor, size, (0, size), first, size_bytes)
        self._stager.free(first + 1)

    def any_room(self) -> bool:
        return self._stager.ready()

    def room_for(self, plan: ImagePlan, wait_s: float = 0.0) -> bool:
        self.want_arenas(plan.size_bytes)
        return self._stager.wait(plan.size_bytes, wait_s)

    def stage(self, plan: ImagePlan, later: Sequence[Piece], *, overlapped: bool) -> Staged:
        return self._stager.stage(plan, later, overlapped=overlapped)

    def aside(self, work: Callable[[], T], tensors: Iterable[Tensor]) -> CopyTask[T]:
        return self._stager.aside(work, tensors)

    def unstage(self, staged: Staged) -> None:
        self._stager.free(staged.arena)

    # --- the file

    def _write(self, path: Path, arena: int, size_bytes: int) -> None:
        assert self._memory is not None
        new, start = path.with_name(f"{path.name}.new"), self._starts[arena]
        new.unlink(missing_ok=True)  # a training that was killed has left it, or another user has put a link there
        with open(new, "xb") as file, memoryview(self._memory) as memory:
            file.write(memory[start : start + size_bytes])
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        self._stager.free(arena)

    def _settle(self) -> None:
        """Wait until the last snapshot is on disk."""
        written, self._written = self._written, None
        try:
            if written is not None:
                written.result()
        except OSError as error:
            raise _not_writable(self._folder, error) from error


def _in_memory(image: bytes) -> ImageMemory:
    """
    Copy a snapshot into new memory. The snapshot's file is not mapped into memory, because `ImageMemory` frees parts of
    its memory, and this would destroy the data in the file.
    """
    descriptor = os.memfd_create("spotrun-image", os.MFD_CLOEXEC)
    with open(os.dup(descriptor), "wb") as copy:
        copy.write(image)
    return ImageMemory(descriptor, len(image))


@functools.cache
def in_folder(folder: str) -> LocalFolder:
    return LocalFolder(Path(folder))


def _locked(folder: Path) -> int:
    """Lock the folder, and return the lock file's descriptor. Closing the descriptor releases the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpotrunError(
            f"another training is saved in {folder}", hint="name another folder: Loop(local=…)"
        ) from None
    except OSError as error:
        raise _not_writable(folder, error) from error
    return descriptor


def _not_writable(folder: Path, error: OSError) -> SpotrunError:
    return SpotrunError(f"the training cannot be saved in {folder}: {error}", hint=ANOTHER)
