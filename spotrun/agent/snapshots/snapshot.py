"""Snapshots that a trainer has taken, and how long training paused for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spotrun.agent.snapshots.arenas import Arena
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.checkpoint import retention
from spotrun.trainer_link import SnapshotTaken


@dataclass(frozen=True)
class Snapshot:
    """
    A snapshot that a trainer has taken. `arena` holds the training's state. If the checkpoint includes files, `frozen`
    contains the files of the work folder at the same step boundary. The snapshot of a command has no arena; `frozen`
    contains the files of the command's state.

    `sequence` is the number of the snapshot among the trainer's snapshots, from 0. `stalled_s` is the run time for
    which the trainer has paused for snapshots so far, including this one.
    """

    attempt: int
    incarnation: int
    sequence: int
    arena: Arena | None
    taken: SnapshotTaken
    taken_at: datetime
    taken_s: float
    stalled_s: float
    why: str
    frozen: Frozen | None = None

    @property
    def state(self) -> Frozen | None:
        """The command's state; None if this is a snapshot of a training."""
        return self.frozen if self.frozen is not None and self.frozen.is_whole else None

    @property
    def unsent_bytes(self) -> int:
        """
        Number of bytes to send for this snapshot: for a training, the size of its arena's content (less will be sent if
        parts of it are unchanged); for a command, the size of the changed files.
        """
        return self.taken.size_bytes if self.state is None else self.state.changed_bytes

    def close_files(self) -> None:
        """Close the files. Call this when they are stored, or when the snapshot is dropped."""
        if self.frozen is not None:
            self.frozen.close()

    @property
    def prefix(self) -> str:
        kind = "" if self.state is None else "state-"
        return f"{retention.FOLDER}{self.attempt}-{self.incarnation}-{kind}{self.sequence}"


class Stalls:
    """
    Computes the stall of each commit: the total time for which the trainer paused for snapshots since the previous
    commit. Pauses for snapshots that were dropped are included.

    The stall can be computed only when a snapshot becomes a commit. When the snapshot is taken, an earlier snapshot may
    still be uploading, so it is unknown which commit will be the previous one.
    """

    def __init__(self) -> None:
        self._trainer = (-1, -1)
        self._accounted_s = 0.0

    def since(self, snapshot: Snapshot) -> float:
        """Return the stall from the last commit to `snapshot`, in seconds of run time."""
        known_s = self._accounted_s if self._trainer == (snapshot.attempt, snapshot.incarnation) else 0.0
        return snapshot.stalled_s - known_s

    def accounted(self, snapshot: Snapshot) -> None:
        """Record that the snapshot became a commit. The next commit's stall is measured from this snapshot on."""
        self._trainer, self._accounted_s = (snapshot.attempt, snapshot.incarnation), snapshot.stalled_s
