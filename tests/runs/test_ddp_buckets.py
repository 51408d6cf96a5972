"""Three ranks add gradients up in the same order after a resume. Two have one order only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.object_stores import free_ports
from tests.support.repository import ROOT

RANKS = 3


def train(folder: Path, *more: str) -> list[list[str]]:
    """The digests of each step's gradients, on each rank."""
    (port,) = map(str, free_ports(1))
    script = ROOT / "tests" / "support" / "ddp_process.py"
    words = [[sys.executable, str(script), str(rank), str(RANKS), port, str(folder), *more] for rank in range(RANKS)]
    children = [subprocess.Popen(each, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}) for each in words]
    assert [child.wait(120) for child in children] == [0] * RANKS
    ends = "-".join(more) or "0"
    return [(folder / f"{rank}-{ends}.txt").read_text().splitlines() for rank in range(RANKS)]


def test_a_resumed_training_adds_up_in_the_same_order(tmp_path: Path):
    straight = train(tmp_path)
    for begins in (1, 2, 4):
        assert train(tmp_path, str(begins)) == [lines[begins:] for lines in straight]
    plainly = train(tmp_path, "3", "plainly")
    assert plainly[0][0] != straight[0][3], "DDP has made its buckets so by itself: is this of use yet?"
