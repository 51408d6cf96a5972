"""
After a resume, continues the MLflow run of an MLFlowLogger that writes to a server or a database. No step is logged
twice.

The server still has the values of steps after the snapshot, because its data cannot be rolled back. The resumed
training repeats these steps and computes the same values. So the logger does not log a metric again until the training
passes the newest step that the server has for it. This works only for a metric whose steps increase.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spotrun.training.log_files import mlflow_files
from spotrun.training.log_files.text_logs import Loggers, State

TAG = "spotrun.run"
"""Tag of an MLflow run with the uid of the spotrun run that began it."""
_STRANGE = re.compile(r"[^a-zA-Z0-9_/. -]+")
"""Characters that MLFlowLogger removes from the names of metrics."""


def _ours(loggers: Loggers) -> list[Any]:
    return [each for each in mlflow_files.of_mlflow(loggers) if mlflow_files.store_folder(each) is None]


def dump(loggers: Loggers) -> list[State]:
    """Wait until all metrics have been sent, and return each logger's MLflow run."""
    return [_dump(logger) for logger in _ours(loggers)]


def _dump(logger: Any) -> State:
    if logger._log_batch_kwargs.get("synchronous") is False:
        import mlflow

        mlflow.flush_async_logging()
    return {"run": logger.run_id}


def begin(loggers: Loggers, run_uid: str) -> None:
    """
    Continue the MLflow run that an earlier process of the same spotrun run has created, if any, instead of creating a
    second one. Call this when a training starts without a checkpoint.
    """
    for index, logger in enumerate(_ours(loggers)):
        mark = f"{run_uid}/{index}"
        before = logger.experiment.search_runs([logger.experiment_id], f"tags.`{TAG}` = '{mark}'", max_results=1)
        if before:
            _go_on_in(logger, before[0])
        elif _is_new(logger):
            logger.experiment.set_tag(logger.run_id, TAG, mark)


def continue_run(loggers: Loggers, saved: list[State]) -> None:
    """Continue the saved MLflow run, even if the logger has begun a new run."""
    for logger, state in zip(_ours(loggers), saved, strict=False):
        _go_on_in(logger, logger.experiment.get_run(state["run"]))


def _go_on_in(logger: Any, run: Any) -> None:
    client, opened = logger.experiment, logger.run_id
    if opened != run.info.run_id and _is_new(logger) and not mlflow_files.is_active(opened):
        client.delete_run(opened)
    logger._run_id, logger._experiment_id = run.info.run_id, run.info.experiment_id
    client.update_run(run.info.run_id, status="RUNNING")
    _leave_out(logger, {metric.key: metric.step for metric in run.data._metric_objs})


def _is_new(logger: Any) -> bool:
    """Return True if the logger's MLflow run has no data yet."""
    data = logger.experiment.get_run(logger.run_id).data
    return not data.metrics and not data.params


def _leave_out(logger: Any, last_steps: Mapping[str, int]) -> None:
    """
    Make the logger skip values that were logged before the resume: for each metric, all values up to its step in
    `last_steps`.
    """
    log = logger.log_metrics

    def log_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
        new = {name: value for name, value in metrics.items() if step is None or step > last_step(name)}
        if new:
            log(new, step)

    def last_step(name: str) -> int:
        prefixed = f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}{name}" if logger._prefix else name
        return last_steps.get(_STRANGE.sub("", prefixed), -1)

    logger.log_metrics = log_metrics
