"""The trainers of one attempt: one after another, the first of them perhaps started before the takeover."""

from __future__ import annotations

from spotrun.agent.node import Node
from spotrun.agent.snapshots import Snapshot
from spotrun.agent.trainer import KILL_WITHIN_S, Trainer
from spotrun.agent.trainer_process import TrainerProcess, start_trainer


class Trainers:
    """`spare` was started before the takeover and waits in its set-up."""

    def __init__(self, node: Node, spare: TrainerProcess | None = None) -> None:
        self._node = node
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
        process = self._taken_spare(incarnation) or start_trainer(self._node, incarnation)
        self._current = Trainer(self._node, process)
        return self._current

    def _taken_spare(self, incarnation: int) -> TrainerProcess | None:
        spare, self._spare = self._spare, None
        if spare is not None and spare.incarnation != incarnation:
            spare.kill()
            return None
        return spare

    def spend(self, snapshot: Snapshot) -> None:
        """The saver is done with what an arena has in common with the other one."""
        if snapshot.incarnation == self.current.number and snapshot.arena is not None:
            self.current.spend(snapshot.arena)

    def release(self, snapshot: Snapshot) -> None:
        """The saver is done with an arena, and with the files beside it."""
        snapshot.close_files()
        if snapshot.arena is None:
            return
        if snapshot.incarnation == self.current.number:
            self.current.release(snapshot.arena)
        else:
            snapshot.arena.close()

    def close(self, within_s: float = KILL_WITHIN_S) -> None:
        """End them, with all that they started; wait for that for so much system time at most."""
        if self._current is not None:
            self._current.kill(within_s)
        if self._spare is not None:
            self._spare.kill()
