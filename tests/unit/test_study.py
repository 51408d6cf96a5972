"""Strategies studied on recorded markets."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from spotrun.errors import SpotrunError
from spotrun.forecast.study import Options, StrategyResult, records_in, study
from spotrun.forecast.study_report import as_csv, as_json
from tests.support.market_records import write_records

HOUR_S = 3600.0
STRATEGIES = ("ours", "on_demand_only", "spot_only")
OPTIONS = Options(STRATEGIES, (2 * HOUR_S,), (3 * HOUR_S, 4 * HOUR_S), (360.0,), price_ratio=3.0)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_records(tmp_path / "traces")


@pytest.mark.exhaustive
def test_a_study_has_a_row_per_case_and_strategy_and_on_demand_costs_its_bill(traces: Path) -> None:
    found = study(records_in(traces), OPTIONS)
    assert [(row.strategy, row.case.deadline_s) for row in found.rows] == [
        (strategy, deadline_s) for deadline_s in OPTIONS.deadlines_s for strategy in STRATEGIES
    ]
    assert [record.name for record in found.records] == ["comes-and-goes.json", "never.json"]
    for row in found.rows:
        assert row.trials == 8
        if row.strategy == "on_demand_only":
            assert row.cost_share == pytest.approx(1.0)
        assert (row.misses > 0) == (row.strategy == "spot_only")


def test_polarity_is_applied_by_the_reader_and_reported(traces: Path) -> None:
    options = Options(("spot_only",), (HOUR_S,), (4 * HOUR_S,), (360.0,), published_as="adrs")
    found = study([traces / "never.json"], options)
    assert found.records[0].polarity == "0 = available (adrs)"
    assert found.records[0].up_share == 1.0
    assert found.rows[0].misses == 0


@pytest.mark.exhaustive
def test_the_same_study_has_the_same_hash_and_another_changeover_another(traces: Path) -> None:
    other = Options(STRATEGIES, (2 * HOUR_S,), (3 * HOUR_S, 4 * HOUR_S), (720.0,))
    digests = [study(records_in(traces), options).digest for options in (OPTIONS, OPTIONS, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.exhaustive
def test_hindsight_is_below_every_strategy_and_counts_no_losses(traces: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, strategies=("ours", "greedy", "optimum"))
    costs: dict[float, dict[str, StrategyResult]] = {}
    for row in study(records_in(traces), options).rows:
        costs.setdefault(row.case.deadline_s, {})[row.strategy] = row
    for rows in costs.values():
        assert rows["optimum"].cost_share <= min(rows["ours"].cost_share, rows["greedy"].cost_share) + 1e-9 < 1
        assert (rows["optimum"].losses, rows["optimum"].misses) == (None, 0)


@pytest.mark.exhaustive
def test_csv_and_json_hold_the_same_figures(traces: Path) -> None:
    found = study(records_in(traces), OPTIONS)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    facts = json.loads(json.dumps(as_json(found)))
    assert [float(row["cost_share"]) for row in rows] == [each["cost_share"] for each in facts["results"]]
    assert facts["results"][0]["work_s"] == 2 * HOUR_S


@pytest.mark.exhaustive
def test_records_too_short_for_the_deadline_are_reported(traces: Path) -> None:
    long = Options(STRATEGIES, (HOUR_S,), (1000 * HOUR_S,), (360.0,))
    with pytest.raises(SpotrunError, match="no record is as long as the deadlines"):
        study(records_in(traces), long)
    with pytest.raises(SpotrunError, match="no recorded market"):
        records_in(traces.parent / "nowhere")
