"""
Battery: every kind of stored object, changed at random, and every command called on it.

    make battery NAME=mutations                     1,000 changes of each kind
    python tests/batteries/mutations.py --seeds 0-99 --every

A command ends with a figure or with one error, `status` shows all other runs, and `down` ends what the cloud lists. For
each change `status` and four other commands are called, or with --every all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Annotated

import pytest
import typer
from rich.progress import track

from tests.batteries.mutated_store import KINDS, READS, WRITES, MutatedStore

CHUNK = 20


def verbs_of(seed: int) -> list[str]:
    """Those of a seed. What writes comes last, and once."""
    random = Random(seed)
    return ["status", *random.sample(READS[1:], 3), random.choice(WRITES)]


def trials(kind: str, seeds: list[int], every: bool) -> list[str]:
    """What went wrong, by seed."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder, pytest.MonkeyPatch.context() as patch:
        store = MutatedStore(Path(folder), patch)
        return [f"{kind} {seed}: {flaw}" for seed in seeds for flaw in _flaws(store, kind, seed, every)]


def _flaws(store: MutatedStore, kind: str, seed: int, every: bool) -> Iterator[str]:
    if not every:
        yield from store.trial(kind, seed, verbs_of(seed))
        return
    yield from store.trial(kind, seed, READS)
    for verb in WRITES:
        yield from store.trial(kind, seed, [verb])


def _memory() -> str | None:
    """Where files cost no disk: each write of a store is flushed."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main(
    seeds: Annotated[str, typer.Option(help="The first seed and the last one.")] = "0-999",
    kinds: Annotated[str, typer.Option(help="Which kinds of objects.")] = ",".join(KINDS),
    every: Annotated[bool, typer.Option("--every", help="Call each command for each change.")] = False,
) -> None:
    first, _, last = seeds.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    jobs = [(kind, [*numbers[at : at + CHUNK]]) for kind in kinds.split(",") for at in range(0, len(numbers), CHUNK)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(trials, kind, chunk, every) for kind, chunk in jobs]
        found = [flaw for each in track(running, "changing", transient=True) for flaw in each.result()]
    for flaw in found:
        print(flaw)
    print(f"{len(numbers)} changes of each of {len(kinds.split(','))} kinds: {len(found)} flaws")
    raise typer.Exit(bool(found))


if __name__ == "__main__":
    typer.run(main)
