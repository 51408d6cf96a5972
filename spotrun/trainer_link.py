"""
Defines the messages that the agent and its trainer exchange on a socket.

The socket is a Unix stream socket. Its path is in the environment variable `SPOTRUN_AGENT`, which all child processes
inherit. So a trainer finds its agent even if the agent did not start it directly. A message is one JSON object on one
line.

File descriptors are sent together with a message (SCM_RIGHTS): the descriptors of arenas, and the descriptor of a
checkpoint to resume from. The line of the message says how many descriptors belong to it. A receiver needs this number
because one read may return parts of several messages, together with the descriptors of all of them.

The code on the trainer's side needs only the standard library.

    trainer                                   agent
    (connects)                  <-            Welcome | TurnedAway
    Hello                       ->
                                <-            Resume (+ the checkpoint's memory, if there is one), Arrived
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
Prefix that the value of `SPOTRUN_AGENT` gets once a training is linked to the agent. Processes that the training starts
later see the prefix, and do not try to link themselves.
"""
GANG = "SPOTRUN_GANG"
"""
Environment variable that identifies the gang of a trainer by four values: the run, the attempt, the incarnation (which
counts the starts of trainers in the attempt) and the world (the number of processes). Once the trainers have connected
to each other, they check that all of them have the same values.
"""
RANKS_SECRET = "SPOTRUN_RANKS_SECRET"
"""
Environment variable with a secret that all processes of a training share. No other process on the machine or in the
network knows it. The name contains SECRET. For this reason, spotrun replaces the value with stars in the output of a
training.
"""
WORK = "SPOTRUN_MEMBER_WORK"
"""
Environment variable with the work folder of a gang member other than the lead, whose files no checkpoint contains. On
the lead, it is empty.
"""
VIRTUAL_RANKS = "SPOTRUN_VIRTUAL_RANKS"
"""
Environment variable with the number of virtual ranks of a training whose number of processes may change (the job's
`elastic`).
"""
ANSWERS_WITHIN_S = 60.0
WITHOUT = f"to train without checkpoints, put env -u {AGENT} before the command"

SEED = 0
"""The seed of the data order. It is the same in every run, so a job trains identically on spot and on demand."""

LINE_MAX_BYTES = 1 << 20
SEND_TIMEOUT_S = 60.0
"""Maximum seconds to wait for the other end to read part of a message. After that, the other end counts as gone."""

FDS_MAX = 16
_CHUNK_BYTES = 1 << 16


class LinkClosed(Exception):
    """
    Raised if the other end of a link is gone, or does not speak this protocol. Nothing more can be sent or received.
    """


class LinkLost(Exception):
    """Raised if the environment names an agent's address, but no agent can be reached there. `hint` says what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The agent's first message to a process that it accepts as the trainer of its command."""


@dataclass(frozen=True, kw_only=True)
class TurnedAway:
    """The agent's first message to a process that it does not accept as a trainer. It is sent instead of `Welcome`."""

    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The trainer's first message. `framework` is the package and its version, such as `pytorch_lightning 2.6.6`."""

    pid: int
    framework: str
    torch: str
    python: str


@dataclass(frozen=True, kw_only=True)
class FitBegins:
    """
    The trainer's report that the script calls fit() again. `fit` is the number of this call, counted from 1. The
    trainer then waits for the `Resume` for this call.
    """

    fit: int


@dataclass(frozen=True, kw_only=True)
class ArenasWanted:
    """
    The trainer's request for arenas of `size_bytes`, the size of a snapshot. The trainer sends it again if the state
    has grown.
    """

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """
    The position of the training. `epoch` is the number of the current epoch, counted from 0. It has `batches`
    batches, of which `batch` are done. `step` is Lightning's `global_step`.

    `epochs` is `max_epochs`. `epochs` and `batches` are 0 if they are unknown. Metrics that are not finite are left
    out. `data_s` is the system time, in seconds, that this process has spent waiting for training data. `samples`
    counts the samples of this epoch so far, over all processes of the training; it is 0 if unknown.
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
    The trainer's request to restore the work folder as it was at the checkpoint. The trainer sends it just before the
    training continues.

    `open` are the files that processes of the training have open for writing. The agent overwrites these files in
    place. If it replaced them with new files, the processes would continue to write to the old ones.
    """

    open: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FilesFrozen:
    """
    The files of the work folder as they were between two steps (spotrun/folder/frozen_files.py). They belong to the
    next snapshot, whose `SnapshotTaken.files` equals this message's `number`.

    The first file descriptor is for memory that holds the small files and an index of all files. The index begins at
    `index_at` and is `index_bytes` long. `descriptors` is the number of further file descriptors. If there are too many
    for one message, the others follow in `MoreFiles` messages.
    """

    number: int
    index_at: int
    index_bytes: int
    descriptors: int


@dataclass(frozen=True, kw_only=True)
class MoreFiles:
    """Further file descriptors that belong to the newest `FilesFrozen`."""


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken:
    """
    The trainer's report that arena `arena` holds a checkpoint image of `size_bytes`. From now on, the arena belongs to
    the agent, until the agent sends `ArenaFree`.

    The image is the state of the training after `batch` batches of epoch `epoch`. If `epoch_ended` is True, it is the
    state after the whole epoch, including the validation and everything else that is done at the end of an epoch. `fit`
    counts the calls of fit() from 1; `epoch` and `step` are counted across all calls. `files` is the number of the
    `FilesFrozen` that belongs to this snapshot.

    `final` is True if this process will train no further step. `stall_s` is the system time, in seconds, for which
    training paused for the snapshot. `finite` is False if the loss or a parameter is NaN or infinite.
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
    The trainer's report that the snapshot of `step` lacks some state of the script, because checkpoints cannot contain
    it. `places` has a pair for each object with such state: its path in the script, and its kind. Each object is
    reported at most once in each fit().
    """

    step: int
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class RoomWanted:
    """The trainer's report that training has paused before its last snapshot, until an arena is free."""


@dataclass(frozen=True, kw_only=True)
class EpochEnded:
    """
    The trainer's report that epoch `epoch` (counted from 0) has ended, including its validation. `step` is its last
    step.
    """

    epoch: int
    step: int
    batches: int
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """
    The trainer's report that this training cannot resume from the checkpoint, or that a later resume of it would not be
    exact. After this message, the trainer ends with an error.
    """

    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """
    The trainer's report that `fit()` is done and its final snapshot was taken. `resumed` is True if an earlier process
    took that snapshot. This process then only resumed from it, without training.
    """

    step: int
    epoch: int
    resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class FilesRule:
    """
    The rule that defines which files belong to a checkpoint: the files below `work` that the script has written or
    changed, and that match no pattern of `exclude`. `before` is the path of a file that lists the work folder's files
    at the script's start. `put_back` is True if the checkpoint to resume from contains files, which the agent has to
    restore.
    """

    work: str
    before: str
    exclude: tuple[str, ...]
    put_back: bool = False


@dataclass(frozen=True, kw_only=True)
class Resume:
    """
    The agent's instruction to begin training, from a checkpoint or from scratch.

    If there is a checkpoint, `size_bytes` is greater than 0, and the message comes with a file descriptor of the memory
    that holds the checkpoint's image, from offset `start` on. The agent may still be fetching the image: only its first
    `here_bytes` bytes have arrived. From the second `fit` on, the image is always complete.

    `seed` must be the same in every attempt of a run. If `every_steps` is given, the trainer takes a snapshot after
    every `every_steps` optimizer steps. If `files` is None, checkpoints contain no files. `epoch` and `step` are
    counted across all calls of fit(): a fit() that begins from scratch continues the counts of the previous fit().

    `exact` is the job's `checkpoint.exact`. With "require", training ends with an error as soon as state changes that a
    checkpoint cannot contain. Unless it is "off", a loop whose local variables a resume would not restore is refused
    before its first step.
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
    exact: str = "tell"


@dataclass(frozen=True, kw_only=True)
class FilesReady:
    """
    The answer to `FilesWanted`. Without a `problem`, the work folder is as it was at the checkpoint. With a `problem`,
    it is not, and training must not begin.
    """

    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """The agent's report that the first `size_bytes` of the image have been fetched, and match the commit."""

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Arenas:
    """
    The answer to `ArenasWanted`. The arenas are numbered `first`, `first + 1`, and so on. Each has `size_bytes`. They
    begin at the offsets `starts` in the memory whose file descriptor comes with the message.

    They replace all earlier arenas. Arena `first` is free immediately. Each of the others is free once an `ArenaFree`
    names it.
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
    """The agent's instruction to take a final snapshot at the end of the current step, and to train no further step."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Committed:
    """
    The agent's report that the snapshot of `step` is committed. Its files are those of the `FilesFrozen` whose `number`
    is `files`.
    """

    step: int
    files: int | None = None


@dataclass(frozen=True, kw_only=True)
class FilesTorn:
    """
    The agent's report that it lacks the content of these files. Either the script wrote to a file while the agent was
    still reading it, or the agent never had the file. The trainer has to include copies of these files in the next
    snapshot. It copies them between two steps, when nothing is written.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """
    The cost and progress of the run according to its ledger, for the script's own loggers. The agent sends them at the
    first step, after each commit and after each epoch.

    `lost_s` is the run time without productive training. `attempt` counts from 1. `epochs` is the number of completed
    epochs, of which the newest is lost if the machine is lost before the next commit. `usd_per_epoch` is None until
    the first epoch is completed.
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
    One end of the link. Any thread may call `send`, but only one thread at a time may call `receive`.

    The link owns the socket. File descriptors that `receive` returns belong to the caller, who has to close them. File
    descriptors that are given to `send` still belong to the sender.
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
        Return the next message and its file descriptors; None if no message arrives in time. If `timeout_s` is None,
        wait without a limit; if it is 0, do not wait.

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
        """Close the link. This may be called repeatedly. A thread that waits in `receive` gets LinkClosed."""
        with contextlib.suppress(OSError):  # the other end was closed first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def leave_to_parent(self) -> None:
        """Close this process's copy of the socket, after a fork. The link of the parent process stays open."""
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
    Return the link of this training to its agent. Return None if there is no agent, which means that an agent started
    neither this process nor any of its ancestors.

    Only the first call returns the link. Later calls in this process or in its child processes return None, as if there
    were no agent.

    Raises:
        LinkLost: no agent listens at the address in `SPOTRUN_AGENT`, or the agent refuses this process.
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
