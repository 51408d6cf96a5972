"""
High-rate facts: one small object per writer, overwritten. A hint is never the truth; the ledger is.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TypeVar

import msgspec

from spotrun.errors import ObjectMissing, StoreUnavailable
from spotrun.store.port import Store


class AgentHint(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where an agent is. `epoch` counts from 0, `batch` of `batches` are done in it; times and durations are run time.

    `sequence` grows with each write: an observer who sees it unchanged knows that nothing was written.
    """

    launch: int
    phase: str
    at: datetime
    sequence: int
    attempt: int | None = None
    epoch: int = 0
    epochs: int = 0
    batch: int = 0
    batches: int = 0
    step: int = 0
    metrics: dict[str, float] = {}
    step_s: float | None = None
    stall_s: float | None = None
    commit_s: float | None = None
    console_tail: str = ""

    @property
    def steps_total(self) -> float | None:
        """
        How many steps the whole training will have, from those done; None where it does not say when it ends.

            steps / (epoch + batch / batches) * epochs      however many batches make a step
        """
        if not self.epochs or not self.batches or not self.step:
            return None
        return self.step * self.epochs / (self.epoch + self.batch / self.batches)


class RunnerHint(msgspec.Struct, frozen=True, kw_only=True):
    """That somebody attends to the run, and what keeps it from going on, if anything does."""

    at: datetime
    pid: int
    host: str
    sequence: int
    message: str = ""


FOLDER = "hints/"
RUNNER_KEY = f"{FOLDER}runner.json"
_AGENT_KEY = re.compile(re.escape(FOLDER) + r"agent-(\d+)\.json")

Hint = TypeVar("Hint", AgentHint, RunnerHint)


def agent_key(launch: int) -> str:
    return f"{FOLDER}agent-{launch}.json"


def launch_of(key: str) -> int | None:
    """Whose heartbeat lies under `key`; None of one that is no agent's."""
    found = _AGENT_KEY.fullmatch(key)
    return None if found is None else int(found[1])


def write_hint(store: Store, key: str, hint: AgentHint | RunnerHint) -> None:
    """Write a hint; a store that cannot take it just now misses one."""
    try:
        store.put_hint(key, msgspec.json.encode(hint))
    except StoreUnavailable:
        return


def read_hint(store: Store, key: str, kind: type[Hint]) -> Hint | None:
    """The newest hint, or None where there is none that can be read."""
    try:
        return msgspec.json.decode(store.get(key), type=kind)
    except (ObjectMissing, StoreUnavailable, msgspec.MsgspecError):
        return None
