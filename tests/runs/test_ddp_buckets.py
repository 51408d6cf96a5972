"""Three ranks add gradients up in the same order after a resume. Two have one order only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.object_stores import free_ports
from tests.support.repository import ROOT

RANKS = 3


def test_a_resumed_training_adds_up_in_the_same_order(tmp_path: Path):
    begun = ("0", "1", "2", "4", "3:plainly")
    script = ROOT / "tests" / "support" / "ddp_process.py"
    trainings = [f"{port}:{begins}" for port, begins in zip(free_ports(len(begun)), begun, strict=True)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, str(RANKS), tmp_path, *trainings], env=environment, check=True, timeout=120)

    def digests(name: str) -> list[list[str]]:
        """Of each step's gradients, on each rank."""
        return [(tmp_path / f"{rank}-{name}.txt").read_text().splitlines() for rank in range(RANKS)]

    straight = digests("0")
    for begins in (1, 2, 4):
        assert digests(str(begins)) == [lines[begins:] for lines in straight]
    assert digests("3-plainly")[0][0] != straight[0][3], "DDP has made its buckets so by itself: is this of use yet?"
