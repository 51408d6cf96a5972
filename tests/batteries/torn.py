"""Whether a stored checkpoint is of one snapshot: what all processes share, and what each has for itself."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from spotrun.checkpoint.snapshot import read_image
from spotrun.run.state import Commit
from spotrun.store.port import Store
from tests.support.checkpoint_entries import restored


def torn_in(store: Store, commit: Commit, ranks: int) -> str:
    """
    In what the checkpoint is of several snapshots; "" if it is of one. It must be of a training of tiny.py.

    It reads the objects, whose digests the ledger has, and compares what they hold with the ledger's entry.
    """
    event = commit.event
    state, meta = read_image(bytearray(restored(store, commit)))
    parts: list[Any] = state["spotrun"]["ranks"]
    found = {
        "step": {meta["step"], state["global_step"], *(schedule["last_epoch"] for schedule in state["lr_schedulers"])},
        "epoch": {meta["epoch"], state["spotrun"]["place"]["epoch"]},
        "batch": {meta["batch"], state["spotrun"]["place"]["batch"]},
        "step of a process": {_trained(part) for part in parts},
    }
    wanted = {"step": event.step, "epoch": event.epoch, "batch": event.batch, "step of a process": event.step}
    wrong = [f"{what} {found[what]} for {wanted[what]}" for what in found if found[what] != {wanted[what]}]
    if (seats := [_rank(part) for part in parts]) != [*range(ranks)]:
        wrong.append(f"ranks {seats}")
    if event.shards is not UNSET:
        said = {(shard.attempt, shard.incarnation, shard.step) for shard in event.shards}
        if said != {(event.attempt, event.incarnation, event.step)}:
            wrong.append(f"shards {said}")
    return f"checkpoint {commit.number} is torn: {', '.join(wrong)}" if wrong else ""


def _trained(part: Any) -> int:
    """Steps that a process had trained, by the attribute of its module."""
    (module,) = [held for _, name, _, held in part["python"]["objects"] if name == "module"]
    trained: int = module["parts"].get("trained", 0)  # as the script makes it, until the first step
    return trained


def _rank(part: Any) -> int:
    """Which samples it takes. A lone process has no such sampler."""
    (loader,) = part["data"]["train"]
    rank: int = loader["before"].get("sampler.sampler.rank", 0)
    return rank
