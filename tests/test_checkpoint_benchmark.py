"""benchmarks/checkpoint: the whole path on a model of 9 MB, and what it says when it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checkpoint import plan, processes

ROOT = Path(__file__).parent.parent
RATIOS = ("stall_over_memcpy", "durable_over_put", "durable_notice_over_put", "restore_over_get")
KEYS = {"model", "variant", "stall_ms_median", "stall_ms_max", "slowdown", "extra_ram_over_state", *RATIOS}


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.checkpoint", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_a_checkpoint_of_a_small_model_is_measured_and_restored_to_the_bit(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = call("--models", "tiny", "--variants", "none,ours", "--json", out)
    assert done.returncode == 0, done.stderr

    none, ours = json.loads(out.read_text())
    assert (none["variant"], ours["variant"]) == ("none", "ours")
    assert KEYS <= none.keys()
    assert KEYS <= ours.keys()
    assert ours["restored_identical"] is True
    assert ours["checkpoints"] >= plan.PLANS["tiny"].checkpoints
    assert ours["state_bytes"] == none["state_bytes"] > 9_000_000
    assert ours["stall_ms_max"] >= ours["stall_ms_median"] > 0
    assert all(ours[name] > 0 for name in RATIOS)
    assert all(none[name] is None for name in RATIOS)
    assert ours["slowdown"] > -0.9
    assert ours["extra_ram_over_state"] > 1, "an arena alone is as large as the state"
    assert all(ours["limits"][name] > 0 for name in ("memcpy_s", "put_s", "get_s"))
    assert "ours" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "alexnet"), "error: no model alexnet\n  try: --models tiny,resnet50"),
        (("--variants", "none,magic"), "error: no variant magic\n  try: --variants none,"),
        (("--variants", ""), "error: no variant was named"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    done = call(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr
