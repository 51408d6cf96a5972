"""Public records of spot markets, and which number means available."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spotrun.errors import SpotrunError
from spotrun.forecast.traces import read_any, read_bamboo, read_counts, read_json, read_windows


def test_the_same_numbers_mean_the_opposite_to_the_two_publishers(tmp_path: Path) -> None:
    path = tmp_path / "us-west-2a.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 0, 0]}))
    skypilot, adrs = read_json(path, "skypilot", 1, 1.0), read_json(path, "adrs", 1, 1.0)
    assert skypilot.ticks(0, (0,)) == [{"us-west-2a": 1.0}, {}, {}]
    assert adrs.ticks(0, (0,)) == [{}, {"us-west-2a": 1.0}, {"us-west-2a": 1.0}]
    assert (skypilot.polarity, adrs.polarity) == ("1 = available (skypilot)", "0 = available (adrs)")
    assert skypilot.tick_s == 600.0


def test_a_record_of_counts_is_up_while_enough_instances_are_there(tmp_path: Path) -> None:
    path = tmp_path / "us-west-2a.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 4, 16, 3]}))
    assert read_any(path, "skypilot", 1, 1.0).up[0, :, 0].tolist() == [False, True, True, True, True]
    four = read_any(path, "skypilot", 4, 1.0)
    assert four.up[0, :, 0].tolist() == [False, False, True, True, False]
    assert four.polarity == "at least 4 running = available"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1.0, 1]}))
    assert not read_any(path, "skypilot", 4, 1.0).up.any(), "there are never four of them"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 16]}))
    with pytest.raises(
        SpotrunError, match="counts up to 16 instances, but a record in the format adrs has only 0 and 1"
    ):
        read_any(path, "adrs", 1, 1.0)


@pytest.mark.parametrize("data", [[], [-1, 1], [0.5], [[1], [0]], ["up"], {"a": 1}, None, 7])
def test_a_record_of_anything_but_numbers_of_instances_is_refused(tmp_path: Path, data: object) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data}))
    with pytest.raises(SpotrunError, match="is not a record of a market: data is not a list of whole numbers"):
        read_any(path, "skypilot", 1, 1.0)


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


def test_folder_without_the_windows_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpotrunError, match="no market windows"):
        read_windows(tmp_path / "none.npz")


def test_a_group_is_up_while_enough_of_its_nodes_run(tmp_path: Path) -> None:
    path = tmp_path / "group.csv"
    path.write_text("0,add,a\n60000,add,b\n180000,remove,a\n300000,remove,b\n")
    pair, one = read_bamboo(path, 2, 1.0), read_bamboo(path, 1, 1.0)
    assert pair.up[0, :, 0].tolist() == [False, True, True, False, False]
    assert one.up.all()
    assert pair.polarity == "at least 2 running = available"


def test_counts_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = tmp_path / "count.txt"
    path.write_text("2021-12-11, 11:02:00, 1\n2021-12-11, 11:00:00, 5\n2021-12-11, 11:04:00, 7\n")
    assert read_counts(path, 3, 1.0).up[0, :, 0].tolist() == [True, True, False, False]


def test_file_that_is_no_record_is_reported_by_name(tmp_path: Path) -> None:
    texts = {"a.json": "{}", "nest.json": "[" * 100_000, "b.csv": "hello", "c.txt": "hello"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(SpotrunError, match="is not a record of a market"):
            read_any(tmp_path / name, "skypilot", 1, 1.0)


def test_unreadable_record_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpotrunError, match="is a folder"):
        read_any(tmp_path, "adrs", 1, 1.0)
    with pytest.raises(SpotrunError, match=r"absent\.json cannot be read: No such file"):
        read_any(tmp_path / "absent.json", "adrs", 1, 1.0)
