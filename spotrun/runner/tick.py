"""Carries out one tick of a runner."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from spotrun.folder.status_objects import AgentStatus
from spotrun.instance import Instance
from spotrun.policy import Action, Wait
from spotrun.run.state import RunState


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """
    The observation and the actions of one tick.

    If the runner could not observe, it did nothing, and `blind` is the reason. `remark` is a problem that does not stop
    the run. `wrote` is True if the ledger got a new entry during the tick. `epochs_total` is the training's number of
    epochs, as an agent has reported it. The runner reads this number only if the run has a budget.
    """

    state: RunState
    instances: tuple[Instance, ...] = ()
    actions: tuple[Action, ...] = ()
    status: AgentStatus | None = None
    epochs_total: int | None = None
    blind: str | None = None
    done: bool = False
    remark: str | None = None
    wrote: bool = False

    @property
    def waiting_for(self) -> str | None:
        trouble = self.status.trouble if self.status is not None else ""
        waits = (action.reason for action in self.actions if isinstance(action, Wait))
        return self.blind or trouble or next(waits, None)


def joined(words: Iterable[str]) -> str | None:
    """Join the non-empty remarks into one line; return None if there are none."""
    return "; ".join(filter(None, words)) or None
