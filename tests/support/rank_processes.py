"""
Two processes of a training that meet by gloo, as ranks do. The scenario says which of them are ours.

    python rank_processes.py SCENARIO PORT FOLDER

What each of them comes to is in FOLDER/RANK.json.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from spotrun.checkpoint.snapshot import plan_image
from spotrun.checkpoint.tree import Unsavable
from spotrun.errors import SpotrunError
from spotrun.trainer_link import AGENT, GANG, RANKS_SECRET, FilesRule, Resume
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.ranks import Ranks

WITHIN = timedelta(seconds=60)
SECRET = "5e" * 32
OF_A_GANG = "0123456789 4 1 2"
RESUME = Resume(
    size_bytes=7,
    epoch=1,
    step=2,
    every_steps=None,
    seed=3,
    fresh=False,
    files=FilesRule(work="w", before="b", exclude=("é\udc80",)),
)


class Mode(enum.Enum):
    WARM = 1


class Evil:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except (SpotrunError, Unsavable, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def attacked(rank: int, folder: Path) -> dict[str, Any]:
    """Rank 1 is a stranger that sends an object to all collectives in which it can."""
    if rank == 0:
        return {"error": error_of(Ranks(0, 2).compare)}
    group = distributed.new_group(backend="gloo")
    boxes: list[Any] = [None, None]
    return {"error": error_of(lambda: distributed.all_gather_object(boxes, Evil(folder / "evil"), group=group))}


def posed(rank: int, folder: Path) -> dict[str, Any]:
    """Rank 1 speaks as ours do, and sends back what it has heard: it does not know the secret."""
    if rank == 0:
        return {"error": error_of(Ranks(0, 2).compare)}
    group = distributed.new_group(backend="gloo")
    for size_bytes in (32, 64):
        boxes = [torch.empty(size_bytes, dtype=torch.uint8) for _ in range(2)]
        distributed.all_gather(boxes, torch.full((size_bytes,), 7, dtype=torch.uint8), group=group)
    return {"proof": boxes[0].tolist()}


def before_lightning(rank: int, folder: Path) -> dict[str, Any]:
    """Rank 1 is a training by Lightning, whose first words would be an object of rank 0, a stranger."""
    if rank == 1:
        return {"error": error_of(_train)}
    distributed.init_process_group("gloo", rank=0, world_size=2, timeout=WITHIN)
    # gloo sends when the other side receives, and a rank of ours does not
    threading.Thread(target=distributed.broadcast_object_list, args=([Evil(folder / "evil")], 0), daemon=True).start()
    return posed(1, folder)


def _train() -> None:
    from pytorch_lightning import Trainer
    from pytorch_lightning.demos.boring_classes import BoringModel

    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BoringModel())


def together(rank: int, folder: Path) -> dict[str, Any]:
    """Both are ours, in one training and then in two."""
    ranks = Ranks(rank, 2)
    ranks.compare()
    own = {
        "mode": Mode.WARM,
        "buffer": torch.full((3,), float(rank)),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "n": {1: (rank,)},
    }
    states = ranks.gather_states(own)
    plan_image({"states": states}, {})
    found = {
        "resume": ranks.share(Resume, RESUME if rank == 0 else None) == RESUME,
        "nothing": ranks.share(str, None),
        "gathered": ranks.gather([UntrackedChange("a", "b"), rank]),
        "states": [repr(state) for state in states],
        "unsavable": error_of(lambda: ranks.gather_states({"of": {"mine": object()}})),
        "agreed": ranks.agree(5 - rank),
    }
    os.environ[GANG] = OF_A_GANG.replace("4", f"{4 + rank}")
    found["late"] = error_of(ranks.compare)
    if rank == 1:
        del os.environ[RANKS_SECRET]
    return found | {"without": error_of(ranks.compare)}


def main(scenario: str, port: int, folder: Path) -> None:
    os.environ |= {GANG: OF_A_GANG, RANKS_SECRET: SECRET, AGENT: str(folder / "nobody")}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    child = os.fork()
    rank = 0 if child else 1
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    if scenario != "before_lightning":
        distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=WITHIN)
    if rank == (0 if scenario == "before_lightning" else 1) and scenario != "together":
        del os.environ[RANKS_SECRET]
    scenarios = {each.__name__: each for each in (attacked, posed, before_lightning, together)}
    found = scenarios[scenario](rank, folder)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    if child:
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
