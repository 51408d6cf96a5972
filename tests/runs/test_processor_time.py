"""The plugins of the tests: shares of processor time, and tests in forked processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.processor_time import Grown, grown, shares_of
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


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_c.py").write_text("import os\n\ndef test_dies():\n    os._exit(3)\n")
    done = run(tmp_path)
    assert done.returncode != 0
    assert "ended with 3" in done.stdout + done.stderr


def test_shares_are_written_and_compared(tmp_path: Path) -> None:
    (tmp_path / "shares.json").write_text(json.dumps({"test_a.py": 999.0, "test_b.py": 1.0}))
    done = run(tmp_path, "--shares", str(tmp_path / "shares.json"), "--deselect", "test_a.py::test_fails",
               "--deselect", "test_b.py::test_fails")  # fmt: skip
    assert done.returncode == 1
    assert "test_b.py: " in done.stdout
    assert "over its budget" in done.stdout


def test_only_what_grew_by_a_third_is_reported_and_only_of_the_whole_suite() -> None:
    before = shares_of({"a": 50.0, "b": 50.0})
    assert grown(before, shares_of({"a": 52.0, "b": 48.0})) == []
    assert grown(before, shares_of({"a": 75.0, "b": 25.0})) == [Grown("a", 500.0, 750.0)]
    assert not Grown("a", 500.0, 750.0).is_over
    assert Grown("a", 10.0, 23.0).is_over
    assert grown(before, shares_of({"a": 1.0})) == []
