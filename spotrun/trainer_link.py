"""
The line between the agent and the trainer process that it started.

A Unix stream socket pair; the trainer inherits its end, whose number is in `SPOTRUN_AGENT_FD`. A message is one
JSON object on a line. File descriptors (arenas, a checkpoint to resume from) travel beside it (SCM_RIGHTS) and are
counted in the line, so that each reaches the message it was sent with, however the stream was cut.

    trainer                                   agent
    Hello                       ->
                                <-            Resume (+ the checkpoint's memory, unless fresh), Arrived
    ArenasWanted                ->
                                <-            Arenas (+ their memory)
    FilesWanted                 ->
                                <-            FilesReady
    Progress, FilesFrozen, MoreFiles, NotCarried, SnapshotTaken, RoomWanted, EpochEnded ->
                                <-            ArenaFree, SnapshotWanted, DrainWanted, Committed, FilesTorn, Figures
    Refused | Finished          ->
    FitBegins                   ->
                                <-            Resume, and so on
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

AGENT_FD = "SPOTRUN_AGENT_FD"
TAKEN = "taken"
"""The value of `SPOTRUN_AGENT_FD` once a training has its link: what it starts from then on has no agent."""

LINE_MAX_BYTES = 1 << 20
SEND_TIMEOUT_S = 60.0
"""A peer that reads nothing for this long is taken for gone."""

FDS_MAX = 16
_CHUNK_BYTES = 1 << 16


class LinkClosed(Exception):
    """The other end is gone, or speaks something else. Nothing more can be sent or received."""


class LinkLost(Exception):
    """An agent started this program, and a process between the two did not pass its socket on."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """The first message. `lightning` is the package and its version, `pytorch_lightning 2.6.6`."""

    pid: int
    lightning: str
    torch: str
    python: str


class FitBegins(_Message, frozen=True):
    """The process calls fit() once more, for the `fit`-th time, and waits for what that begins with."""

    fit: int


class ArenasWanted(_Message, frozen=True):
    """Snapshots need `size_bytes` each. Asked again, with a larger size, when the state has grown."""

    size_bytes: int


class Progress(_Message, frozen=True):
    """
    Where training is. `epoch` counts from 0; `batch` of `batches` are done in it; `step` is Lightning's `global_step`.

    `epochs` is `max_epochs`, or 0 where that is unknown; so is `batches`. Metrics that are not finite are left out.
    """

    epoch: int
    batch: int
    batches: int
    step: int
    epochs: int
    phase: Literal["train", "validate"]
    metrics: dict[str, float] = {}


class FilesWanted(_Message, frozen=True):
    """
    Training is about to go on, and its work folder has to be as it was at the checkpoint. Of the files there the
    processes of the training have those `open` for writing: they are not exchanged but written to.
    """

    open: tuple[str, ...]


class FilesFrozen(_Message, frozen=True):
    """
    The work folder at the boundary of the next `SnapshotTaken` with the same number in `files`
    (spotrun/folder/frozen_files.py). The first descriptor is of the memory, which has its index of `index_bytes` from
    `index_at` on; `descriptors` more follow, here and with `MoreFiles`.
    """

    number: int
    index_at: int
    index_bytes: int
    descriptors: int


class MoreFiles(_Message, frozen=True):
    """More descriptors of the newest `FilesFrozen`."""


class SnapshotTaken(_Message, frozen=True):
    """
    Arena `arena` holds a checkpoint image of `size_bytes` and belongs to the agent until `ArenaFree`.

    `batch` batches of `epoch` are in it; with `epoch_ended` the whole epoch is, with its validation and all else that
    belongs to its end. `final`: no step follows this one in this process. `stall_s`: system seconds for which training
    stood still. `finite` is False when the loss or a parameter is NaN or infinite. `files` is the number of the
    `FilesFrozen` that came before. `epoch` and `step` count on over the fits of a process, of which this is the
    `fit`-th.
    """

    arena: int
    size_bytes: int
    epoch: int
    batch: int
    step: int
    stall_s: float
    finite: bool
    final: bool
    epoch_ended: bool
    metrics: dict[str, float] = {}
    files: int | None = None
    fit: int = 1


class NotCarried(_Message, frozen=True):
    """
    The snapshot of `step` lacks these, as no image holds them: for each its name in the script, and what it is. Each is
    said once by a fit().
    """

    step: int
    places: tuple[tuple[str, str], ...]


class RoomWanted(_Message, frozen=True):
    """Training stands still for its last snapshot, and no arena is free."""


class EpochEnded(_Message, frozen=True):
    """Epoch `epoch` (from 0) has ended, its validation included; `step` is the one that it ended on."""

    epoch: int
    step: int
    batches: int
    samples: int
    metrics: dict[str, float] = {}


class Refused(_Message, frozen=True):
    """This training cannot be resumed exactly, or not at all; the process ends with an error next."""

    reason: str
    hint: str


class Finished(_Message, frozen=True):
    """`fit()` is done, and the final snapshot was taken. `resumed`: the checkpoint to resume from was that snapshot."""

    step: int
    epoch: int
    resumed: bool = False


class FilesRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which files belong to a checkpoint: those below `work` that are not as the file `before` says, and that no pattern
    of `exclude` names. `put_back`: the checkpoint to resume from has files.
    """

    work: str
    before: str
    exclude: tuple[str, ...]
    put_back: bool = False


class Resume(_Message, frozen=True):
    """
    Where to begin. With `size_bytes` > 0 one file descriptor comes along: memory that holds a checkpoint image, from
    `start` on, or the first `here_bytes` of one that is still being fetched.

    `seed` must be the same in every attempt of a run; `every_steps` asks for a snapshot after each
    stretch of that many optimizer steps. Without `files` no files belong to checkpoints. `epoch` and `step` count on
    over fits; of one that begins afresh, they are what the fit() before it has ended with. The image of a second or
    later `fit` is all there. With `exact` training ends where something has changed that no image holds.
    """

    size_bytes: int
    epoch: int
    step: int
    every_steps: int | None
    seed: int
    fresh: bool
    start: int = 0
    here_bytes: int | None = None
    files: FilesRule | None = None
    fit: int = 1
    exact: bool = False


class FilesReady(_Message, frozen=True):
    """The work folder is as it was at the checkpoint; or the `problem` says why it is not, and nothing may train."""

    problem: str = ""


class Arrived(_Message, frozen=True):
    """The first `size_bytes` of the image are there, and are what was committed."""

    size_bytes: int


class Arenas(_Message, frozen=True):
    """
    The arenas `first`, `first + 1`, …, of `size_bytes` each, begin at these `starts` of the memory whose descriptor
    comes along. They replace earlier ones. `first` is free, and the others come to be.
    """

    size_bytes: int
    starts: tuple[int, ...]
    first: int = 0


class ArenaFree(_Message, frozen=True):
    arena: int


Why: TypeAlias = Literal["interval", "rebalance", "epoch"]
"""What made the agent ask for a snapshot."""


class SnapshotWanted(_Message, frozen=True):
    why: Why


class DrainWanted(_Message, frozen=True):
    """Take a final snapshot at the next step boundary and do no step any more."""

    reason: str


class Committed(_Message, frozen=True):
    """`files` is the number of the work folder that is durable with it."""

    step: int
    files: int | None = None


class FilesTorn(_Message, frozen=True):
    """
    These files were written to before the agent had read them, or it has never had them: the next snapshot needs
    copies, made at its boundary.
    """

    paths: tuple[str, ...]


class Figures(_Message, frozen=True):
    """
    What the run has come to by its ledger, for the script's own loggers: with the first step, after each commit and
    after each epoch.

    `lost_s`: run time that was no training whose result was kept. `attempt` counts from 1. `epochs` have ended, the
    newest of which is durable only with the next commit; `usd_per_epoch` is None before the first.
    """

    cost_usd: float
    usd_per_epoch: float | None
    lost_s: float
    attempt: int
    epochs: int

    def metrics(self) -> dict[str, float]:
        """Under the names that they have everywhere."""
        figures = {"cost_usd": self.cost_usd, "lost_s": self.lost_s, "attempt": float(self.attempt)}
        return figures if self.usd_per_epoch is None else figures | {"usd_per_epoch": self.usd_per_epoch}


Message: TypeAlias = (
    Hello
    | FitBegins
    | ArenasWanted
    | Progress
    | FilesWanted
    | FilesFrozen
    | MoreFiles
    | SnapshotTaken
    | NotCarried
    | RoomWanted
    | EpochEnded
    | Refused
    | Finished
    | Resume
    | FilesReady
    | Arrived
    | Arenas
    | ArenaFree
    | SnapshotWanted
    | DrainWanted
    | Committed
    | FilesTorn
    | Figures
)


class _Line(msgspec.Struct, frozen=True):
    fds: int
    message: Message


class TrainerLink:
    """
    One end of the line. `send` may be called from any thread, `receive` from one at a time.

    It owns the socket. Descriptors that `receive` hands out belong to the caller; those given to `send` stay the
    sender's.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unread = bytearray()
        self._fds: deque[int] = deque()
        self._decoder = msgspec.json.Decoder(_Line)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """
        Raises:
            LinkClosed: the other end is gone, or has read nothing for a minute.
        """
        line = msgspec.json.encode(_Line(len(fds), message)) + b"\n"
        assert len(line) <= LINE_MAX_BYTES
        assert len(fds) <= FDS_MAX
        deadline = time.monotonic() + SEND_TIMEOUT_S
        with self._sending:
            sent = self._send_some(line, fds, deadline)
            while sent < len(line):
                sent += self._send_some(line[sent:], (), deadline)

    def _send_some(self, data: bytes, fds: Sequence[int], deadline: float) -> int:
        while True:
            try:
                if fds:
                    return socket.send_fds(self._sock, [data], list(fds), socket.MSG_DONTWAIT)
                return self._sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not self._ready(select.POLLOUT, deadline - time.monotonic()):
                    raise LinkClosed(f"the other end has read nothing for {SEND_TIMEOUT_S:.0f} s") from None
            except (OSError, ValueError) as error:
                raise LinkClosed(str(error)) from error

    def receive(self, timeout_s: float | None) -> tuple[Message, list[int]] | None:
        """
        The next message and its file descriptors; None when none came in time. A timeout of None waits for ever, 0
        not at all.

        Raises:
            LinkClosed: the other end is gone.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if (line := self._take_line()) is not None:
                return self._decode(line)
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._ready(select.POLLIN, wait_s):
                return None
            self._read()

    def close(self) -> None:
        """Idempotent. A thread that waits in `receive` gets LinkClosed."""
        with contextlib.suppress(OSError):  # the other end went first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def leave_to_parent(self) -> None:
        """In a forked child: close this copy of the socket without ending the conversation."""
        self._sock.close()

    def _ready(self, event: int, wait_s: float | None) -> bool:
        poll = select.poll()
        try:
            poll.register(self._sock, event)
        except ValueError as error:
            raise LinkClosed("the link was closed here") from error
        return bool(poll.poll(None if wait_s is None else max(0.0, wait_s) * 1000))

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK_BYTES, FDS_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            raise LinkClosed(str(error)) from error
        self._fds.extend(fds)
        if not data:
            raise LinkClosed("the other end closed the link")
        self._unread += data
        if len(self._unread) > LINE_MAX_BYTES + _CHUNK_BYTES:
            raise LinkClosed(f"a line of more than {LINE_MAX_BYTES} bytes")

    def _take_line(self) -> bytes | None:
        end = self._unread.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _decode(self, line: bytes) -> tuple[Message, list[int]]:
        try:
            decoded = self._decoder.decode(line)
            return decoded.message, [self._fds.popleft() for _ in range(decoded.fds)]
        except (msgspec.DecodeError, IndexError) as error:
            raise LinkClosed(f"not a message: {line[:200]!r}") from error


def pair() -> tuple[TrainerLink, socket.socket]:
    """
    The agent's link, and the socket that the trainer inherits (pass its number in `pass_fds` and in
    `SPOTRUN_AGENT_FD`).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return TrainerLink(ours), theirs


def from_environment() -> TrainerLink | None:
    """
    The trainer's link, where an agent started this process; None elsewhere. Only one caller gets it: from then on, this
    process and its children have no agent.

    Raises:
        LinkLost: the variable was inherited and the descriptor was not.
    """
    number = os.environ.get(AGENT_FD)
    if number is None or number == TAKEN:
        return None
    try:
        sock = socket.socket(fileno=int(number))
    except (OSError, ValueError) as error:
        raise LinkLost from error
    if sock.family is not socket.AF_UNIX:
        sock.detach()
        raise LinkLost
    sock.set_inheritable(False)
    os.environ[AGENT_FD] = TAKEN
    return TrainerLink(sock)
