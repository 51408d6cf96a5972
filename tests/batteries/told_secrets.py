"""
Battery: runs whose training tells its secret, in all forms and broken in all ways.

    make battery NAME=secrets                        1,000 random values
    python -m tests.batteries.told_secrets --seeds 20 --first 500

Nobody reads it: in the log, the ledger, the status, on the terminal, in a notification or on a page.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Annotated

import pytest
import typer
from rich.progress import track

from tests.batteries.telling_run import BREAKS_EACH, TellingRun
from tests.support.secret_forms import BREAKS, FORMS, random_value


def leaks(seed: int) -> list[str]:
    """Where the secret of a run can be read."""
    random = Random(seed)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # each write of a store is flushed
    with tempfile.TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        return [*TellingRun(Path(folder), patch, random_value(random), random).leaks()]


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many values.")] = 1000,
    first: Annotated[int, typer.Option(help="The seed of the first one; the others follow it.")] = 0,
) -> None:
    numbers = range(first, first + seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        running: Iterable[list[str]] = pool.map(leaks, numbers, chunksize=5)
        found = list(track(running, "telling", total=seeds, transient=True))
    for seed, each in zip(numbers, found, strict=True):
        for leak in each:
            print(f"seed {seed}: {leak}")
    told = f"{seeds} values, each in {len(FORMS)} forms, whole and broken in {BREAKS_EACH} of {len(BREAKS) - 1} ways"
    print(f"{told}: {sum(map(len, found))} places where one can be read")
    raise typer.Exit(any(found))


if __name__ == "__main__":
    typer.run(main)
