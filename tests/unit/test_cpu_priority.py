"""agent/machine/cpu_priority.py: the agent's session stands behind the trainer's while it sends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotrun.agent.machine.cpu_priority import AUTOGROUP, NICENESS, CpuPriority

SCRIPT = """
from pathlib import Path
from spotrun.agent.machine.cpu_priority import CpuPriority
own = Path("/proc/self/autogroup")
cpu_priority = CpuPriority()
before = own.read_text()
cpu_priority.stand_behind(True)
behind = own.read_text()
while own.read_text() != before:  # without privileges not at once
    cpu_priority.stand_behind(False)
print(behind.split()[-1], own.read_text().split()[-1])
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel shares its processors between threads alone")
def test_a_session_steps_back_and_comes_forward_again() -> None:
    """In a session of its own, as all that shares this one would step back with it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], start_new_session=True, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(NICENESS), "0"]


def test_refused_cpu_priority_is_requested_again(tmp_path: Path) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.write_text("/autogroup-7 nice 0\n")
    cpu_priority = CpuPriority(autogroup)
    autogroup.rename(tmp_path / "away")
    autogroup.mkdir()  # nothing can be written there
    cpu_priority.stand_behind(True)
    autogroup.rmdir()
    cpu_priority.stand_behind(True)
    assert autogroup.read_text() == str(NICENESS)
    cpu_priority.stand_behind(False)
    assert autogroup.read_text() == "0"


def test_low_cpu_priority_of_the_user_stays(tmp_path: Path) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.write_text("/autogroup-7 nice 15\n")
    before = os.stat(autogroup).st_mtime_ns
    cpu_priority = CpuPriority(autogroup)
    cpu_priority.stand_behind(True)
    cpu_priority.stand_behind(False)
    assert os.stat(autogroup).st_mtime_ns == before


def test_without_the_feature_nothing_happens(tmp_path: Path) -> None:
    cpu_priority = CpuPriority(tmp_path / "absent")
    cpu_priority.stand_behind(True)
    assert not (tmp_path / "absent").exists()
