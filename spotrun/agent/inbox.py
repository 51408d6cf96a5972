"""Letters: reports from the agent's other threads to its main loop. The threads only report; the main loop acts."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from datetime import datetime

from spotrun.agent.snapshots.frozen import Descriptors, Frozen
from spotrun.run.gang import MemberName
from spotrun.trainer_link import Message

TURN_S = 0.1
"""Maximum system seconds for which the main loop waits for a letter."""


class PowerOff(Exception):
    """
    The agent's work on this instance is over. The agent has to end the trainer, ship the log, and exit with code 0.
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
    `ended_well`: it exited with code 0, or it handled SIGTERM and then ended.
    """

    incarnation: int
    exit_code: int
    at: datetime
    ended_well: bool = False


@dataclass(frozen=True)
class CameTooLate:
    """
    Process `pid` of the command wanted to begin a training after process `leader` had begun one, and was refused.
    `alone`: the leader has ended, so the two processes never trained at the same time.
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
    """The metadata service gives no readable answer. So the agent cannot receive notices."""

    reason: str


@dataclass(frozen=True)
class LedgerRead:
    """
    Another process has written to the ledger. The recorder has the newest state.

    The letter contains no state, because a standby may take over while the letter waits in the inbox.
    """


@dataclass(frozen=True)
class LedgerLost:
    """This agent may no longer write to the ledger (it is fenced), or cannot write to it (the ledger is damaged)."""

    reason: str


@dataclass(frozen=True)
class Saved:
    """
    A snapshot became commit `commit`. It took `took_s` run seconds to upload, verify and record it. If its image was
    not sent whole, `digest` is the image's digest (`unchanged.digest`).
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
    A command's state contains a part that may not be stored, for example a secret. Until the state changes, every try
    fails.
    """

    sequence: int
    reason: str


@dataclass(frozen=True)
class StateSpread:
    """Another member of the gang has written state files that the lead lacks."""

    sequence: int
    reason: str


@dataclass(frozen=True)
class MemberUnheard:
    """A member of the gang does not give the lead an answer that a checkpoint needs."""

    sequence: int
    name: MemberName


@dataclass(frozen=True)
class StateFrozen:
    """
    The state of command `incarnation` was at rest, and `state` is a copy of it, made at the time `at`. `is_last`: the
    command has ended. `state` is None if nothing has changed since the newest checkpoint, or if no copy could be made.
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
    """The store now has the common part of the snapshot in flight, which is the part that both arenas share."""

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
    | StateSpread
    | MemberUnheard
    | StateFrozen
    | SaveRefused
    | EntryUnwritten
    | SaveAbandoned
    | CommonPartSent
)
Inbox = queue.SimpleQueue[Letter]


def forget(inbox: Inbox, incarnation: int) -> None:
    """Wait for the end of a killed trainer, and drop its messages. Keep all other letters."""
    kept: list[Letter] = []
    while True:
        letter = inbox.get()
        if isinstance(letter, Exited) and letter.incarnation == incarnation:
            break
        if not (isinstance(letter, TrainerMessage | CameTooLate | Stranger) and letter.incarnation == incarnation):
            kept.append(letter)
    for letter in kept:
        inbox.put(letter)
