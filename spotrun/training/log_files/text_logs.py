"""
Saves the files of CSVLogger and TensorBoardLogger as part of a snapshot.

These loggers log each training into a new folder `version_N`. A resumed training continues in the folder of the
interrupted one, with the files as they were at the snapshot. So the files contain each step once, even on a machine
that never had these files. If a training is killed before its first snapshot, its next start uses the same version
again.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from spotrun.folder.work_files import MARK
from spotrun.training.log_files import event_files

State = dict[str, Any]
Loggers = Sequence[Any]

CSV, EVENTS = "metrics.csv", "events.out.tfevents.*"
PATTERNS = {"CSVLogger": CSV, "TensorBoardLogger": EVENTS}
CARRIED_MAX_BYTES = 64 << 20
"""
Maximum bytes of logs in a snapshot. Larger logs would slow the snapshot down, so the snapshot has only their lengths.
The logs themselves stay on disk, and a resume cuts them to these lengths.
"""


def dump(loggers: Loggers) -> list[State]:
    """Flush the loggers that write files, and return the version and the files of each."""
    return [_dump(logger, pattern) for logger, pattern in _kinds(loggers)]


def _dump(logger: Any, pattern: str) -> State:
    logger.save()
    if logger._experiment is not None and pattern == EVENTS:
        event_files.flush(logger.experiment)
    files, mark = _files(logger, pattern), Path(logger.log_dir) / MARK
    known = {"version": logger.version, "mark": mark.read_text() if mark.exists() else ""}
    if sum(path.stat().st_size for path in files.values()) > CARRIED_MAX_BYTES:
        return known | {"files": None, "extents": {name: _extent(path) for name, path in files.items()}}
    return known | {"files": {name: as_tensor(path.read_bytes()) for name, path in files.items()}}


def _extent(path: Path) -> int:
    """
    Return the file's current length, to which a resume can truncate the file: in rows for a CSV file, otherwise in
    bytes. Bytes would be wrong for a CSV file, because all its rows become longer when it gets a new column.
    """
    return len(path.read_bytes().splitlines()) if path.name == CSV else path.stat().st_size


def _cut(path: Path, extent: int) -> bytes:
    content = path.read_bytes()
    return b"".join(content.splitlines(keepends=True)[:extent]) if path.name == CSV else content[:extent]


def as_tensor(content: bytes) -> torch.Tensor:
    """Return a file's content as a tensor, for a snapshot."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def content_of(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def begin(loggers: Loggers, run_uid: str) -> None:
    """
    On a fresh start, reuse the version (the folder `version_N`) that an earlier process of the same run may have begun,
    and remove the files in it. The training starts at its first step, so it will log everything again.
    """
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
    opened = Path(logger.log_dir)
    if _is_marked(opened, run_uid):
        return logger.version  # type: ignore[no-any-return]
    if isinstance(logger.version, str):
        return None
    newest = next(folder for folder in (opened, *opened.parents) if folder.name == f"version_{logger.version}")
    below = opened.relative_to(newest)
    marked = (n for n in range(logger.version) if _is_marked(newest.with_name(f"version_{n}") / below, run_uid))
    return next(marked, None)


def _is_marked(folder: Path, run_uid: str) -> bool:
    mark = folder / MARK
    return mark.exists() and mark.read_text() == run_uid


def continue_run(loggers: Loggers, saved: list[State]) -> None:
    """Continue logging into the folder of the saved version, even if the logger has opened a new one."""
    for (logger, pattern), state in zip(_kinds(loggers), saved, strict=False):
        _move(logger, pattern, state["version"])
        if state["files"] is None:  # before the files are opened, because a CSVLogger deletes a file when it opens it
            state["files"] = _left_here(logger, state["extents"])


def _left_here(logger: Any, extents: dict[str, int]) -> dict[str, torch.Tensor]:
    """
    Return the content of log files that were too large for the snapshot, but exist on this machine. The content of each
    file is cut to the file's length at the snapshot. If the run has resumed from this snapshot before, `load` may have
    renamed the file, so its original and its new name are tried.
    """
    folder, names = Path(logger.log_dir), _names(extents)
    paths = {name: path for name in extents for path in (folder / name, folder / names[name]) if path.exists()}
    return {name: as_tensor(_cut(path, extents[name])) for name, path in paths.items()}


def _move(logger: Any, pattern: str, version: int | str) -> None:
    """
    Make the logger use the folder of `version`. If the logger has just opened the folder of another version, remove the
    logger's files from that other folder, and then the folder itself if it is empty.
    """
    opened = Path(logger.log_dir)
    _close(logger)
    logger._version = version
    if opened == Path(logger.log_dir):
        return
    for path in opened.rglob(pattern):
        path.unlink()
    with suppress(OSError):  # the folder still has files of another logger
        opened.rmdir()


def load(loggers: Loggers, saved: list[State]) -> None:
    for (logger, pattern), state in zip(_kinds(loggers), saved, strict=False):
        _close(logger)
        files = state["files"]
        if "extents" in state:  # on a new machine, these files come with the checkpoint's files of the script
            files = _left_here(logger, state["extents"]) | files
        _remove_files(logger, pattern)
        if pattern == CSV:
            logger.experiment  # noqa: B018  opening deletes the file
        names = _names(files)
        for name, content in files.items():
            path = Path(logger.log_dir) / names[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content_of(content))
            if pattern == CSV:
                logger.experiment.metrics_keys = _columns(path)
        if state.get("mark"):  # snapshots of earlier versions have none
            Path(logger.log_dir).mkdir(parents=True, exist_ok=True)
            (Path(logger.log_dir) / MARK).write_text(state["mark"])


def _columns(path: Path) -> list[str]:
    """
    Return the column names in a CSV file's header. They are read with a CSV parser, because a name that contains a
    comma is quoted.
    """
    with path.open(newline="") as file:
        return next(csv.reader(file))


def _names(files: Iterable[str]) -> dict[str, str]:
    """
    Return a new name for each event file of the snapshot. An old name contains the time at which the file was opened,
    in whole seconds, so a file that is opened now could get the same name, and overwrite the restored file.
    """
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
    """
    Return the logger's files by their paths relative to the version's folder. Subfolders are searched too, because
    `add_scalars` writes each curve into its own subfolder.
    """
    folder = Path(logger.log_dir)
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob(pattern))}


def _kinds(loggers: Loggers) -> list[tuple[Any, str]]:
    """Return the loggers of known kinds that write to local files, each with the pattern of its files' names."""
    known = ((logger, _pattern(logger)) for logger in loggers)
    return [(logger, pattern) for logger, pattern in known if pattern and "://" not in str(logger.root_dir)]


def _pattern(logger: Any) -> str:
    return next((PATTERNS[cls.__name__] for cls in type(logger).__mro__ if cls.__name__ in PATTERNS), "")
