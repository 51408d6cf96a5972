"""benchmarks/checkpoint: the whole path on a model of 9 MB, and what it says when it cannot run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.checkpoint import __main__ as program
from benchmarks.checkpoint import figures
from benchmarks.checkpoint.figures import Limits, Row
from benchmarks.checkpoint.measurement import Iteration, Measurement
from benchmarks.checkpoint.ours import notice_s
from benchmarks.checkpoint.plan import PLANS, blocks, room_gb
from benchmarks.checkpoint.table import table
from benchmarks.checkpoint.touch import touch_memory

LIMITS = Limits(client="obstore", memcpy_s=0.5, put_s=2.0, get_s=1.0)
CALM = Measurement(
    state_bytes=1000,
    iterations=[Iteration(1.0, 0.1, 0.02)] * 59,
    saves=[(20, 3.0)],
    paused=[(0.6, 2.0)],
    peak_bytes=5000,
)


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
    iterations = list(CALM.iterations)
    iterations[19], iterations[20] = Iteration(1.4, 0.5, 0.22), Iteration(1.3, 0.4, 0.12)
    iterations[30] = Iteration(9.0, 0.1, 0.02)
    found = replace(CALM, iterations=iterations, saves=[(20, 3.0), (59, 3.0)])
    none = replace(CALM, saves=[], paused=[], peak_bytes=3000)

    row = figures.row("m", "v", found, none, LIMITS)
    assert row.stall_ms_max == pytest.approx(700), "the checkpoint after the last whole step is left out"
    assert row.stall_cpu_ms_median == pytest.approx(300), "though the thread stood still for longer"
    assert row.stall_over_memcpy == pytest.approx(1.4)
    assert row.durable_over_put == pytest.approx(1.5)
    assert (row.durable_notice_over_put, row.extra_ram_over_state) == (1.0, 2.0)
    assert row.slowdown == pytest.approx(0), "what only the first checkpoint costs is in its stall"


def stalled_by(seconds: float) -> Measurement:
    iterations = list(CALM.iterations)
    iterations[19] = Iteration(1.0 + seconds, 0.1 + seconds, 0.02 + seconds / 2)
    return replace(CALM, iterations=iterations)


def test_each_round_has_every_variant_and_the_training_without_checkpoints_in_an_order_of_its_own() -> None:
    found = blocks(["ours", "pl_s3"], rounds=12, seed=1)
    assert {tuple(sorted(one)) for one in found} == {("none", "ours", "pl_s3")}
    assert len({tuple(one) for one in found}) > 1, "what comes first would always pay for what is first"
    assert found == blocks(["none", "ours", "pl_s3"], rounds=12, seed=1) != blocks(["ours", "pl_s3"], 12, seed=2)


def slower_by(*slowdowns: float) -> list[Row]:
    each = [replace(CALM, iterations=[Iteration(1 + slowdown, 0.1, 0.02)] * 59) for slowdown in slowdowns]
    return [figures.row("m", "v", one, CALM, LIMITS) for one in each]


def test_an_effect_is_noise_where_its_spread_is_larger_or_rounds_are_few() -> None:
    steady = figures.summary(slower_by(0.04, 0.05, 0.05, 0.06, 0.9))
    assert steady.row.slowdown == pytest.approx(0.05), "one round in which others worked counts for little"
    assert steady.spread["slowdown"] == pytest.approx((0.05, 0.06))
    assert not steady.is_noise("slowdown")
    (told,) = figures.as_json([figures.summary(slower_by(-0.03, 0.4, 0.01, -0.04, 0.02))])
    assert told["noise"] == ["slowdown"]
    assert figures.summary(slower_by(0.05, 0.05, 0.05, 0.05)).is_noise("slowdown"), "four rounds"
    assert not steady.is_noise("stall_over_ours"), "not compared"


def test_longer_stall_is_compared_with_the_plain_one_of_its_round() -> None:
    pairs = [(0.2, 0.21), (0.4, 0.42), (0.1, 0.105), (0.3, 0.315), (0.2, 0.21)]
    rows = [figures.row("m", "a", stalled_by(more), CALM, LIMITS, stalled_by(plain)) for plain, more in pairs]
    found = figures.summary(rows)
    assert found.row.stall_over_ours == pytest.approx(0.05), "though stalls of other rounds are four times as long"
    assert found.row.stall_cpu_over_ours == pytest.approx(0.05)
    assert not found.is_noise("stall_over_ours")
    (told,) = figures.as_json([found])
    assert (told["rounds"], told["noise"]) == (5, [])


def test_the_table_says_which_effects_are_noise() -> None:
    text = [
        str(cell)
        for column in table([figures.summary(slower_by(0.01, 0.3, -0.2, 0.02, 0.1))]).columns
        for cell in column.cells
    ]
    assert "2.0% (1.0% … 10.0%) noise" in text


def test_each_page_is_touched() -> None:
    assert touch_memory(5 << 20) == (5 << 20) // 4096


def test_the_server_has_room_for_the_files_of_a_training_too() -> None:
    assert room_gb(["tiny", "resnet50"], ["none", "ours"]) == PLANS["resnet50"].store_gb
    assert room_gb(["resnet50"], ["ours", "ours_files"]) == pytest.approx(PLANS["resnet50"].store_gb + 1.074, abs=1e-3)


def test_a_notice_is_not_as_long_as_the_checkpoint_that_sent_all_files_took() -> None:
    assert notice_s([260.0, 2.0, 1.0]) == notice_s([1.0, 2.0]) < 20
