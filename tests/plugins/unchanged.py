"""
A pytest plugin that leaves out the tests of fakes, benchmarks and batteries while these are unchanged.

    pytest -p tests.plugins.unchanged --unchanged skip tests      # make test
    pytest -p tests.plugins.unchanged --unchanged record tests    # make nightly: run them all, and remember what passed

Such a test proves nothing about spotrun itself. It names what it is about:

    pytestmark = pytest.mark.checks("benchmarks", "tests/support/gce_vm.py")
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

RECORD = Path("tests", "plugins", "unchanged.txt")
_HEAD = "# SHA-256 of the files that the tests marked `checks` are about, as they were when all these tests passed.\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unchanged", choices=("skip", "record"), help="Leave unchanged tools out, or record them.")


@pytest.hookimpl(trylast=True)  # what -k and -m leave out has proven nothing
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    about = {item: _subjects(item) for item in items if item.get_closest_marker("checks")}
    names = sorted({name for found in about.values() for name in found})
    if missing := [name for name in names if not (config.rootpath / name).exists()]:
        raise pytest.UsageError(f"a test is marked `checks` with a path that does not exist: {', '.join(missing)}")
    now = {name: digest_of(config.rootpath / name) for name in names}
    record = config.rootpath / RECORD
    if config.getoption("--unchanged") == "record":
        config.pluginmanager.register(_Records(record, now), "records-unchanged")
    elif config.getoption("--unchanged") == "skip":
        recorded = _read(record)
        left_out = [item for item, found in about.items() if all(recorded.get(name) == now[name] for name in found)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in {*left_out}]


class _Records:
    def __init__(self, record: Path, digests: dict[str, str]) -> None:
        self._record, self._digests = record, digests

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            self._record.write_text(_HEAD + "".join(f"{digest}  {name}\n" for name, digest in self._digests.items()))


def _subjects(item: pytest.Item) -> list[str]:
    """Return the files and folders that a test is about, with the test's own file, relative to the repository."""
    named = [str(path) for mark in item.iter_markers("checks") for path in mark.args]
    return [str(item.path.relative_to(item.config.rootpath)), *named]


def _read(record: Path) -> dict[str, str]:
    """Return the recorded digest of each file and folder."""
    lines = record.read_text().splitlines() if record.exists() else []
    pairs = (line.split("  ", 1) for line in lines if not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files in a folder with their names."""
    whole = hashlib.sha256()
    for file in _files(path):
        whole.update(f"{file.relative_to(path)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return (file for file in found if file.is_file() and "__pycache__" not in file.parts)
