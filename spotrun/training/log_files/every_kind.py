"""
Saves and restores the logs of all supported loggers. In a snapshot, each kind of logger has its own entry, such as
`wandb`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from spotrun.training.log_files import mlflow_client, mlflow_files, text_logs, wandb_runs
from spotrun.training.log_files.text_logs import Loggers, State

KINDS = {"logs": text_logs, "mlflow": mlflow_files, "mlflow_client": mlflow_client, "wandb": wandb_runs}


def dump(loggers: Loggers) -> State:
    return {name: kind.dump(loggers) for name, kind in KINDS.items()}


_under_way: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""
The loggers to which a fit() of this process has written, by `id`. If a later fit() uses the same logger, it continues
in the logger's files.
"""


def begin(loggers: Loggers, run_uid: str, fit: int) -> None:
    """
    Begin the logs of a training that does not resume from a snapshot. If an earlier process has begun logs for the same
    `fit` of the same run, continue those. Call this before the framework writes anything.
    """
    new = [logger for logger in loggers if id(logger) not in _under_way]
    for kind in KINDS.values():
        kind.begin(new, run_uid if fit == 1 else f"{run_uid}-{fit}")
    _note(loggers)


def continue_run(loggers: Loggers, saved: State) -> None:
    """After a resume, continue the snapshot's logs. Call this before the framework writes anything."""
    for name, kind in KINDS.items():
        kind.continue_run(loggers, saved.get(name, []))
    _note(loggers)


def _note(loggers: Loggers) -> None:
    """
    Record that a fit() has written to these loggers. They are recorded by `id`, because a logger of the script's own
    class may not be hashable.
    """
    _under_way.update({id(logger): logger for logger in loggers})


def load(loggers: Loggers, saved: State) -> None:
    """
    Restore the log files. Call this when training begins, and not earlier: just before that, the framework logs the
    hyper-parameters a second time, and would add them to the restored files.
    """
    text_logs.load(loggers, saved["logs"])
    mlflow_files.load(loggers, saved["mlflow"])
