"""The pages are executed as they stand: files are written, commands are run in one shell, and output is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doc_pages import blocks, prints
from tests.support.repository import ROOT

WITHIN_S = 400
NIGHTLY = [pytest.param(page, marks=pytest.mark.nightly) for page in ("cost", "checkpoints", "results")]
TROUBLE = pytest.param("troubleshooting", marks=[pytest.mark.first_hour, pytest.mark.nightly])
GUIDES = ("deadlines", "plan", "estimate", *NIGHTLY, TROUBLE)
"""These use the run of the quickstart."""
SHORT_IMPORTS = ROOT / "tests" / "support" / "short_imports"
"""Their trainings and rehearsals start a dozen Pythons, each of which it spares three seconds."""
LIBRARIES = [path for path in sys.path if path.endswith("site-packages")]


class Reader:
    """Does what a page says, in a folder beside a checkout of spotrun."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.folder = folder
        self.environment = {
            "HOME": str(folder),
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as a switch: builds with the setuptools that is there
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(sys.executable)
        checkout = folder / "spotrun"
        checkout.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE", "spotrun"):
            (checkout / name).symlink_to(ROOT / name)  # a build writes beside them, not into the work tree

    def read(self, page: str) -> None:
        for block in blocks(ROOT / "docs" / f"{page}.md"):
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)
            if block.kind == "console" and block.not_run is None:
                for command, expected in block.commands():
                    output = self.run(command)
                    assert not expected or prints(expected, output), f"{page}.md:{block.line}: {command}\n{output}"

    def run(self, command: str) -> str:
        """A failure is one, unless the page says with which code the command ends."""
        words, _, remark = command.partition("    # ")
        expected = int(remark.rpartition(" ")[2]) if remark.startswith("ends with exit code") else 0
        spares = {"PYTHONPATH": str(SHORT_IMPORTS)} if command.startswith("spotrun ") else {}
        keep = f'{words}\ncode=$?; pwd > "$HOME/pwd"; env -0 > "$HOME/env"; exit $code'
        done = subprocess.run(
            ["bash", "-c", keep],
            cwd=self.folder,
            env=self.environment | spares,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
        )
        assert done.returncode == expected, f"{command}: {done.returncode}\n{done.stdout}"
        self.folder = Path((self.home / "pwd").read_text().strip())
        pairs = (self.home / "env").read_text().split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.environment.pop("PYTHONPATH", None)
        self._lend_libraries()
        return done.stdout

    def _lend_libraries(self) -> None:
        """A new environment sees the torch and the Lightning of these tests: pip then downloads nothing."""
        for packages in self.folder.glob(".venv/lib/python3.*/site-packages"):
            (packages / "lent.pth").write_text(
                f"import sys; sys.path[1:1] = {LIBRARIES}\n"
            )  # before its old setuptools


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the quickstart."""
    reader = Reader(tmp_path_factory.mktemp("a reader"))
    reader.read("quickstart")
    yield reader
    reader.run("spotrun reap -y")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_is_true_as_it_stands_after_the_quickstart(reader: Reader, page: str) -> None:
    reader.read(page)
    assert os.path.basename(reader.folder) == "my-project"


def test_the_site_is_built_with_every_link_leading_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make dev installs it")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    start = (tmp_path / "site" / "index.html").read_text()
    assert "terminal.svg" in start
    assert not re.search(r'(?:src|href)="(?:https?:)?//(?!squidfunk)', re.sub(r"<a [^>]*>", "", start)), "it loads that"
