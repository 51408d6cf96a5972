"""
Battery: simulated runs whose node was taken over and writes what its role may write, at random.

    make battery NAME=attacks                        10,000 of them
    python tests/batteries/attacks.py --seeds 200 --first 5000
    python tests/batteries/attacks.py --seeds 200 --size 3      of gangs, one member of which was taken over

The policies of infra/aws decide what that is. In none is more rented than the budget allows, is an instance left or a
stop undone, is the setting of a launch changed, or counts a word of the owner that the owner has not written; nor is
anything of another run ended or changed.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Annotated

import typer
from rich.progress import track

from tests.batteries.attacked_world import BUDGET_USD, AttackedWorld


def attack(seed: int, size: int = 1) -> str:
    """What the attacker has achieved; "" if nothing."""
    try:
        AttackedWorld(seed, budget_usd=size * BUDGET_USD, size=size).attack()
    except AssertionError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a runner that an attacker has ended takes care of nothing
        return f"the runner ended: {error!r}"
    return ""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many runs.")] = 10_000,
    first: Annotated[int, typer.Option(help="The seed of the first one; the others follow it.")] = 0,
    size: Annotated[int, typer.Option(min=1, help="How many instances train together.")] = 1,
) -> None:
    numbers = range(first, first + seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(track(pool.map(partial(attack, size=size), numbers, chunksize=10), "attacking", total=seeds))
    broken = {seed: said for seed, said in zip(numbers, found, strict=True) if said}
    for seed, said in broken.items():
        print(f"seed {seed}: {said}")
    print(f"{seeds - len(broken)} of {seeds} runs held")
    raise typer.Exit(bool(broken))


if __name__ == "__main__":
    typer.run(main)
