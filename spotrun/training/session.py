"""
The trainer's session with its agent.

A thread reads the agent's messages and sets flags. The training thread reads the flags between two steps, where I/O and
collective calls are safe. If the agent is gone, the trainer ends within a minute (protocol 17).
"""

from __future__ import annotations

import atexit
import os
import platform
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from spotrun import trainer_link
from spotrun.checkpoint.snapshot import ImagePlan, Piece
from spotrun.checkpoint.staging import CopyTask, Staged, Stager
from spotrun.trainer_link import (
    SEED,
    ArenaFree,
    Arenas,
    ArenasWanted,
    Arrived,
    Committed,
    DrainWanted,
    Figures,
    FilesReady,
    FilesTorn,
    FilesWanted,
    FitBegins,
    Hello,
    LinkClosed,
    Message,
    Resume,
    RoomWanted,
    SnapshotWanted,
    TrainerLink,
)
from spotrun.training.figures import FiguresBox
from spotrun.training.image_memory import Arrival, ImageMemory

LISTENER_ENDS_WITHIN_S = 5.0
LOOK_S = 0.5
"""System time in seconds between two checks whether the agent is still running."""
AGENT_GONE_EXIT_CODE = 75
AGENT_GONE_EXIT_S = 55.0
ARENA_SLACK_BYTES = 4 << 20
"""
Bytes by which arenas are larger than the first snapshot. Later snapshots may be a little larger, because counters,
metrics and callbacks' states grow.
"""

T = TypeVar("T")


class Session:
    """
    A trainer's connection to its agent, with the trainer's arenas and the agent's requests. Each fit() starts with
    `begin`. `unfinished` is True until that fit() has ended.
    """

    def __init__(self, link: TrainerLink) -> None:
        self._link = link
        # Data loading workers outlive a killed trainer by seconds. They must not keep the link open, because the agent
        # has to notice the trainer's end immediately.
        os.register_at_fork(after_in_child=link.leave_to_parent)
        self._stager = Stager()
        self._asked_bytes = 0
        self._used_bytes = 0
        self._arrival: Arrival | None = None
        self._fits = 0
        self.unfinished = False
        self.arenas_asked = False
        self.snapshot_wanted = threading.Event()
        self.drain_wanted = threading.Event()
        self.closed = threading.Event()
        self.figures = FiguresBox()
        self._files: queue.SimpleQueue[Committed | FilesTorn] = queue.SimpleQueue()
        self._files_ready: queue.SimpleQueue[FilesReady] = queue.SimpleQueue()
        self._resumes: queue.SimpleQueue[tuple[Resume, list[int]]] = queue.SimpleQueue()
        self._over = threading.Event()

    @property
    def has_begun(self) -> bool:
        """True if a fit() of this process has begun under its agent."""
        return self._fits > 0

    def begin(self, framework: str) -> tuple[Resume, ImageMemory | None]:
        """
        Report to the agent that a fit() begins, and wait, without a time limit, until the agent has found the
        checkpoint to resume from. The agent may not have fetched all of it yet: `Arrival.need` later waits for the
        missing bytes.

        Raises:
            LinkClosed: the agent is gone.
        """
        self._fits += 1
        self.unfinished = True
        self.arenas_asked = False  # each fit() requests arenas, on all ranks
        resume, fds = self._first_resume(framework) if self._fits == 1 else self._next_resume()
        memory = None
        if resume.size_bytes:
            memory = ImageMemory(fds[0], resume.size_bytes, resume.start, resume.here_bytes)
            self._arrival = memory.arrival
        if self._fits == 1:
            listener = threading.Thread(target=self._listen, name="spotrun-link", daemon=True)
            listener.start()
            atexit.register(self._leave, os.getpid(), listener)
        if memory is not None:
            memory.map_beside()  # only now: the listener's stack would have to wait for memory
        return resume, memory

    def _first_resume(self, framework: str) -> tuple[Resume, list[int]]:
        self._link.send(
            Hello(pid=os.getpid(), framework=framework, torch=str(torch.__version__), python=platform.python_version())
        )
        return self._wait_for_resume()

    def _next_resume(self) -> tuple[Resume, list[int]]:
        """
        Wait for the agent's next Resume. The agent sends it once the last snapshot of the previous fit() is durable.
        """
        self._over.clear()
        while self.said_of_files() is not None:  # messages about the previous fit()
            pass
        self.tell(FitBegins(fit=self._fits))
        while not self.closed.is_set():
            with suppress(queue.Empty):
                return self._resumes.get(timeout=LOOK_S)
        raise LinkClosed("the agent is gone")

    def _leave(self, process: int, listener: threading.Thread) -> None:
        """
        Stop the other threads when the process exits. A thread that is still computing while the interpreter shuts down
        would abort the process.
        """
        if os.getpid() != process:
            return
        self._over.set()
        self._link.close()
        self._stager.close()
        listener.join(LISTENER_ENDS_WITHIN_S)

    def _wait_for_resume(self) -> tuple[Resume, list[int]]:
        while True:
            received = self._link.receive(None)
            assert received is not None
            message, fds = received
            if isinstance(message, Resume):
                return message, fds
            self._take(message, fds)

    def tell(self, message: Message, fds: Collection[int] = ()) -> bool:
        """Send a message. Return False if the agent is gone; training then continues without an agent."""
        if self.closed.is_set():
            return False
        try:
            self._link.send(message, tuple(fds))
        except LinkClosed:
            self._agent_is_gone()
        return not self.closed.is_set()

    def end(self) -> None:
        """End the fit(). Until the next fit() begins, this process continues even if the agent is lost."""
        self._over.set()

    # --- files

    def want_files(self, wanted: FilesWanted) -> str:
        """
        Request the checkpoint's files, and wait for them. Return the reason why they could not be restored; "" if they
        were.
        """
        self.tell(wanted)
        while not self.closed.is_set():
            try:
                return self._files_ready.get(timeout=LOOK_S).problem
            except queue.Empty:
                pass
        return "the agent is gone"

    def said_of_files(self) -> Committed | FilesTorn | None:
        """Return the agent's oldest unread message about the files of a snapshot; None if there is none."""
        try:
            return self._files.get_nowait()
        except queue.Empty:
            return None

    # --- arenas

    def room_for(self, plan: ImagePlan, wait_s: float = 0.0) -> bool:
        """
        Wait up to `wait_s` for a free arena that is large enough for `plan`. Return True if there is one.

        If all arenas are too small, request larger ones from the agent, but only once for each size. If `wait_s` is
        given and no arena is free now, send RoomWanted to the agent.
        """
        if plan.size_bytes > self._stager.size_bytes:
            self.want_arenas(plan.size_bytes)
        if wait_s and not self._stager.ready():
            self.tell(RoomWanted())
        return not self.closed.is_set() and self._stager.wait(plan.size_bytes, wait_s)

    def any_room(self) -> bool:
        """Return True if an arena is free, whatever its size."""
        return self._stager.ready()

    def want_arenas(self, size_bytes: int) -> None:
        self.arenas_asked = True
        if size_bytes > self._asked_bytes:
            self._used_bytes = size_bytes
            self._asked_bytes = size_bytes + size_bytes // 16 + ARENA_SLACK_BYTES
            self.tell(ArenasWanted(size_bytes=self._asked_bytes))

    def stage(self, plan: ImagePlan, later: Sequence[Piece], *, overlapped: bool) -> Staged:
        return self._stager.stage(plan, later, overlapped=overlapped)

    def aside(self, work: Callable[[], T], tensors: Iterable[Tensor]) -> CopyTask[T]:
        return self._stager.aside(work, tensors)

    def unstage(self, staged: Staged) -> None:
        """Free the arena of a snapshot that was never reported to the agent."""
        self._stager.free(staged.arena)

    # --- the reading thread

    def _listen(self) -> None:
        try:
            while True:
                received = self._link.receive(None)
                assert received is not None
                self._take(*received)
        except LinkClosed:
            self._agent_is_gone()
        if not self._over.wait(AGENT_GONE_EXIT_S):
            os._exit(AGENT_GONE_EXIT_CODE)

    def _agent_is_gone(self) -> None:
        self.closed.set()
        self._link.close()
        if self._arrival is not None:
            self._arrival.ends()

    def _take(self, message: Message, fds: list[int]) -> None:
        match message:
            case Arrived(size_bytes=size_bytes) if self._arrival is not None:
                self._arrival.has(size_bytes)
            case Arenas(size_bytes=size_bytes, starts=starts, first=first):
                self._stager.adopt(fds[0], size_bytes, starts, first, self._used_bytes)
            case ArenaFree(arena=arena):
                self._stager.free(arena)
            case SnapshotWanted():
                self.snapshot_wanted.set()
            case DrainWanted():
                self.drain_wanted.set()
            case Figures() as figures:
                self.figures.put(figures)
            case Committed() | FilesTorn():
                self._files.put(message)
            case FilesReady():
                self._files_ready.put(message)
            case Resume():
                self._resumes.put((message, fds))
            case _:
                pass


class Follower:
    """
    A replacement for the session on ranks other than 0. These ranks are not connected to the agent, so nothing ever
    requests a snapshot from a Follower.
    """

    def __init__(self) -> None:
        self.snapshot_wanted = threading.Event()
        self.drain_wanted = threading.Event()
        self.closed = threading.Event()
        self.figures = FiguresBox()
        self.arenas_asked = False
        self.unfinished = False

    def tell(self, message: Message, fds: Collection[int] = ()) -> bool:
        return False

    def end(self) -> None:
        pass

    def want_arenas(self, size_bytes: int) -> None:
        self.arenas_asked = True

    def any_room(self) -> bool:
        return False

    def room_for(self, plan: ImagePlan, wait_s: float = 0.0) -> bool:
        return False

    def stage(self, plan: ImagePlan, later: Sequence[Piece], *, overlapped: bool) -> Staged:
        raise AssertionError("only rank 0 has arenas")

    def aside(self, work: Callable[[], T], tensors: Iterable[Tensor]) -> CopyTask[T]:
        raise AssertionError("only rank 0 has arenas")

    def unstage(self, staged: Staged) -> None:
        raise AssertionError("only rank 0 has arenas")


class Alone(Follower):
    """
    Replaces the session if there is no agent. Each fit starts fresh, and the run's seed is the same in every process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fits = 0

    def begin(self) -> tuple[Resume, ImageMemory | None]:
        self._fits += 1
        self.arenas_asked = False
        started = Resume(
            size_bytes=0, epoch=0, step=0, every_steps=None, seed=SEED, fresh=True, fit=self._fits, exact="off"
        )
        return started, None


Agent: TypeAlias = Session | Follower
"""The session of a fit with its agent, or a replacement for it."""

_alone = Alone()


def alone() -> Alone:
    """Return the one `Alone` that all fits of this process share."""
    return _alone


_claimed: tuple[int, Session] | None = None
"""The id of the process that claimed the session, and the session. A forked child has to claim its own session."""


def claim() -> Session | None:
    """
    Return the session of this process; None if there is no agent.

    Raises:
        LinkLost: there is an agent, but this process cannot reach it.
    """
    global _claimed
    if _claimed is None or _claimed[0] != os.getpid():
        link = trainer_link.from_environment()
        if link is None:
            return None
        _claimed = os.getpid(), Session(link)
    return _claimed[1]
