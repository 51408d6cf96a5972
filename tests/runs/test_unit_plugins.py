"""The plugins of the unit tests: forked processes, and a limit on the processor time of a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT

BOTH = ("-p", "tests.support.forked", "-p", "tests.support.processor_time", "-p", "no:cacheprovider")
TESTS = """
import os, time
import pytest
HERE = os.getpid()

def test_passes():
    print(os.getpid())

def test_fails():
    assert False, "on purpose"

def test_burns():
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass

@pytest.mark.skip(reason="never")
def test_is_skipped():
    pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on two files of these tests, in two forked processes."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in ("test_a.py", "test_b.py"):
        (folder / name).write_text(TESTS)
    words = [sys.executable, "-m", "pytest", *BOTH, "--forks", "2", "-rfs", "-p", "no:xdist", *options, str(folder)]
    return subprocess.run(words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


def test_forked_processes_report_each_test_once_and_name_the_expensive_one(tmp_path: Path) -> None:
    done = run(tmp_path, "--cpu-max", "0.25")
    assert done.returncode == 1
    assert "2 passed" in done.stdout
    assert "4 failed" in done.stdout
    assert "2 skipped" in done.stdout
    assert done.stdout.count("on purpose") >= 2
    assert "test_burns" in done.stdout
    assert "0.25 s are allowed" in done.stdout


def test_option_x_stops_all_processes_at_the_first_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "-x")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout


def test_file_that_cannot_be_imported_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_c.py").write_text("import no_such_module\n")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "no_such_module" in done.stdout
    assert "passed" not in done.stdout


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_c.py").write_text("import os\n\ndef test_dies():\n    os._exit(3)\n")
    done = run(tmp_path)
    assert done.returncode != 0
    assert "ended with 3" in done.stdout + done.stderr
