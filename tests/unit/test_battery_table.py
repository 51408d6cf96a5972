"""The table of batteries: each entry runs something that exists, and a result is written into its own section."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from tests.batteries import __main__ as batteries
from tests.support.repository import ROOT


def test_each_battery_runs_a_module_or_a_test_file_that_exists() -> None:
    for name, battery in tomllib.loads(batteries.TABLE.read_text()).items():
        assert battery.keys() <= {"proves", "minutes", "module", "pytest", "last"}, name
        if "pytest" in battery:
            assert (ROOT / battery["pytest"]).is_file(), name
        else:
            assert importlib.util.find_spec(battery["module"]), name


def test_result_replaces_the_last_one_of_its_battery_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "batteries.toml"
    table.write_text('# all\n\n[one]\nproves = "a"\n\n[two]\nproves = "b"\nlast = "old"\n')
    monkeypatch.setattr(batteries, "TABLE", table)
    batteries.record("one", "passed in 3 min")
    batteries.record("two", "failed (1) in 4 min")
    found = tomllib.loads(table.read_text())
    assert found["one"]["last"].startswith("passed in 3 min, ")
    assert found["two"]["last"].startswith("failed (1) in 4 min, ")
    assert (found["one"]["proves"], found["two"]["proves"]) == ("a", "b")
    assert table.read_text().count("last = ") == 2
