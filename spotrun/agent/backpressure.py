"""Pauses training while the store refuses writes, because no progress can be saved then."""

from __future__ import annotations

import time
from concurrent.futures import Future

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.inbox import SaveRefused
from spotrun.agent.recorder import ROOM_WITHIN_S
from spotrun.run.events import Entry


class Backpressure:
    """
    A period in which the store refuses writes. The period ends when the next checkpoint is durable. This object records
    when the agent noticed the refusal, and whether the ledger contains it.
    """

    def __init__(self, context: AgentContext, journal: AttemptJournal) -> None:
        self._context = context
        self._journal = journal
        self._since_s: float | None = None
        self._entry: Future[Entry | None] | None = None
        self.detail = ""

    @property
    def goes_on(self) -> bool:
        return self._since_s is not None

    @property
    def is_too_long(self) -> bool:
        """
        True if the store has refused writes for ROOM_WITHIN_S. Waiting longer would cost more than repeating the steps
        since the last checkpoint.
        """
        return self._since_s is not None and time.monotonic() - self._since_s >= ROOM_WITHIN_S

    @property
    def is_in_ledger(self) -> bool:
        """
        True if the refusal is recorded in the ledger. Since the ledger is in the same store, this also shows that the
        store still accepts small objects, and that the agent will be able to record the end of the attempt.
        """
        return self._entry is not None and self._entry.done()

    def begins(self, detail: str, save: SaveRefused | None = None) -> None:
        """
        Report that the store refuses writes, unless this was already reported. If it refused a checkpoint (`save`),
        also record that in the ledger.
        """
        if self._since_s is None:
            self._since_s, self.detail = time.monotonic(), detail
            self._context.status.facts["trouble"] = f"training pauses: {detail}"
            self._context.note(f"training pauses until its checkpoint can be saved: {detail}")
        if save is not None and self._entry is None:
            self._entry = self._journal.save_refused(save)

    def ends(self) -> None:
        if self._since_s is not None:
            self._context.status.facts.pop("trouble", None)
            self._context.note("the store accepts writes again: training continues")
        self._since_s = self._entry = None
