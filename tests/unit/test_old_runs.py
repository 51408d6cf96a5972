"""
A run that an earlier spotrun wrote opens, and reports the same figures.

A folder has its ledger, an entry a line, and what `spotrun report --json` said of it then. tests/data/old_run, of
ledger version 2, was on the local cloud: five epochs, one interruption with a notice and one without, and the end on
demand as there was no spot. tests/data/run_on_one_instance, of version 3, has each event that is about an instance, a
standby, two losses, an attempt that hung, and an end that was corrected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.folder.ledger import key_of
from spotrun.run.entry_bytes import decode_entry, encode_entry

DATA = Path(__file__).parents[1] / "data"
OLD = ("old_run", "run_on_one_instance")


def ledger(name: str) -> list[bytes]:
    return (DATA / name / "ledger.jsonl").read_bytes().splitlines()


def reported(name: str) -> Any:
    return json.loads((DATA / name / "report.json").read_text())


@pytest.fixture(params=OLD)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path, name: str) -> Path:
    """One with the old run in it."""
    folder = tmp_path / reported(name)["run"]
    for number, entry in enumerate(ledger(name)):
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


def test_an_old_run_reports_the_figures_of_then(store: Path, name: str) -> None:
    then = reported(name)
    command = ["report", then["run"].partition("-")[0], "--store", str(store), "--json"]
    said = CliRunner().invoke(app, command, catch_exceptions=False)
    now, then = dict(figures(json.loads(said.stdout))), dict(figures(then))
    assert {place: now.get(place) for place in then} == then
    assert len(then) > 100


def test_compared_old_runs_have_losses_spot_and_on_demand(name: str) -> None:
    report = reported(name)
    assert report["state"] == "completed"
    assert len(report["epochs"]) >= 4
    assert report["interruptions"]
    assert all(float(report["total"][key]) > 0 for key in ("spot_usd", "on_demand_usd", "steps_redone"))


def test_an_entry_of_a_run_on_one_instance_is_written_as_it_was_then() -> None:
    """So an older spotrun that reads its version reads each of its entries."""
    entries = ledger("run_on_one_instance")
    found = [decode_entry(entry) for entry in entries]
    assert [entry and encode_entry(entry) for entry in found] == entries
