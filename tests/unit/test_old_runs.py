"""
A run that an earlier spotrun wrote opens, and reports the same figures.

tests/data/old_run has its ledger, an entry a line, and what `spotrun report --json` said of it then: on the local
cloud, five epochs, one interruption with a notice and one without, and the end on demand as there was no spot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.folder.ledger import key_of

DATA = Path(__file__).parents[1] / "data" / "old_run"
REPORT = json.loads((DATA / "report.json").read_text())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One with the old run in it."""
    folder = tmp_path / REPORT["run"]
    for number, entry in enumerate((DATA / "ledger.jsonl").read_bytes().splitlines()):
        path = folder / key_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(entry)
    return tmp_path


def figures(report: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Each value with its place. `assumptions` is a sentence, and may be put otherwise one day."""
    match report:
        case dict():
            for key in report.keys() - {"assumptions"}:
                yield from figures(report[key], f"{place}.{key}")
        case list():
            for at, each in enumerate(report):
                yield from figures(each, f"{place}[{at}]")
        case _:
            yield place, report


def test_an_old_run_reports_the_figures_of_then(store: Path) -> None:
    said = CliRunner().invoke(app, ["report", "old", "--store", str(store), "--json"], catch_exceptions=False)
    now, then = dict(figures(json.loads(said.stdout))), dict(figures(REPORT))
    assert {place: now.get(place) for place in then} == then
    assert len(then) > 100


def test_what_is_compared_has_losses_spot_and_on_demand() -> None:
    assert REPORT["state"] == "completed"
    assert len(REPORT["epochs"]) == 5
    assert len(REPORT["interruptions"]) == 2
    assert all(float(REPORT["total"][key]) > 0 for key in ("spot_usd", "on_demand_usd", "steps_redone"))
