"""What `make dist` builds of a commit is the same wherever and whenever it is built, and says which commit it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from spotrun.runs import installed
from spotrun.runs.installed import commit_of
from spotrun.version import __version__
from tests.support.dist import dist
from tests.support.repository import ROOT


def git(folder: Path, *words: str) -> str:
    settings = [word for name in ("user.name", "user.email") for word in ("-c", f"{name}=a")]
    command = ["git", "-C", str(folder), *settings, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """Wheel and source distribution, built twice: at another path, under another umask, in another zone."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "first").mkdir()
    first = dist(folder / "first")
    second = folder / "a longer name" / "second"
    second.mkdir(parents=True)
    code = (
        "import os, sys, pathlib; os.umask(0o077); from tests.support.dist import main; main(pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "TMPDIR": str(second.parent), "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "0"}
    subprocess.run([sys.executable, "-c", code, str(second)], cwd=ROOT, env=environment, check=True, timeout=240)
    return [first, sorted(second.iterdir())]


OF_MAKE_DIST = pytest.mark.checks("tests/support/dist.py", "pyproject.toml")


@OF_MAKE_DIST
def test_two_builds_of_a_commit_are_the_same_bytes(built: list[list[Path]]) -> None:
    (sdist, wheel), (other_sdist, other_wheel) = ([*sorted(each, key=lambda path: path.suffix)] for each in built)
    assert sdist.name == other_sdist.name == f"spotrun-{__version__}.tar.gz"
    assert wheel.name == other_wheel.name == f"spotrun-{__version__}-py3-none-any.whl"
    assert wheel.read_bytes() == other_wheel.read_bytes()
    assert sdist.read_bytes() == other_sdist.read_bytes()
    with tarfile.open(sdist) as archive:
        assert {(member.uid, member.uname, member.mtime) for member in archive} == {
            (0, "", int(git(ROOT, "log", "-1", "--format=%ct")))
        }
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "spotrun/boot/lock.txt", "spotrun/commit.txt"} <= names


@OF_MAKE_DIST
def test_the_wheel_can_be_read_by_everybody_and_names_its_commit(built: list[list[Path]], tmp_path: Path) -> None:
    wheel = next(path for path in built[0] if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
        archive.extractall(tmp_path)
    command = [sys.executable, "-m", "spotrun", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == f"spotrun {__version__} (commit {git(ROOT, 'rev-parse', '--short=12', 'HEAD')})"
    assert second.startswith("extras: ")
    assert {"aws", "lightning", "metrics"} <= set(second.removeprefix("extras: ").split(", "))


def test_a_checkout_names_its_commit_and_says_if_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_told_to_pip", lambda: None)
    package = tmp_path / "spotrun"
    package.mkdir()
    assert commit_of(package) is None
    git(tmp_path, "init", "-q")
    (package / "x.py").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert commit_of(package) == commit
    (package / "x.py").write_text("1")
    assert commit_of(package) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(package) is None, "there is no git"
    (package / "commit.txt").write_text("0123456789abcdef\n")
    assert commit_of(package) == "0123456789ab"


def test_version_shows_the_commit_that_pip_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "spotrun-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: spotrun\nVersion: 9\nProvides-Extra: a\nProvides-Extra: b\nProvides-Extra: c\n"
        'Requires-Dist: pytest>=9; extra == "a"\nRequires-Dist: no-such-package; extra == "b"\n'
        'Requires-Dist: pytest<2; extra == "c"\n'
    )
    (info / "direct_url.json").write_text(
        '{"url": "https://example.org/spotrun", "vcs_info": {"vcs": "git", "commit_id": "fedcba9876543210"}}'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert commit_of(tmp_path / "elsewhere") == "fedcba987654"
    assert installed.extras() == ["a"], "the needs of the others are not met"
