"""
Links the agent and the trainer process that the agent started, by messages on a socket.

The Unix stream socket's path is in `SPOTRUN_AGENT`, so a training finds its agent whichever program started the
training. A message is one JSON object on a line. File descriptors (arenas, a checkpoint to resume from) are sent with
the message (SCM_RIGHTS), and the line states their number. So each descriptor is matched with its message, however the
stream is split into reads. The trainer's end needs only the standard library.

    trainer                                   agent
    (connects)                  <-            Welcome | TurnedAway
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
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from spotrun.wire import plain, unix_path

AGENT = "SPOTRUN_AGENT"
TAKEN = "taken:"
"""
The prefix that `SPOTRUN_AGENT` gets once a training has its link, so that processes it starts later have no agent.
"""
GANG = "SPOTRUN_GANG"
"""
The run, attempt, incarnation and world of a gang's trainers. The trainers compare this text after their rendezvous.
"""
RANKS_SECRET = "SPOTRUN_RANKS_SECRET"
"""
The variable with the secret that all processes of a training share, and that no other process of the machine or the
network knows. Its name contains SECRET, so that spotrun replaces the value by stars in the output of a training.
"""
WORK = "SPOTRUN_MEMBER_WORK"
"""The work folder of a gang member that is not the leader. No checkpoint contains its files."""
ANSWERS_WITHIN_S = 60.0
WITHOUT = f"to train without checkpoints, put env -u {AGENT} before the command"

SEED = 0
"""The seed of the data order. It is the same in every run, so a job trains identically on spot and on demand."""

LINE_MAX_BYTES = 1 << 20
SEND_TIMEOUT_S = 60.0
"""Seconds after which a peer counts as gone if it has read nothing."""

FDS_MAX = 16
_CHUNK_BYTES = 1 << 16


class LinkClosed(Exception):
    """The other end is gone, or does not speak this protocol. Nothing more can be sent or received."""


class LinkLost(Exception):
    """The environment names an agent that cannot be reached; `hint` says what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The agent's first message: this process leads the training of its command."""


@dataclass(frozen=True, kw_only=True)
class TurnedAway:
    """The agent's first message instead of `Welcome`: the agent does not serve this process."""

    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The trainer's first message. `framework` is the package and its version, `pytorch_lightning 2.6.6`."""

    pid: int
    framework: str
    torch: str
    python: str


@dataclass(frozen=True, kw_only=True)
class FitBegins:
    """The process calls fit() again (call number `fit`, from 1), and waits for the `Resume` of that call."""

    fit: int


@dataclass(frozen=True, kw_only=True)
class ArenasWanted:
    """
    Requests arenas of `size_bytes`, the size of a snapshot. The trainer sends this again when the state has grown.
    """

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """
    The position of training. `epoch` counts from 0; `batch` of its `batches` are done; `step` is Lightning's
    `global_step`.

    `epochs` is `max_epochs`; `epochs` and `batches` are 0 if unknown. Metrics that are not finite are left out.
    `data_s` are the system seconds for which this process has waited for its training data so far. `samples` counts the
    samples of this epoch so far, over all processes of the training; 0 if unknown.
    """

    epoch: int
    batch: int
    batches: int
    step: int
    epochs: int
    phase: Literal["train", "validate"]
    metrics: dict[str, float] = field(default_factory=dict)
    data_s: float = 0.0
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class FilesWanted:
    """
    Requests that the agent restore the work folder as it was at the checkpoint, because training is about to continue.
    Processes of the training have the files in `open` open for writing, so the agent overwrites these files in place
    instead of replacing them.
    """

    open: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FilesFrozen:
    """
    The work folder as it was at a step boundary: that of the next `SnapshotTaken` whose `files` equals `number`
    (spotrun/folder/frozen_files.py). The first descriptor is the memory that holds the frozen files. The index in this
    memory begins at `index_at` and has `index_bytes`. `descriptors` more come with this message and with `MoreFiles`.
    """

    number: int
    index_at: int
    index_bytes: int
    descriptors: int


@dataclass(frozen=True, kw_only=True)
class MoreFiles:
    """More descriptors of the newest `FilesFrozen`."""


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken:
    """
    Arena `arena` holds a checkpoint image of `size_bytes` and belongs to the agent until `ArenaFree`.

    The image contains `batch` batches of `epoch`. With `epoch_ended` it contains the whole epoch, including its
    validation and its other end-of-epoch work. `final`: this process trains no further step. `stall_s`: system seconds
    for which the snapshot stopped training. `finite` is False if the loss or a parameter is NaN or infinite. `files` is
    the number of the `FilesFrozen` sent before. `fit` counts the calls of fit() from 1; `epoch` and `step` are counted
    over all calls.
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
    metrics: dict[str, float] = field(default_factory=dict)
    files: int | None = None
    fit: int = 1


@dataclass(frozen=True, kw_only=True)
class NotCarried:
    """
    The snapshot of `step` lacks the state at `places`, because no image can hold it. A place is a pair of its name in
    the script and its kind. A fit() reports each place once.
    """

    step: int
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class RoomWanted:
    """Training waits to take its last snapshot, because no arena is free."""


@dataclass(frozen=True, kw_only=True)
class EpochEnded:
    """Epoch `epoch` (from 0) has ended, including its validation; `step` is its last step."""

    epoch: int
    step: int
    batches: int
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """This training cannot be resumed, or only inexactly. The trainer process then ends with an error."""

    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """`fit()` is done, and the final snapshot was taken. `resumed`: this process resumed from the final snapshot."""

    step: int
    epoch: int
    resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class FilesRule:
    """
    The rule for the files that belong to a checkpoint: files below `work` that differ from the list in the file
    `before` and match no pattern of `exclude`. `put_back` is True if the checkpoint to resume from has files.
    """

    work: str
    before: str
    exclude: tuple[str, ...]
    put_back: bool = False


@dataclass(frozen=True, kw_only=True)
class Resume:
    """
    The checkpoint or position that training begins at. If `size_bytes` > 0, a file descriptor comes with the message:
    memory that holds a checkpoint image from `start` on, or only its first `here_bytes` if it is still being fetched.

    `seed` must be the same in every attempt of a run. `every_steps` requests a snapshot each time that many optimizer
    steps are done. If `files` is None, no files belong to checkpoints. `epoch` and `step` are counted over all fits; a
    fit() that begins from scratch continues from their values at the end of the previous fit(). From the second `fit`
    on, the image has been fetched completely. With `exact`, training ends with an error if state has changed that an
    image cannot hold.
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


@dataclass(frozen=True, kw_only=True)
class FilesReady:
    """The work folder is as it was at the checkpoint; or, with a `problem`, it is not, and training must not begin."""

    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """The first `size_bytes` of the image are in memory and were verified to be the committed bytes."""

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Arenas:
    """
    The arenas `first`, `first + 1`, …, of `size_bytes` each, begin at the offsets `starts` in the memory whose
    descriptor comes with the message. They replace earlier arenas. `first` is free immediately; the others are free
    once an `ArenaFree` names them.
    """

    size_bytes: int
    starts: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class ArenaFree:
    arena: int


Why: TypeAlias = Literal["interval", "rebalance", "epoch"]
"""The reason why the agent requests a snapshot."""


@dataclass(frozen=True, kw_only=True)
class SnapshotWanted:
    why: Why


@dataclass(frozen=True, kw_only=True)
class DrainWanted:
    """The trainer has to take a final snapshot at the next step boundary, and train no further step."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The snapshot of `step` is committed, with the files of the `FilesFrozen` number `files`."""

    step: int
    files: int | None = None


@dataclass(frozen=True, kw_only=True)
class FilesTorn:
    """
    The agent lacks the content of these files: the script wrote to them before the agent had read them, or the agent
    never had them. The next snapshot must include copies of them, made at its step boundary.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """
    The figures of the run according to its ledger, for the script's own loggers. The agent sends them with the first
    step, after each commit and after each epoch.

    `lost_s` is the run time without productive training. `attempt` counts from 1. `epochs` is the number of ended
    epochs; the newest is durable only with the next commit. `usd_per_epoch` is None until the first epoch has ended.
    """

    cost_usd: float
    usd_per_epoch: float | None
    lost_s: float
    attempt: int
    epochs: int

    def metrics(self) -> dict[str, float]:
        figures = {"cost_usd": self.cost_usd, "lost_s": self.lost_s, "attempt": float(self.attempt)}
        return figures if self.usd_per_epoch is None else figures | {"usd_per_epoch": self.usd_per_epoch}


Message: TypeAlias = (
    Welcome
    | TurnedAway
    | Hello
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


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Message)}


def _encoded(message: Message, fds: int) -> bytes:
    line = {"fds": fds, "message": {"type": type(message).__name__, **vars(message)}}
    return json.dumps(line, separators=(",", ":"), default=vars).encode() + b"\n"


def _decoded(line: bytes) -> tuple[Message, int]:
    """
    Decode a line into its message and the number of its file descriptors.

    Raises:
        ValueError: the line is not a message.
    """
    try:
        read = json.loads(line)
        message, fds = read["message"], read["fds"]
        found: Message = plain.typed(_KINDS[message["type"]], message)
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return found, plain.typed(int, fds)


class TrainerLink:
    """
    One end of the link. Any thread may call `send`; only one thread at a time may call `receive`.

    The link owns the socket. Descriptors that `receive` returns belong to the caller; descriptors given to `send` stay
    with the sender.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unread = bytearray()
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """
        Send a message and its file descriptors.

        Raises:
            LinkClosed: the other end is gone, or has read nothing for SEND_TIMEOUT_S.
        """
        line = _encoded(message, len(fds))
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
        Return the next message and its file descriptors; None if no message came in time. A timeout of None waits
        without limit, and 0 does not wait.

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
        """Close the link. Idempotent. A thread that waits in `receive` gets LinkClosed."""
        with contextlib.suppress(OSError):  # the other end was closed first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def leave_to_parent(self) -> None:
        """Close this copy of the socket in a forked child; the parent's link stays open."""
        self._sock.close()

    def _ready(self, event: int, wait_s: float | None) -> bool:
        poll = select.poll()
        try:
            poll.register(self._sock, event)
        except ValueError as error:
            raise LinkClosed("this end closed the link") from error
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
            message, fds = _decoded(line)
            return message, [self._fds.popleft() for _ in range(fds)]
        except (ValueError, IndexError) as error:
            raise LinkClosed(f"not a message: {line[:200]!r}") from error


def from_environment() -> TrainerLink | None:
    """
    Return the trainer's link if an agent started this process or an ancestor; else None. Only the first caller gets the
    link: from then on, this process and its children have no agent.

    Raises:
        LinkLost: no agent listens at the address in `SPOTRUN_AGENT`, or the agent turns this process away.
    """
    address = os.environ.get(AGENT, "")
    if not address or address.startswith(TAKEN):
        return None
    link = _connected(address)
    os.environ[AGENT] = TAKEN + address
    return link


def _connected(address: str) -> TrainerLink:
    try:
        link = TrainerLink(unix_path.connect(address, ANSWERS_WITHIN_S))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LinkLost(f"no agent listens at {AGENT}={address} ({reason})", _HINT) from error
    try:
        answer = link.receive(ANSWERS_WITHIN_S)
    except LinkClosed as error:
        raise LinkLost(f"the agent of {AGENT}={address} has gone", _HINT) from error
    if answer is not None and isinstance(answer[0], Welcome):
        return link
    link.close()
    if answer is not None and isinstance(answer[0], TurnedAway):
        raise LinkLost(answer[0].reason, answer[0].hint)
    raise LinkLost(f"the program that listens at {AGENT}={address} is not an agent", _HINT)


_HINT = f"start the training with `spotrun launch`, which sets {AGENT}, and never set it yourself; or {WITHOUT}"
