"""
Continues the W&B run of a WandbLogger that is offline. Each attempt writes into a new folder, and `wandb sync` later
merges the folders of a W&B run.

W&B numbers the rows of a run, and a row replaces any earlier row with the same number. An offline client does not know
the rows in the earlier folders, and would begin again with row 0. So the row number is part of the snapshot, and a
resumed training continues from it. An online client gets the number from the server.
"""

from __future__ import annotations

from typing import Any

from spotrun.training.by_name import is_a
from spotrun.training.log_files.text_logs import Loggers, State


def dump(loggers: Loggers) -> list[State]:
    """
    Return each logger's W&B run and the number of its next row. The state of a logger that is online or has no run yet
    is empty.
    """
    return [_dump(getattr(logger, "_experiment", None)) for logger in _ours(loggers)]


def _dump(run: Any) -> State:
    return {"run": run.id, "rows": run.step} if _is_offline(run) else {}


def begin(loggers: Loggers, run_uid: str) -> None:
    """Do nothing: the agent names the W&B run in the script's environment."""


def continue_run(loggers: Loggers, saved: list[State]) -> None:
    """Continue numbering rows after the snapshot's last row, unless the script has chosen another W&B run."""
    for logger, state in zip(_ours(loggers), saved, strict=False):
        if state and _is_offline(run := logger.experiment) and run.id == state["run"] and run.step < state["rows"]:
            run.log({}, step=state["rows"], commit=False)


def _is_offline(run: Any) -> bool:
    """
    Return whether `run` is an offline W&B run. Return False on ranks other than 0, where `run` is a dummy object of
    Lightning that has every attribute.
    """
    return type(run).__module__.startswith("wandb.") and run.offline is True


def _ours(loggers: Loggers) -> list[Any]:
    return [each for each in loggers if is_a(each, "WandbLogger")]
