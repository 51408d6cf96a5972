"""
Includes an MLflow run in snapshots, if its MLFlowLogger writes to a local folder. Metrics, parameters and tags are
saved; artifacts are not.

A resumed training continues the same MLflow run, with the files as they were at the snapshot, even on a machine that
never had these files. Layout: EXPERIMENT_ID/meta.yaml and EXPERIMENT_ID/RUN_ID/{meta.yaml,metrics,params,tags}
(https://mlflow.org/docs/latest/self-hosting/architecture/backend-store).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from spotrun.training.by_name import is_a
from spotrun.training.log_files import text_logs
from spotrun.training.log_files.text_logs import Loggers, State

FOLDERS = ("metrics", "params", "tags")
MARK = "tags/spotrun.run"
"""Tag of an MLflow run with the uid of the spotrun run that began it. MLflow displays this tag."""


def _ours(loggers: Loggers) -> list[Any]:
    """
    Return the MLFlowLoggers that write to a local folder. `mlflow_client` handles those that write to a server or a
    database.
    """
    return [each for each in of_mlflow(loggers) if store_folder(each) is not None]


def of_mlflow(loggers: Loggers) -> list[Any]:
    return [each for each in loggers if is_a(each, "MLFlowLogger")]


def dump(loggers: Loggers) -> list[State]:
    return [_dump(logger) for logger in _ours(loggers)]


def _dump(logger: Any) -> State:
    folder = _folder(logger)
    paths = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    carried = sum(sizes.values()) <= text_logs.CARRIED_MAX_BYTES
    return {
        "run": logger.run_id,
        "experiment": logger.experiment_id,
        "meta": text_logs.as_tensor((folder.parent / "meta.yaml").read_bytes()),
        "files": {name: text_logs.as_tensor(path.read_bytes()) for name, path in paths.items()} if carried else None,
        "extents": sizes,
    }


def begin(loggers: Loggers, run_uid: str) -> None:
    """
    Prepare the loggers for a training that starts at its first step. If an earlier process of the same spotrun run has
    begun an MLflow run, continue that MLflow run. Delete its metrics and parameters, because the training will log them
    again.
    """
    for index, logger in enumerate(_ours(loggers)):
        mark, opened = f"{run_uid}/{index}", _folder(logger)
        before = [path for path in opened.parent.glob(f"*/{MARK}") if path.read_text() == mark]
        if before:
            folder = before[0].parent.parent
            for name in FOLDERS[:2]:
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).mkdir()
            _go_on_in(logger, folder.parent.name, folder.name)
        elif _is_new(opened):
            (opened / MARK).parent.mkdir(parents=True, exist_ok=True)
            (opened / MARK).write_text(mark)


def continue_run(loggers: Loggers, saved: list[State]) -> None:
    """
    Continue the saved MLflow run, with its files as they were at the snapshot, even if the logger has begun a new run.
    """
    for logger, state in zip(_ours(loggers), saved, strict=False):
        folder = _store(logger) / state["experiment"] / state["run"]
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder.parent / "meta.yaml").exists():
            (folder.parent / "meta.yaml").write_bytes(text_logs.content_of(state["meta"]))
        _go_on_in(logger, state["experiment"], state["run"])
        _load(folder, state)


def load(loggers: Loggers, saved: list[State]) -> None:
    for logger, state in zip(_ours(loggers), saved, strict=False):
        _load(_folder(logger), state)


def _load(folder: Path, state: State) -> None:
    """
    Restore the files of the MLflow run as they were at the snapshot. If the files were too large for the snapshot, it
    contains only their lengths. In that case, cut the files that this machine has to these lengths.
    """
    for path in _files(folder):
        extent = None if state["files"] is not None else state["extents"].get(path.relative_to(folder).as_posix())
        if extent is None:
            path.unlink()
        else:
            os.truncate(path, min(extent, path.stat().st_size))
    for name in (*FOLDERS, "artifacts"):  # without them, MLflow does not accept the folder as a run
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in (state["files"] or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text_logs.content_of(content))


def _go_on_in(logger: Any, experiment_id: str, run_id: str) -> None:
    """
    Make the logger use a saved MLflow run. Delete the run that the logger has just begun, unless the script uses it.
    """
    opened = _folder(logger)
    if opened.name == run_id:
        return
    if _is_new(opened) and not is_active(opened.name):
        shutil.rmtree(opened)
        if opened.parent.name != experiment_id and not any(path.is_dir() for path in opened.parent.iterdir()):
            shutil.rmtree(opened.parent)  # this machine had no experiment of the saved name, so the logger has made one
    logger._run_id, logger._experiment_id = run_id, experiment_id


def _is_new(folder: Path) -> bool:
    """Return whether the MLflow run in `folder` has no data yet."""
    return not any(path.is_file() for name in FOLDERS[:2] for path in (folder / name).rglob("*"))


def is_active(run_id: str) -> bool:
    """Return whether the script is inside `with mlflow.start_run()` of this MLflow run."""
    import mlflow

    active = mlflow.active_run()
    return active is not None and active.info.run_id == run_id


def store_folder(logger: Any) -> str | None:
    """
    Return the local folder that the logger's URI names as `file:FOLDER`, `file://FOLDER` or FOLDER. Return None if the
    URI names a server or a database.
    """
    uri = str(logger._tracking_uri)
    folder = uri.removeprefix("file:").removeprefix("//")
    return None if ":" in folder else folder


def _store(logger: Any) -> Path:
    folder = store_folder(logger)
    assert folder is not None
    return Path(folder)


def _folder(logger: Any) -> Path:
    """Return the folder of the logger's MLflow run. If the run does not exist yet, the logger creates it."""
    return _store(logger) / str(logger.experiment_id) / str(logger.run_id)


def _files(folder: Path) -> list[Path]:
    inside = [path for name in FOLDERS for path in sorted((folder / name).rglob("*")) if path.is_file()]
    return [path for path in (folder / "meta.yaml",) if path.exists()] + inside
