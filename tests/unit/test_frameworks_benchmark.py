"""What `python -m benchmarks.frameworks` says of what it has measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import frameworks, own_resume
from benchmarks.frameworks import Held, Turn
from benchmarks.lockstep import Took
from benchmarks.own_resume import CASES, Row, differences

STRAIGHT: dict[str, Any] = {
    "weights": "a",
    "optimizer": "b",
    "best": [1.0, 3],
    "history": [{"loss": 1.0}],
    "loss": "0x1",
}
BATCHES = [[[1, 2], "0x1"], [[3, 4], "0x2"], [[5, 6], "0x3"]]


def test_a_training_that_is_the_same_differs_in_nothing() -> None:
    assert differences(STRAIGHT, STRAIGHT, BATCHES, BATCHES) == []
    assert differences(STRAIGHT, STRAIGHT, BATCHES, BATCHES[1:]) == [], "it has the batches after its resume alone"


@pytest.mark.parametrize(
    ("changed", "again", "said"),
    [
        ({}, [[[4, 3], "0x2"], BATCHES[2]], ["which samples a batch has"]),
        ({}, [[[3, 4], "0x9"], BATCHES[2]], ["the loss of batches"]),
        ({"weights": "z"}, BATCHES, ["weights"]),
        ({"optimizer": "z", "best": [2.0, 3]}, BATCHES, ["optimizer", "the best metric"]),
        ({"history": [], "loss": "0x2"}, BATCHES, ["what was logged", "`train_loss`"]),
    ],
)
def test_each_difference_is_named(changed: dict[str, Any], again: list[Any], said: list[str]) -> None:
    assert differences(STRAIGHT, STRAIGHT | changed, BATCHES, again) == said


def test_the_page_has_a_row_of_each_training() -> None:
    page = frameworks.PAGE.read_text()
    rows = page.partition(frameworks.BEGIN)[2].partition(frameworks.END)[0]
    named = [line.split(" | ")[0].removeprefix("| ") for line in rows.strip().splitlines()[2:]]
    assert named == list(CASES), "python -m benchmarks.frameworks --exactness"
    assert all(line.endswith("| the same bits |") for line in rows.strip().splitlines()[2:])


def test_a_row_has_what_differs_alone_and_with_us() -> None:
    text = own_resume.table([Row("a stream", ["weights"], [])])
    assert text.splitlines()[-1] == "| a stream | differ: weights | the same bits |"


def test_slowdown_is_shown_with_its_spread_and_called_noise_if_that_is_as_large() -> None:
    alone = Took(10.0, 8.0)
    turns = [Turn(alone, Took(10.0 + part / 20, 8.24)) for part in range(1, 21)]
    assert frameworks.told("transformers", turns) == (
        "transformers, a snapshot every 20 steps: +3.0% (+3.0% … +3.0%) processor time, +5.3% (+2.9% … +7.6%) longer"
    )
    assert "noise" in frameworks.told("transformers", turns[:2])


def test_stall_is_shown_as_a_part_of_a_copy() -> None:
    held = [Held(1_000_000_000, stall_s, 0.2) for stall_s in (0.02, 0.01, 0.03)]
    assert frameworks.told_of_stalls("loop", held) == (
        "loop, a snapshot of 1.00 GB: a stall of 20.0 ms, 0.100 (0.075 … 0.125) of a copy"
    )
