"""The stacks of a training that hangs on several ranks: one rank after another, before their launcher ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from spotrun.agent.machine import process_groups
from spotrun.agent.processes.trainer_process import abort_ranks
from tests.support.eventually import eventually

RANK = """
import os, subprocess, sys, time
def waits_as_rank_{rank}():
    open(sys.argv[1] + "-{rank}", "w").close()
    time.sleep(300)
worker = subprocess.Popen(["sleep", "300"])
waits_as_rank_{rank}()
"""
LAUNCHER = (
    'RANK=1 $PYTHON -c "$ONE" $AT & RANK=2 $PYTHON -c "$TWO" $AT & RANK=0 $PYTHON -c "$NONE" $AT & wait -n; kill -9 0'
)
"""As torchrun does, it ends all ranks as soon as one is gone."""


def test_each_rank_prints_its_stacks(tmp_path: Path) -> None:
    codes = dict(zip(("NONE", "ONE", "TWO"), (RANK.format(rank=rank) for rank in range(3)), strict=True))
    variables = {"PYTHON": f"{sys.executable} -S -X faulthandler", "AT": str(tmp_path / "up")}
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as output:
        launcher = subprocess.Popen(
            ["bash", "-c", LAUNCHER],
            stderr=output,
            env={**os.environ, **codes, **variables},
            start_new_session=True,
        )
        try:
            eventually(lambda: len(list(tmp_path.glob("up-*"))) == 3)
            pythons = [each for each in psutil.Process(launcher.pid).children() if "python" in each.name()]
            by_rank = {each.environ()["RANK"]: each.pid for each in pythons}
            others = process_groups.ranks(launcher.pid, by_rank["0"])
            assert others == {1: by_rank["1"], 2: by_rank["2"]}, "the processes that they started are no ranks"
            abort_ranks(by_rank["0"], others, lambda line: os.write(output.fileno(), f"{line}\n".encode()) and None)
            assert launcher.wait(60) == -signal.SIGKILL
        finally:
            process_groups.signal_all(launcher.pid, signal.SIGKILL)
            launcher.wait()
    said = [
        line.split(" ")[-1] if "waits_as" in line else line.partition(" (")[0] for line in log.read_text().splitlines()
    ]
    found = [line for line in said if line.startswith(("stacks of", "waits_as"))]
    assert found == [line for rank in (1, 2, 0) for line in (f"stacks of rank {rank}", f"waits_as_rank_{rank}")]
