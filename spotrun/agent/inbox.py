"""Letters from the agent's threads to its main loop. The threads only report; the loop acts."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from datetime import datetime

from spotrun.agent.snapshots.frozen import Descriptors, Frozen
from spotrun.run.gang import MemberName
from spotrun.trainer_link import Message

TURN_S = 0.1
"""Maximum system seconds for which a main loop waits for a letter."""


class PowerOff(Exception):
    """The agent's work on this instance is over: end the trainer, ship the log, exit with 0."""


@dataclass(frozen=True)
class Said:
    """
    A message of trainer `incarnation` with its descriptors, and when it was read (`at_s` is monotonic run time).
    """

    incarnation: int
    message: Message
    at: datetime
    at_s: float
    descriptors: Descriptors = field(default_factory=Descriptors)


@dataclass(frozen=True)
class Exited:
    """
    Trainer `incarnation`, which ended `at` that time, and its whole process group are gone. All its messages are in the
    inbox already. `ended_well`: with exit code 0, or, after SIGTERM, as a program ends that has caught it.
    """

    incarnation: int
    exit_code: int
    at: datetime
    ended_well: bool = False


@dataclass(frozen=True)
class CameTooLate:
    """
    Process `pid` of the command wanted to lead its training as well, and was turned away. `alone`: the first, `leader`,
    has gone, so that no two train at once.
    """

    incarnation: int
    pid: int
    leader: int
    alone: bool


@dataclass(frozen=True)
class Stranger:
    """A process that does not belong to the trainer was turned away, and `why`."""

    incarnation: int
    why: str


@dataclass(frozen=True)
class NoticeHeard:
    """
    The metadata service announced the end of this instance (`termination`), or its possibility (`rebalance`).

    `deadline_s` is monotonic run time.
    """

    kind: str
    deadline_at: datetime | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class NoticesLost:
    """The metadata service gives no answer that can be read: the agent cannot receive notices."""

    reason: str


@dataclass(frozen=True)
class LedgerRead:
    """
    Another process has written to the ledger: the recorder has its newest state.

    The letter has none: one that waited here while a standby took over would be of a run that goes on elsewhere.
    """


@dataclass(frozen=True)
class LedgerLost:
    """This agent may not, or cannot, write to the ledger any more: it was fenced, or the ledger is damaged."""

    reason: str


@dataclass(frozen=True)
class Saved:
    """
    A snapshot became commit `commit`. Uploading, verifying and recording it took `took_s` of run time. `digest` is of
    its image (`unchanged.digest`) if that was not sent whole.
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
    """Files of a snapshot were written to before they were read: another snapshot has to have copies of `paths`."""

    sequence: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class SaveGivenUp:
    """A command's state holds what may not be stored, like a secret. Until that changes, another try does not help."""

    sequence: int
    reason: str


@dataclass(frozen=True)
class StateSpread:
    """Another member of the gang has written files of the command's state that the lead does not have."""

    sequence: int
    reason: str


@dataclass(frozen=True)
class MemberUnheard:
    """A member of the gang does not answer the lead, which needs the answer before it makes a checkpoint."""

    sequence: int
    name: MemberName


@dataclass(frozen=True)
class StateFrozen:
    """
    The state of command `incarnation` was at rest, and `state` is a copy of it, made at `at`. `is_last`: it has ended.
    `state` is None if nothing has changed since the newest checkpoint, or no copy could be made.
    """

    incarnation: int
    state: Frozen | None
    at: datetime
    at_s: float
    is_last: bool


@dataclass(frozen=True)
class SaveRefused:
    """The store takes no writes: the snapshot of `size_bytes` is kept, and saved once the store has room again."""

    sequence: int
    step: int
    size_bytes: int
    detail: str


@dataclass(frozen=True)
class EntryUnwritten:
    """The store takes no writes: an entry of the ledger waits until the store has room again."""

    detail: str


@dataclass(frozen=True)
class SaveAbandoned:
    sequence: int


@dataclass(frozen=True)
class CommonPartSent:
    """The store holds that part of a snapshot being sent which its arena has in common with the other one."""

    sequence: int


Letter = (
    Said
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
    """Drop the messages of a killed trainer, and wait for its end. All other letters are kept."""
    kept: list[Letter] = []
    while True:
        letter = inbox.get()
        if isinstance(letter, Exited) and letter.incarnation == incarnation:
            break
        if not (isinstance(letter, Said | CameTooLate | Stranger) and letter.incarnation == incarnation):
            kept.append(letter)
    for letter in kept:
        inbox.put(letter)
