"""benchmarks/checkpoint: the whole path on a model of 9 MB, and what it says when it cannot run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.checkpoint import __main__ as program
from benchmarks.checkpoint import figures
from benchmarks.checkpoint.figures import Limits
from benchmarks.checkpoint.measurement import Measurement


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
