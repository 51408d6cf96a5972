"""tests/batteries/torn.py: that a checkpoint of two snapshots is found, by what its objects hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from spotrun.run.gang import Layout, Shard
from spotrun.run.state import Commit
from tests.batteries.torn import torn_in
from tests.support.checkpoint_entries import saved
from tests.support.checkpoint_images import image_bytes
from tests.support.memory_store import MemoryStore

STEP, RANKS = 7, 3


def part(rank: int, trained: int) -> dict[str, Any]:
    """What a process has for itself."""
    return {
        "python": {"objects": [("nn", "module", True, {"parts": {"trained": trained}})]},
        "data": {"train": [{"before": {"sampler.sampler.rank": rank}, "since": {}}]},
    }


def state_of(step: int = STEP, place: int = STEP, schedule: int = STEP, *ranks: dict[str, Any]) -> dict[str, Any]:
    return {
        "global_step": step,
        "lr_schedulers": [{"last_epoch": schedule}],
        "state_dict": {"weight": torch.ones(4)},
        "spotrun": {
            "place": {"epoch": 0, "batch": place},
            "ranks": list(ranks or (part(rank, STEP) for rank in range(RANKS))),
        },
    }


def committed(store: MemoryStore, state: dict[str, Any], shard_step: int = STEP) -> Commit:
    """A commit of step 7 whose objects hold `state`."""
    commit = saved(store, STEP, image_bytes(state, {"step": STEP, "epoch": 0, "batch": STEP}))
    event = commit.event
    shard = Shard(
        rank=0,
        attempt=event.attempt,
        incarnation=event.incarnation,
        snapshot=1,
        step=shard_step,
        world=RANKS,
        blake3=event.manifest_blake3,
        size_bytes=event.size_bytes,
        objects=event.objects,
    )
    return replace(commit, event=replace(event, shards=(shard,), layout=Layout.REPLICATED))


def test_a_checkpoint_of_one_snapshot_is_whole() -> None:
    store = MemoryStore()
    assert torn_in(store, committed(store, state_of()), RANKS) == ""


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (state_of(STEP - 1), "step {"),
        (state_of(STEP, STEP - 1), "batch {"),
        (state_of(STEP, STEP, STEP - 1), "step {"),
        (state_of(STEP, STEP, STEP, part(0, STEP), part(1, STEP - 1), part(2, STEP)), "step of a process {"),
        (state_of(STEP, STEP, STEP, part(0, STEP), part(2, STEP), part(1, STEP)), "ranks [0, 2, 1]"),
        (state_of(STEP, STEP, STEP, part(0, STEP), part(1, STEP)), "ranks [0, 1]"),
    ],
)
def test_a_part_of_another_snapshot_or_process_is_named(state: dict[str, Any], named: str) -> None:
    store = MemoryStore()
    assert named in torn_in(store, committed(store, state), RANKS)


def test_a_shard_that_the_ledger_has_of_another_step_is_named() -> None:
    store = MemoryStore()
    assert "shards {" in torn_in(store, committed(store, state_of(), shard_step=STEP - 1), RANKS)
