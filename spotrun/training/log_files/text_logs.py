"""
The files of CSVLogger and TensorBoardLogger as part of a snapshot.

A resumed run goes on in the same version's folder with what the files held when the snapshot was taken, so a reader
sees each step once: nothing twice that was lost and trained again, and nothing missing on a machine that never had
the files. A run that has to begin again, as it was killed before its first snapshot, takes its old version over.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from spotrun.training.log_files import event_files

State = dict[str, Any]
Loggers = Sequence[Any]

CSV, EVENTS = "metrics.csv", "events.out.tfevents.*"
PATTERNS = {"CSVLogger": CSV, "TensorBoardLogger": EVENTS}
PRIVATE_NAMES = ("_experiment", "_version")
CARRIED_MAX_BYTES = 64 << 20
"""Larger logs (images, histograms) stay where they are, as a snapshot is to be quick, and are cut on a resume there."""
MARK = ".spotrun"
"""In a version's folder: the uid of the run that began it."""


def dump(loggers: Loggers) -> list[State]:
    """The version and the files of each logger that writes files; flushes them."""
    return [_dump(logger, pattern) for logger, pattern in _kinds(loggers)]


def _dump(logger: Any, pattern: str) -> State:
    logger.save()
    if logger._experiment is not None and pattern == EVENTS:
        event_files.flush(logger.experiment)
    files = _files(logger, pattern)
    if sum(path.stat().st_size for path in files.values()) > CARRIED_MAX_BYTES:
        return {"version": logger.version, "files": None, "extents": {n: _extent(path) for n, path in files.items()}}
    return {"version": logger.version, "files": {name: as_tensor(path.read_bytes()) for name, path in files.items()}}


def _extent(path: Path) -> int:
    """Rows of a CSV file, which is written anew when a column is added; else bytes."""
    return len(path.read_bytes().splitlines()) if path.name == CSV else path.stat().st_size


def _cut(path: Path, extent: int) -> bytes:
    content = path.read_bytes()
    return b"".join(content.splitlines(keepends=True)[:extent]) if path.name == CSV else content[:extent]


def as_tensor(content: bytes) -> torch.Tensor:
    """A file as a snapshot can hold it."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def content_of(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def begin(loggers: Loggers, run_uid: str) -> None:
    """In `Callback.setup` of a fresh start: in the version that the same run began before, without its files."""
    kinds = _kinds(loggers)
    before = [_begun_before(logger, run_uid) for logger, _ in kinds]
    for (logger, pattern), version in zip(kinds, before, strict=True):
        if version is not None:
            _move(logger, pattern, version)
            _remove_files(logger, pattern)
        folder = Path(logger.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(run_uid)


def _begun_before(logger: Any, run_uid: str) -> int | str | None:
    root, opened = Path(logger.root_dir), Path(logger.log_dir)
    if _is_marked(opened, run_uid):
        return logger.version  # type: ignore[no-any-return]
    if isinstance(logger.version, str):
        return None
    below = opened.relative_to(root / f"version_{logger.version}")
    marked = (n for n in range(logger.version) if _is_marked(root / f"version_{n}" / below, run_uid))
    return next(marked, None)


def _is_marked(folder: Path, run_uid: str) -> bool:
    mark = folder / MARK
    return mark.exists() and mark.read_text() == run_uid


def continue_run(loggers: Loggers, saved: list[State]) -> None:
    """In `Callback.setup`, when Lightning has opened a new version: the saved one instead."""
    for (logger, pattern), state in zip(_kinds(loggers), saved, strict=False):
        _move(logger, pattern, state["version"])
        if state["files"] is None:  # now, as a CSVLogger that is opened deletes its file
            state["files"] = _left_here(logger, state["extents"])


def _left_here(logger: Any, extents: dict[str, int]) -> dict[str, torch.Tensor]:
    """
    What this machine has of files that were too large to be carried, up to where the snapshot saw them. Where another
    process was resumed from it they have the names that `load` gave them.
    """
    folder, names = Path(logger.log_dir), _names(extents)
    paths = {name: path for name in extents for path in (folder / name, folder / names[name]) if path.exists()}
    return {name: as_tensor(_cut(path, extents[name])) for name, path in paths.items()}


def _move(logger: Any, pattern: str, version: int | str) -> None:
    """From the version that Lightning has just opened to another. The new one is removed."""
    opened = Path(logger.log_dir)
    _close(logger)
    logger._version = version
    if opened == Path(logger.log_dir):
        return
    for path in opened.rglob(pattern):
        path.unlink()
    with suppress(OSError):  # another logger's files are in it
        opened.rmdir()


def load(loggers: Loggers, saved: list[State]) -> None:
    """In `on_train_start`, after hyper-parameters were logged once more: the files as they were."""
    for (logger, pattern), state in zip(_kinds(loggers), saved, strict=False):
        _close(logger)
        _remove_files(logger, pattern)
        if pattern == CSV:
            logger.experiment  # noqa: B018  it deletes the file when it is opened
        names = _names(state["files"])
        for name, content in state["files"].items():
            path = Path(logger.log_dir) / names[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content_of(content))
            if pattern == CSV:
                logger.experiment.metrics_keys = _columns(path)


def _columns(path: Path) -> list[str]:
    """Of a CSV file with a header, in which a name with a comma is quoted."""
    with path.open(newline="") as file:
        return next(csv.reader(file))


def _names(files: Iterable[str]) -> dict[str, str]:
    """A writer names its file by the second, so one that is opened within this second would write over the old one."""
    names, numbers = {}, Counter[Path]()
    for name in sorted(files):
        folder = Path(name).parent
        names[name] = name if name == CSV else str(folder / f"events.out.tfevents.{numbers[folder]:010d}.spotrun")
        numbers[folder] += 1
    return names


def _close(logger: Any) -> None:
    experiment, logger._experiment = logger._experiment, None
    if hasattr(experiment, "close"):
        experiment.close()


def _remove_files(logger: Any, pattern: str) -> None:
    for path in _files(logger, pattern).values():
        path.unlink()


def _files(logger: Any, pattern: str) -> dict[str, Path]:
    """By their names within the version's folder; `add_scalars` writes each curve into a folder of its own."""
    folder = Path(logger.log_dir)
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob(pattern))}


def _kinds(loggers: Loggers) -> list[tuple[Any, str]]:
    return [(logger, PATTERNS[_kind(logger)]) for logger in writing_files(loggers)]


def _kind(logger: Any) -> str:
    return next((cls.__name__ for cls in type(logger).__mro__ if cls.__name__ in PATTERNS), "")


def writing_files(loggers: Loggers) -> list[Any]:
    """The loggers of this process whose files are known here, and are local."""
    return [logger for logger in loggers if _kind(logger) and "://" not in str(logger.root_dir)]
