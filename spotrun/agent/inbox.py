"""Letters: reports from the agent's other threads to its main loop. The threads only report; the main loop acts."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from datetime import datetime

from spotrun.agent.snapshots.frozen import Descriptors, Frozen
from spotrun.run.gang import MemberName
from spotrun.trainer_link import Message

TURN_S = 0.1
"""Maximum seconds of system time for which the main loop waits for a letter."""


class PowerOff(Exception):
    """
    The agent's work on this instance is done. The agent has to end the trainer, upload the log, and exit with code 0.
    """


@dataclass(frozen=True)
class TrainerMessage:
    """
    A message from trainer `incarnation`, with the file descriptors that came with it. It was read at `at_s`, in
    monotonic run time.
    """

    incarnation: int
    message: Message
    at: datetime
    at_s: float
    descriptors: Descriptors = field(default_factory=Descriptors)


@dataclass(frozen=True)
class Exited:
    """
    Trainer `incarnation` ended at `at`, and no process of its group is left. All its messages are already in the inbox.
    `ended_well` is True if it exited with code 0, or handled SIGTERM and then ended.
    """

    incarnation: int
    exit_code: int
    at: datetime
    ended_well: bool = False


@dataclass(frozen=True)
class CameTooLate:
    """
    A second process of the command wanted to begin a training, and was refused, because process `leader` had already
    begun one. `pid` is the second process. `alone` is True if the leader had already ended: then the two would not have
    trained at the same time.
    """

    incarnation: int
    pid: int
    leader: int
    alone: bool


@dataclass(frozen=True)
class Stranger:
    """A process that does not belong to the trainer tried to connect, and was refused for the reason `why`."""

    incarnation: int
    why: str


@dataclass(frozen=True)
class NoticeHeard:
    """
    The metadata service announced that this instance will end (`termination`), or that it might end (`rebalance`).
    `deadline_s` is monotonic run time.
    """

    kind: str
    deadline_at: datetime | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class NoticesLost:
    """The metadata service does not answer, or its answer cannot be read, so the agent cannot receive notices."""

    reason: str


@dataclass(frozen=True)
class LedgerRead:
    """
    Another process has written to the ledger, and the recorder has read it.

    The letter does not contain the run's state. The state may change while the letter waits in the inbox, for example
    if a standby takes over. So the code that handles the letter reads the newest state from the recorder.
    """


@dataclass(frozen=True)
class LedgerLost:
    """
    This agent can no longer write to the ledger, because its attempt is fenced, or because the ledger is damaged.
    """

    reason: str


@dataclass(frozen=True)
class Saved:
    """
    A snapshot became commit `commit`. It took `took_s` seconds of run time to upload, verify and record it. If only the
    changed parts of its image were sent, `digest` is the digest of the whole image (`unchanged.digest`).
    """

    sequence: int
    commit: int
    took_s: float
    digest: bytes | None = None


@dataclass(frozen=True)
class SaveFailed:
    sequence: int
    in_a_row: int
    detail: str


@dataclass(frozen=True)
class SaveTorn:
    """
    Files of a snapshot were changed before they could be read. The next snapshot needs copies of the files at `paths`.
    """

    sequence: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class SaveGivenUp:
    """
    A command's state contains something that must not be stored, for example a secret, or never stops changing. Every
    further try will fail until the state changes.
    """

    sequence: int
    reason: str


@dataclass(frozen=True)
class MemberUnheard:
    """A member of the gang did not send the lead an answer that a checkpoint needs."""

    sequence: int
    name: MemberName


@dataclass(frozen=True)
class StateFrozen:
    """
    The state of command `incarnation` was at rest, and `state` is a copy of it from the time `at`. `state` is None if
    nothing has changed since the newest checkpoint, or if no copy could be made. `is_last` is True if the command has
    ended; no later copy will follow.
    """

    incarnation: int
    state: Frozen | None
    at: datetime
    at_s: float
    is_last: bool


@dataclass(frozen=True)
class SaveRefused:
    """The store refused to save a snapshot of `size_bytes`. The snapshot is kept, and saved when the store has room."""

    sequence: int
    step: int
    size_bytes: int
    detail: str


@dataclass(frozen=True)
class EntryUnwritten:
    """The store refuses writes. An entry for the ledger waits until the store has room."""

    detail: str


@dataclass(frozen=True)
class SaveAbandoned:
    sequence: int


@dataclass(frozen=True)
class CommonPartSent:
    """
    The store now has the common part of the snapshot that is being uploaded. The two arenas share the memory of this
    part, so the trainer can take the next snapshot only after the part has been sent.
    """

    sequence: int


Letter = (
    TrainerMessage
    | Exited
    | CameTooLate
    | Stranger
    | NoticeHeard
    | NoticesLost
    | LedgerRead
    | LedgerLost
    | Saved
    | SaveFailed
    | SaveTorn
    | SaveGivenUp
    | MemberUnheard
    | StateFrozen
    | SaveRefused
    | EntryUnwritten
    | SaveAbandoned
    | CommonPartSent
)
Inbox = queue.SimpleQueue[Letter]


def forget(inbox: Inbox, incarnation: int) -> None:
    """
    Wait for the letter that says that a killed trainer has ended. Drop the letters about this trainer's messages and
    connections, because they no longer matter. Keep all other letters.
    """
    kept: list[Letter] = []
    while True:
        letter = inbox.get()
        if isinstance(letter, Exited) and letter.incarnation == incarnation:
            break
        if not (isinstance(letter, TrainerMessage | CameTooLate | Stranger) and letter.incarnation == incarnation):
            kept.append(letter)
    for letter in kept:
        inbox.put(letter)
