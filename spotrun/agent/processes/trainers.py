"""
Starts the trainers of one attempt. At any time only one of them trains, and the next one starts when it has ended.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.gang.rendezvous import Rendezvous
from spotrun.agent.processes.trainer import KILL_WITHIN_S, Newest, Trainer
from spotrun.agent.processes.trainer_process import TrainerProcess, start_trainer
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.run.gang import Meeting


class Trainers:
    """
    The trainers of an attempt. Only one runs at a time (`current`). `spare` is a trainer process that was started
    before the takeover: it has run the script up to the start of the training, and waits there.

    In a gang, `place` is this member's rendezvous. Call `arrange` before starting a trainer, to choose the address and
    port at which the gang's trainers connect to each other.
    """

    def __init__(
        self, context: AgentContext, spare: TrainerProcess | None = None, place: Rendezvous | None = None
    ) -> None:
        self._meet: Meeting | UnsetType = UNSET
        self._place = place
        self._context = context
        self._spare = spare
        self._current: Trainer | None = None

    @property
    def current(self) -> Trainer:
        assert self._current is not None
        return self._current

    @property
    def last_step(self) -> int:
        return 0 if self._current is None else self._current.last_step

    def start(self, incarnation: int) -> Trainer:
        meets = self._met_at(incarnation)
        process = self._taken_spare(incarnation)
        if process is None:
            process = start_trainer(self._context, incarnation, meets)
        process.meet(meets)
        self._current = Trainer(self._context, process, meets)
        return self._current

    def arrange(self) -> Meeting | UnsetType:
        """
        Choose the address and port at which the gang's next trainers connect to each other, and return them. In a run
        on one instance, return UNSET.
        """
        if self._place is not None:
            self._meet = self._place.new_meeting()
        return self._meet

    def _met_at(self, incarnation: int) -> dict[str, str]:
        """Return the variables with which trainer `incarnation` finds the other trainers of its gang."""
        if self._place is None or self._meet is UNSET:
            return {}
        return self._place.variables(incarnation, self._meet)

    def _taken_spare(self, incarnation: int) -> TrainerProcess | None:
        spare, self._spare = self._spare, None
        if spare is None or spare.become(incarnation):
            return spare
        spare.kill()
        return None

    def spend(self, snapshot: Snapshot) -> None:
        """
        Record that the saver no longer needs the memory that the snapshot's arena shares with the other arena. The
        trainer can then overwrite this memory.
        """
        if snapshot.incarnation == self.current.number and snapshot.arena is not None:
            self.current.spend(snapshot.arena)

    def release(self, snapshot: Snapshot) -> None:
        """Record that the saver no longer needs the snapshot: close its files, and free its arena for the trainer."""
        snapshot.close_files()
        if snapshot.arena is None:
            return
        if snapshot.incarnation == self.current.number:
            self.current.release(snapshot.arena)
        else:
            snapshot.arena.close()

    def take_newest(self) -> Newest | None:
        """Return the current trainer's newest commit and its arena. The caller then owns the file descriptor."""
        return None if self._current is None else self._current.take_newest()

    def forget(self) -> None:
        """
        Free the memory of the current trainer. Call this after the trainer has ended, when no snapshot is in flight.
        """
        if self._current is not None:
            self._current.close()

    def close(self, within_s: float = KILL_WITHIN_S) -> None:
        """
        End the trainers and all processes that they have started. Wait at most `within_s` seconds of system time for
        their end.
        """
        if self._current is not None:
            self._current.kill(within_s)
        if self._spare is not None:
            self._spare.kill()
