"""The work folder travels as one object, and comes out as it went in."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.errors import SpotrunError
from spotrun.folder import workdir
from spotrun.folder.revision import revision_of
from spotrun.store.opening import open_store


def test_a_folder_comes_out_as_it_went_in_without_caches_and_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pack age" / "__pycache__").mkdir(parents=True)
    (source / "pack age" / "code.py").write_text("print('ü')\n")
    (source / "pack age" / "__pycache__" / "code.pyc").write_bytes(b"cache")
    (source / "run.sh").write_text("echo\n")
    (source / "run.sh").chmod(0o755)
    (source / "secret").symlink_to("/etc/passwd")
    store = open_store(str(tmp_path / "run"))
    workdir.fetch(store, workdir.upload(store, source), tmp_path / "target")
    found = sorted(path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*.*"))
    assert found == ["pack age/code.py", "run.sh"]
    assert (tmp_path / "target" / "run.sh").stat().st_mode & 0o111


def test_the_same_content_has_the_same_name_whenever_it_was_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("pass\n")
    assert workdir.pack(tmp_path / "one") == workdir.pack(tmp_path / "two")


def test_a_store_of_runs_inside_of_the_folder_does_not_travel_with_its_keys(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    alone = workdir.pack(tmp_path)
    store = open_store(str(tmp_path / "runs" / "first-0123456789"))
    digest = workdir.upload(store, tmp_path)
    assert digest == hashlib.sha256(alone).hexdigest()
    (tmp_path / "runs" / "keys").mkdir()
    (tmp_path / "runs" / "keys" / "0123456789").write_text("secret")
    assert workdir.upload(open_store(str(tmp_path / "runs" / "second-0123456780")), tmp_path) == digest


def test_archive_with_another_digest_is_not_unpacked(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(workdir.key_of("0" * 64), b"something else")
    with pytest.raises(SpotrunError, match="damaged"):
        workdir.fetch(store, "0" * 64, tmp_path / "target")


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../escape", "a/../../escape"])
def test_an_archive_cannot_write_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    data = gzip.compress(raw.getvalue())
    sha256 = hashlib.sha256(data).hexdigest()
    store = open_store(str(tmp_path / "run"))
    store.put(workdir.key_of(sha256), data)
    with pytest.raises(SpotrunError, match="never packs"):
        workdir.fetch(store, sha256, tmp_path / "target")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_a_folder_is_at_a_commit_with_or_without_changes_and_runs_nothing_to_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, folder = tmp_path / "hostile", tmp_path / "hostile" / "work"
    folder.mkdir(parents=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision_of(tmp_path) is None
    (folder / "train.py").write_text("1\n")
    git(repository, "init", "-q")
    assert revision_of(folder) is None
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "first")
    found = revision_of(folder)
    assert found is not None
    assert (len(found.commit), found.changed) == (40, False)
    (repository / "elsewhere").write_text("")
    assert revision_of(folder) == found
    (folder / "train.py").write_text("2\n")
    assert revision_of(folder) == replace(found, changed=True)
    canary = tmp_path / "canary"
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", f"touch {canary}; false")
    assert revision_of(folder) == replace(found, changed=True)
    git(repository, "config", "filter.x=y.clean", f"touch {canary}; cat")
    (repository / ".git" / "info" / "attributes").write_text("* filter=x=y\n")
    assert revision_of(folder) == replace(found, changed=None)
    assert not canary.exists()
    git(folder, "status")
    assert canary.exists()  # so the traps were live
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision_of(folder) is None
