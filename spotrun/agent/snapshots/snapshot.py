"""Snapshots that a trainer has taken, and the run time that they cost."""

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
    A snapshot that a trainer has taken. It is a full arena; if files belong to the snapshot, it also has the work
    folder at the same step boundary (`frozen`). A command's snapshot has no arena, and its files are the command's
    state.

    `sequence` counts a trainer's snapshots. `stalled_s` is the run time for which the trainer has paused for snapshots,
    including this one.
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
        """Number of bytes that have to be stored for this snapshot, as far as it is known."""
        return self.taken.size_bytes if self.state is None else self.state.changed_bytes

    def close_files(self) -> None:
        """Close the files, because they are stored or never will be."""
        if self.frozen is not None:
            self.frozen.close()

    @property
    def prefix(self) -> str:
        kind = "" if self.state is None else "state-"
        return f"{retention.FOLDER}{self.attempt}-{self.incarnation}-{kind}{self.sequence}"


class Stalls:
    """
    Computes the stall of each commit: all stalls since the previous commit, including stalls for snapshots that were
    dropped.

    The stall is computed when the snapshot becomes a commit, not when the snapshot is taken. When it is taken, an
    earlier snapshot may still be in flight, and it is unknown whether that one will become a commit.
    """

    def __init__(self) -> None:
        self._trainer = (-1, -1)
        self._accounted_s = 0.0

    def since(self, snapshot: Snapshot) -> float:
        """Return the run seconds of stalls between the trainer's last commit and `snapshot`."""
        known_s = self._accounted_s if self._trainer == (snapshot.attempt, snapshot.incarnation) else 0.0
        return snapshot.stalled_s - known_s

    def accounted(self, snapshot: Snapshot) -> None:
        """Record that the snapshot became a commit."""
        self._trainer, self._accounted_s = (snapshot.attempt, snapshot.incarnation), snapshot.stalled_s
