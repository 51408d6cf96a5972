"""State that the turns of one attempt share, from its takeover on. Only the main loop uses it."""

from __future__ import annotations

from typing import NamedTuple

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.drain import Drain
from spotrun.agent.ending import Ending
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.outputs import OutputKeeper
from spotrun.agent.gang_watch import GangWatch
from spotrun.agent.node import Node
from spotrun.agent.pace import Pace
from spotrun.agent.saver import Saver
from spotrun.agent.state_keeper import StateKeeper
from spotrun.agent.trainer import Trainer
from spotrun.agent.trainers import Trainers
from spotrun.run.state import RunState


class Parts(NamedTuple):
    node: Node
    trainers: Trainers
    journal: AttemptJournal
    files: CommitFiles
    saver: Saver
    drain: Drain
    pace: Pace
    keeper: StateKeeper
    outputs: OutputKeeper
    ending: Ending
    gang: GangWatch | None = None


class OfAttempt:
    """Base of the classes that act on these parts."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts.node
        self._trainers = parts.trainers
        self._journal = parts.journal
        self._files = parts.files
        self._saver = parts.saver
        self._drain = parts.drain
        self._pace = parts.pace
        self._keeper = parts.keeper
        self._outputs = parts.outputs
        self._ending = parts.ending
        self._gang = parts.gang

    @property
    def _trainer(self) -> Trainer:
        return self._trainers.current

    @property
    def _state(self) -> RunState:
        return self._node.recorder.state

    @property
    def _now_s(self) -> float:
        return self._node.clock.monotonic()

    @property
    def _is_plain(self) -> bool:
        """True if there is nothing to save: the callback has not reported yet, or the command has none."""
        return not self._trainer.makes_snapshots

    @property
    def _is_last_chance(self) -> bool:
        """True if no newer snapshot can follow the one that is there."""
        return self._trainer.exited is not None or self._drain.draining_s is not None
