"""The table of six kinds of public scripts, and what of it has to be measured yet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from tests.batteries import way_rows
from tests.batteries.way_rows import (
    AGENT,
    INSTANCE,
    NOTICE,
    TRAINER,
    WAYS,
    Kill,
    Seen,
    keep,
    known,
    row,
    unseen,
    with_rows,
)

SEEN = Seen("a", 48, 5, 226, (Kill(TRAINER, 3), Kill(AGENT, 2), Kill(NOTICE, 0), Kill(INSTANCE, 1)))


def test_a_row_has_the_kills_and_the_steps_that_were_done_twice() -> None:
    cells = row("fabric", SEEN).split(" | ")
    assert cells[1:] == [
        "`python train.py`",
        "48",
        "the trainer 1, its agent 1, the instance without a word 1, the instance with a notice 1",
        "0, at most 0 for one kill",
        "6, at most 3 for one kill",
        "the same bits: 5 files, 226 tensors of the last checkpoint |\n",
    ]


def test_row_shows_what_differs() -> None:
    seen = msgspec.structs.replace(SEEN, wrong="a|b <c>\nd")
    assert row("fabric", seen).endswith("| **differs**: a\\|b &lt;c> d |\n")


def test_an_instance_is_killed_with_a_notice_half_of_the_times() -> None:
    assert SEEN.left(1) == Counter(), "one of each, and an odd instance without a notice"
    assert SEEN.left(4) == {TRAINER: 3, AGENT: 3, INSTANCE: 1, NOTICE: 1}


def test_measurement_of_other_files_does_not_count(tmp_path: Path) -> None:
    measured = msgspec.structs.replace(SEEN, sha256=unseen("fabric").sha256)
    keep(tmp_path, "fabric", measured)
    keep(tmp_path, "hydra", SEEN)
    found = known(tmp_path)
    assert list(found) == list(WAYS)
    assert found["fabric"] == measured
    assert found["hydra"] == unseen("hydra")


def test_the_page_has_a_row_of_each() -> None:
    page = way_rows.PAGE.read_text()
    assert with_rows(page, dict.fromkeys(WAYS, SEEN)).count("[fabric](../tests/batteries/of_ways/fabric)") == 1
    for name in WAYS:
        assert f"| [{name}](../tests/batteries/of_ways/{name})" in page, "make battery NAME=ways"
