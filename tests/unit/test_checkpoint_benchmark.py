"""benchmarks/checkpoint: the whole path on a model of 9 MB, and what it says when it cannot run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.checkpoint import __main__ as program
from benchmarks.checkpoint import figures
from benchmarks.checkpoint.figures import Limits
from benchmarks.checkpoint.measurement import Measurement
from tests.support.repository import ROOT

WITHIN_S = 480
"""It takes a minute beside four other trainings on two cores."""
RATIOS = ("stall_over_memcpy", "durable_over_put", "durable_notice_over_put", "restore_over_get", "whole_over_get")
KEYS = {"model", "variant", "stall_ms_median", "stall_ms_max", "slowdown", "extra_ram_over_state", *RATIOS}


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.checkpoint", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    try:
        output, errors = process.communicate(timeout=WITHIN_S)
    except BaseException:
        process.send_signal(signal.SIGINT)  # as a Ctrl-C, after which nothing is left
        process.communicate(timeout=30)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_a_checkpoint_of_a_small_model_is_measured_and_restored_to_the_bit(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = call("--models", "tiny", "--variants", "none,ours", "--json", out)
    assert done.returncode == 0, done.stderr

    none, ours = json.loads(out.read_text())
    assert (none["variant"], ours["variant"]) == ("none", "ours")
    assert none.keys() >= KEYS
    assert ours.keys() >= KEYS
    assert ours["restored_identical"] is True
    assert ours["checkpoints"] >= 1, "on a busy machine one is still on its way when the next is taken"
    assert ours["state_bytes"] == none["state_bytes"] > 9_000_000
    assert ours["stall_ms_max"] >= ours["stall_ms_median"] > 0
    assert all(ours[name] > 0 for name in RATIOS)
    assert all(none[name] is None for name in RATIOS)
    assert isinstance(ours["first_batch_beyond_s"], float)
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


def test_a_variant_whose_packages_are_absent_is_refused_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "PEERS", tmp_path)
    with pytest.raises(SystemExit) as refused:
        program.main("tiny", "none,pl_s3,dcp_s3torchconnector,pl_local")
    assert refused.value.code == (
        "error: pl_s3, dcp_s3torchconnector: s3fs, s3torchconnector not installed\n  try: make .peers"
    )


def test_a_stall_is_what_the_loop_takes_beyond_a_calm_step_where_it_was_taken_and_where_it_is_waited_for() -> None:
    iterations = [(1.0, 0.1)] * 59
    iterations[19], iterations[20], iterations[30] = (1.4, 0.5), (1.3, 0.4), (9.0, 0.1)
    found = Measurement(
        state_bytes=1000, iterations=iterations, saves=[(20, 3.0), (59, 3.0)], paused=[(0.6, 2.0)], peak_bytes=5000
    )
    none = replace(found, iterations=[(1.0, 0.1)] * 59, saves=[], paused=[], peak_bytes=3000)
    limits = Limits(client="obstore", memcpy_s=0.5, put_s=2.0, get_s=1.0)

    row = figures.row("m", "v", found, none, limits)
    assert row.stall_ms_max == pytest.approx(700), "the checkpoint after the last whole step is left out"
    assert row.stall_over_memcpy == pytest.approx(1.4)
    assert row.durable_over_put == pytest.approx(1.5)
    assert (row.durable_notice_over_put, row.extra_ram_over_state) == (1.0, 2.0)
    assert row.slowdown == pytest.approx(0), "what only the first checkpoint costs is in its stall"
