"""Files that replace others: another user who may write into the folder can put no link in the way."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from spotrun import proc
from spotrun.agent.machine import process_groups
from spotrun.agent.status import Status
from spotrun.clouds.slurm import notices
from spotrun.folder import start_file, work_files
from spotrun.store.atomic_write import write_atomically
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun

Writer = Callable[[Path], object]


def fetch_start_file(path: Path) -> None:
    store = LocalStore(path.parent / "store")
    store.put(start_file.key_of(digest := hashlib.sha256(b"start").hexdigest()), b"start")
    start_file.fetch(store, digest, path.parent)


WRITERS: dict[str, Writer] = {
    "status.json": lambda path: Status(path.parent).change(phase="setup"),
    "trainer.json": lambda path: process_groups.remember(path, proc.ProcessMark(1, 1)),
    "files-before.json": lambda path: work_files.remember(path.parent, path),
    "slurm-notice.json": lambda path: notices.write(path, None),
    "start.ckpt": fetch_start_file,
    "any": lambda path: write_atomically(path, b"new"),
}


def plant(path: Path, victim: Path) -> list[Path]:
    """Put links to `victim` in place of each temporary file whose name can be foreseen."""
    beside = (f".{path.name}.{os.getpid()}", f"{path.stem}.{os.getpid()}", f"{path.stem}.tmp", f"{path.name}.part")
    planted = [path.with_name(name) for name in beside]
    for each in planted:
        each.symlink_to(victim)
    return planted


@pytest.mark.parametrize("name", WRITERS)
def test_no_write_goes_through_a_link_next_to_the_file(name: str, tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    (victim := tmp_path / "victim").write_text("mine")
    planted = plant(folder / name, victim)
    WRITERS[name](folder / name)
    assert victim.read_text() == "mine"
    assert stat.S_ISREG((folder / name).lstat().st_mode)
    assert {each.name for each in folder.iterdir()} - {each.name for each in planted} <= {name, "store"}


def test_a_textfile_of_metrics_follows_no_link(tmp_path: Path, runs: Path, spotrun: Spotrun) -> None:
    (victim := tmp_path / "victim").write_text("mine")
    plant(tmp_path / "spotrun.prom", victim)
    assert spotrun("metrics", "--textfile", tmp_path / "spotrun.prom").code == 0
    assert victim.read_text() == "mine"
    assert stat.S_IMODE((tmp_path / "spotrun.prom").lstat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (path := tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
