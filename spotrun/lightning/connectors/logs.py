"""
The files of CSVLogger and TensorBoardLogger as part of a snapshot.

A resumed run goes on in the same version's folder with what the files held when the snapshot was taken, so a reader
sees each step once: nothing twice that was lost and trained again, and nothing missing on a machine that never had
the files.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

PATTERNS = {"CSVLogger": "metrics.csv", "TensorBoardLogger": "events.out.tfevents.*"}
PRIVATE_NAMES = ("_experiment", "_version")
CARRIED_MAX_BYTES = 64 << 20
"""Larger logs (images, histograms) stay where they are, as a snapshot is to be quick."""


def dump(trainer: Any) -> list[Any]:
    """The version and the files of each logger that writes files; flushes them."""
    return [_dump(logger, pattern) for logger, pattern in _kinds(trainer)]


def _dump(logger: Any, pattern: str) -> dict[str, Any]:
    logger.save()
    if logger._experiment is not None and pattern != "metrics.csv":
        logger.experiment.flush()
    files = _files(logger, pattern)
    if sum(path.stat().st_size for path in files) > CARRIED_MAX_BYTES:
        return {"version": logger.version, "files": None}
    return {"version": logger.version, "files": {path.name: _bytes_of(path) for path in files}}


def _bytes_of(path: Path) -> torch.Tensor:
    content = bytearray(path.read_bytes())
    return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def continue_version(trainer: Any, saved: list[Any]) -> None:
    """In `Callback.setup`, when Lightning has opened a new version: the saved one instead. The new one is removed."""
    for (logger, pattern), state in zip(_kinds(trainer), saved, strict=False):
        opened = Path(logger.log_dir)
        _close(logger)
        logger._version = state["version"]
        if opened != Path(logger.log_dir):
            for path in opened.glob(pattern):
                path.unlink()
            with suppress(OSError):  # another logger's files are in it
                opened.rmdir()


def load(trainer: Any, saved: list[Any]) -> None:
    """In `on_train_start`, after hyper-parameters were logged once more: the files as they were."""
    for (logger, pattern), state in zip(_kinds(trainer), saved, strict=False):
        if state["files"] is None:
            continue
        _close(logger)
        for path in _files(logger, pattern):
            path.unlink()
        if pattern == "metrics.csv":
            logger.experiment  # noqa: B018  it deletes the file when it is opened
        for number, (name, content) in enumerate(sorted(state["files"].items())):
            path = Path(logger.log_dir) / _name(name, number, pattern)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.numpy().tobytes())
            if pattern == "metrics.csv":
                logger.experiment.metrics_keys = path.read_text().splitlines()[0].split(",")


def _name(name: str, number: int, pattern: str) -> str:
    """A writer names its file by the second, so one that is opened within this second would write over the old one."""
    return Path(name).name if pattern == "metrics.csv" else f"events.out.tfevents.{number:010d}.spotrun"


def _close(logger: Any) -> None:
    experiment, logger._experiment = logger._experiment, None
    if hasattr(experiment, "close"):
        experiment.close()


def _files(logger: Any, pattern: str) -> list[Path]:
    return sorted(Path(logger.log_dir).glob(pattern))


def _kinds(trainer: Any) -> list[tuple[Any, str]]:
    return [(logger, PATTERNS[_kind(logger)]) for logger in file_loggers(trainer)]


def _kind(logger: Any) -> str:
    return next((cls.__name__ for cls in type(logger).__mro__ if cls.__name__ in PATTERNS), "")


def file_loggers(trainer: Any) -> list[Any]:
    """The loggers of this process whose files are known here, and are local."""
    if not trainer.is_global_zero:
        return []
    return [logger for logger in trainer.loggers if _kind(logger) and "://" not in str(logger.root_dir)]
