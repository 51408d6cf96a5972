"""How an attempt ends. The ledger has its last event before the instance goes, so that nobody has to guess."""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.drain import Drain
from spotrun.agent.idle import await_the_cloud
from spotrun.agent.inbox import PowerOff
from spotrun.agent.node import Node
from spotrun.agent.snapshots import Snapshot
from spotrun.agent.trainers import Trainers
from spotrun.run.events import Cause

Final = tuple[Snapshot, int]
"""The last snapshot of a training, and its commit."""


class Ending:
    """Each method ends the attempt: it raises PowerOff."""

    def __init__(self, node: Node, journal: AttemptJournal, drain: Drain, trainers: Trainers) -> None:
        self._node = node
        self._journal = journal
        self._drain = drain
        self._trainers = trainers

    def drained(self, final: Final | None, stopped_at: datetime) -> NoReturn:
        self._journal.drained(self._commit_of(final), stopped_at, self._drain.reason)
        self._go("drained")

    def drained_short(self, why: str) -> NoReturn:
        """The drain was not finished. The steps since the newest commit are lost, and the ledger says so."""
        self.failed(self._drain.cause, f"{self._drain.reason}: {self._drain.too_short or why}", lossy=True)

    def completed(self, final: Final | None, step: int) -> NoReturn:
        self._journal.completed(self._commit_of(final), step)
        self._power_off("completed")

    def failed(self, cause: Cause, detail: str, *, lossy: bool = False) -> NoReturn:
        """`lossy`: steps were lost, and the ledger adds which one survives."""
        self._trainers.close()
        self._journal.ended(cause, self._trainers.last_step, self._node.console.clean(detail), lossy=lossy)
        self._go(f"ended: {cause.value}")

    def _commit_of(self, final: Final | None) -> int | None:
        """The newest commit, if there is no final one or its snapshot is not finite."""
        if final is not None and final[0].taken.finite:
            return final[1]
        newest = self._node.recorder.state.latest_commit()
        return None if newest is None else newest.number

    def _go(self, reason: str) -> NoReturn:
        """Power off, once it would be no cheaper to be taken by the cloud."""
        self._trainers.close()
        await_the_cloud(self._node, self._journal.attempt)
        self._power_off(reason)

    def _power_off(self, reason: str) -> NoReturn:
        self._trainers.close()
        raise PowerOff(reason)
