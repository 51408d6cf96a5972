"""Public records of spot markets, and which number means available."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spotrun.errors import SpotrunError
from spotrun.simulation.traces import read_json, read_windows


def test_the_same_numbers_mean_the_opposite_to_the_two_publishers(tmp_path: Path) -> None:
    path = tmp_path / "us-west-2a.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 0, 0]}))
    skypilot, adrs = read_json(path, "skypilot", 1.0), read_json(path, "adrs", 1.0)
    assert skypilot.ticks(0, (0,)) == [{"us-west-2a": 1.0}, {}, {}]
    assert adrs.ticks(0, (0,)) == [{}, {"us-west-2a": 1.0}, {"us-west-2a": 1.0}]
    assert (skypilot.polarity, adrs.polarity) == ("1 = available (skypilot)", "0 = available (adrs)")
    assert skypilot.tick_s == 600.0


def test_windows_come_out_as_zones_with_prices(tmp_path: Path) -> None:
    up = np.zeros((2, 9, 2), np.uint8)
    up[1, 8, 1] = 1
    np.savez(
        tmp_path / "w.npz",
        up=np.packbits(up, axis=1),
        ticks=9,
        price=np.full((2, 9, 2), 0.5, np.float32),
        zone=np.array(["a", "b"]),
        gap_s=195,
    )
    windows = read_windows(tmp_path / "w.npz")
    assert windows.up.shape == (2, 9, 2)
    assert windows.ticks(1, (0, 1))[7:] == [{}, {"b": 0.5}]
    assert windows.ticks(1, (0,))[8] == {}


def test_a_folder_without_the_windows_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpotrunError, match="no market windows"):
        read_windows(tmp_path / "none.npz")
