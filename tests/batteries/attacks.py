"""
Battery: simulated histories with one of two attackers, which act at random.

    make battery NAME=attacks                                   10,000 histories with each attacker
    python tests/batteries/attacks.py --seeds 200 --first 5000
    python tests/batteries/attacks.py --kind node --size 3      runs of gangs, one member of which was taken over
    python tests/batteries/attacks.py --kind writer

A `writer` has no right in the cloud, but may put objects into the store, outside of the folders of the owner's runs:
planted_world.py says what must hold.

A `node` is an instance that was taken over. It writes what the role of its run may write; the policies of infra/aws
decide what that is. In no history is more rented than the budget allows, an instance left, a stop undone, or a setting
of a launch changed. No entry counts as the owner's that the owner has not written, and nothing of another run ends or
changes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.progress import track

from tests.batteries.attacked_world import BUDGET_USD, AttackedWorld
from tests.batteries.planted_world import PlantedWorld

KINDS = ("node", "writer")


def plant(seed: int) -> None:
    """
    Live through one history with a writer.

    Raises:
        AssertionError: the writer has achieved something.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        PlantedWorld(patch, Path(folder), seed).live()


def attack(case: tuple[str, int], size: int = 1) -> str:
    """Return what the attacker has achieved; "" if nothing."""
    kind, seed = case
    acts: dict[str, Callable[[], None]] = {
        "node": lambda: AttackedWorld(seed, budget_usd=size * BUDGET_USD, size=size).attack(),
        "writer": lambda: plant(seed),
    }
    try:
        acts[kind]()
    except AssertionError as error:
        return str(error)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever ends a runner or command is a success
        return f"it ended: {error!r}"
    return ""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many histories with each attacker.")] = 10_000,
    first: Annotated[int, typer.Option(help="The seed of the first one; the others follow it.")] = 0,
    size: Annotated[int, typer.Option(min=1, help="How many instances train together, for a node.")] = 1,
    kind: Annotated[str, typer.Option(help="The attacker: node, writer or both.")] = "both",
) -> None:
    kinds = KINDS if kind == "both" else (kind,)
    cases = [(each, seed) for each in kinds for seed in range(first, first + seeds)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(track(pool.map(partial(attack, size=size), cases, chunksize=10), "attacking", total=len(cases)))
    broken = {case: said for case, said in zip(cases, found, strict=True) if said}
    for (each, seed), said in broken.items():
        print(f"{each}, seed {seed}: {said}")
    print(f"{len(cases) - len(broken)} of {len(cases)} histories held")
    raise typer.Exit(bool(broken))


if __name__ == "__main__":
    typer.run(main)
