"""
Measures the cost and the benefit of spotrun for a training, by the framework that runs its loop.

    python -m benchmarks.frameworks [--only loop] [--rounds 3] [--seed 1]
                                                 how much slower, and how long a snapshot of 1 GB holds a training up
    python -m benchmarks.frameworks --exactness  the Trainer of transformers resumed by itself and by us, into
                                                 docs/exactness-measured.md

Each round trains with an agent that stores nothing and without one, in turns of 20 steps, in the middle of which there
is a snapshot. The first turn of each is not counted: memory is touched for the first time there. So both meet the same
machine, and what is compared is processor time of the thread that trains, turn by turn. No process gives memory back to
its system: whether gradients lie at the end of it, and are faulted in again at each step, is chance, and up to a third
of such a step.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import own_resume
from benchmarks.arguments import at_least
from benchmarks.checkpoint.figures import quartiles
from benchmarks.checkpoint.limits import copy_seconds
from benchmarks.framework_scripts import EVERY_STEPS, SCRIPTS
from benchmarks.lockstep import Took, running
from tests.support.repository import ROOT

TURNS = 8
"""Turns of each training in a round, the first one left out."""
SMALL = [2048, 64, EVERY_STEPS * (TURNS + 2)]
"""Width, batch and steps: 6 million weights, a step of a twentieth of a second."""
LARGE_EVERY_STEPS, LARGE_SNAPSHOTS = 3, 7
LARGE = [8800, 8, LARGE_EVERY_STEPS * LARGE_SNAPSHOTS + 1]
"""86 million weights, which are 1 GB with what AdamW keeps, and a step of a second."""
LARGE_BYTES = 1 << 30
ROUNDS, PAIRS_MIN = 3, 20
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""https://man7.org/linux/man-pages/man3/mallopt.3.html"""
PAGE = ROOT / "docs" / "exactness-measured.md"
BEGIN, END = "<!-- table: python -m benchmarks.frameworks --exactness -->\n", "<!-- end of that table -->"


class Turn(NamedTuple):
    """The same number of steps, one after the other."""

    alone: Took
    ours: Took


class Held(NamedTuple):
    """Seconds for which a snapshot of `size_bytes` held a training up, and seconds to copy as much."""

    size_bytes: int
    stall_s: float
    copy_s: float


def turns_of(folder: Path, framework: str, order: random.Random) -> list[Turn]:
    script = SCRIPTS[framework]
    with (
        running(folder / "alone", script, SMALL, None) as alone,
        running(folder / "ours", script, SMALL, EVERY_STEPS) as ours,
    ):
        found = []
        for _ in range(TURNS + 1):
            took = {each: each.block() for each in order.sample([alone, ours], 2)}
            found.append(Turn(took[alone], took[ours]))
    return found[1:]


def held_by(folder: Path, framework: str) -> list[Held]:
    """
    Return the stalls of each snapshot but the first, which touches its memory for the first time. Copies are made
    before and after.
    """
    before_s = copy_seconds(LARGE_BYTES)
    with running(folder, SCRIPTS[framework], LARGE, LARGE_EVERY_STEPS) as training:
        taken = training.ends()[1:]
    copy_s = (before_s + copy_seconds(LARGE_BYTES)) / 2 * taken[0].size_bytes / LARGE_BYTES
    return [Held(each.size_bytes, each.stall_s, copy_s) for each in taken if not each.final]


def told(framework: str, turns: list[Turn]) -> str:
    cpu = slower([turn.ours.cpu_s / turn.alone.cpu_s for turn in turns])
    length = slower([turn.ours.length_s / turn.alone.length_s for turn in turns])
    return f"{framework}, a snapshot every {EVERY_STEPS} steps: {cpu} processor time, {length} longer"


def told_of_stalls(framework: str, held: list[Held]) -> str:
    low, middle, high = quartiles([each.stall_s / each.copy_s for each in held])
    return (
        f"{framework}, a snapshot of {held[0].size_bytes / 1e9:.2f} GB: a stall of "
        f"{1e3 * median(each.stall_s for each in held):.1f} ms, {middle:.3f} ({low:.3f} … {high:.3f}) of a copy"
    )


def slower(ratios: list[float]) -> str:
    low, middle, high = quartiles([ratio - 1 for ratio in ratios])
    noise = " noise" if len(ratios) < PAIRS_MIN or high - low > abs(middle) else ""
    return f"{middle:+.1%} ({low:+.1%} … {high:+.1%}){noise}"


def costs(frameworks: list[str], rounds: int, seed: int) -> None:
    order = random.Random(seed)
    found: dict[str, list[Turn]] = {name: [] for name in frameworks}
    with tempfile.TemporaryDirectory(prefix="spotrun-frameworks-") as folder:
        for number in range(rounds):
            for name in order.sample(frameworks, len(frameworks)):
                found[name] += turns_of(Path(folder) / f"{name}-{number}", name, order)
            for name in frameworks:
                print(f"round {number + 1} of {rounds}: {told(name, found[name])}", file=sys.stderr, flush=True)
        for name, turns in found.items():
            print(told(name, turns), flush=True)
        for name in frameworks:
            print(told_of_stalls(name, held_by(Path(folder) / f"{name}-large", name)), flush=True)


def exactness() -> None:
    with tempfile.TemporaryDirectory(prefix="spotrun-own-resume-") as folder:
        found = []
        for row in own_resume.rows(Path(folder)):
            found.append(row)
            print(row.case, row.alone or "the same", row.ours or "the same", sep="; ", flush=True)
    text = PAGE.read_text()
    assert BEGIN in text, f"{PAGE} has no place for the table"
    written = re.sub(
        f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: f"\n{own_resume.table(found)}\n", text, flags=re.S
    )
    PAGE.write_text(written)
    sys.exit(any(row.ours for row in found))


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--exactness", action="store_true", help="what is the same after a resume, by kind of training")
    there = [name for name in SCRIPTS if name == "loop" or importlib.util.find_spec(name)]
    parser.add_argument("--only", choices=there, help="one of them")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS, help=f"of {TURNS} turns each")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which they take turns")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.update(KEEPS_MEMORY)
    if args.exactness:
        exactness()
    else:
        costs([args.only] if args.only else there, args.rounds, args.seed)


if __name__ == "__main__":
    main()
