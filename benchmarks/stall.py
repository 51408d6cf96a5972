"""
Measures the cost of a checkpoint for a training that keeps 2,000 attributes and 100 files, next to one that keeps
nothing.

    python -m benchmarks.stall [--model tiny] [--rounds 5] [--seed 1] [--against FOLDER]

Both train the same network under an agent that stores nothing, so that only the trainer is measured. Each round trains
both, in a random order. A stall is defined as in benchmarks/checkpoint; its processor time is that of the training
thread, which means something on a busy machine too.

With `--against`, another checkout of spotrun, each round trains both with that spotrun too. Only the trainer's process
is of the other checkout; the agent and the model are of this one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from benchmarks.arguments import at_least
from benchmarks.checkpoint.figures import over, quartiles, stalls_cpu_s, stalls_s
from benchmarks.checkpoint.measurement import Iteration, Measurement, read
from benchmarks.checkpoint.ours import SCRIPT, words_of
from benchmarks.checkpoint.plan import BURDENS, EVERY_STEPS, MEASURED, PLANS, ROUNDS_MIN, Burden
from spotrun.folder import work_files
from spotrun.trainer_link import Committed, FilesRule, Resume, SnapshotTaken
from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import SITE, Spawner

PLAIN, BURDENED = "nothing", "2,000 attributes and 100 files"
KEPT = {PLAIN: Burden(), BURDENED: BURDENS["ours_all"]}


class Variant(NamedTuple):
    """A variant of a round: what the training `keeps`, and the checkout of its spotrun."""

    keeps: str
    checkout: Path

    def __str__(self) -> str:
        return f"{self.keeps} by {'this spotrun' if self.checkout == ROOT else f'that of {self.checkout}'}"


def variants(against: Path | None) -> list[Variant]:
    return [Variant(keeps, checkout) for checkout in (ROOT, *([against] if against else [])) for keeps in KEPT]


Round: TypeAlias = dict[Variant, Measurement]


MEETS_WITHIN_S = 120.0
"""Maximum seconds from the start of a trainer until it has found its agent, which takes seconds."""
STRANGERS = {
    "unmet": "has not found its agent within",
    "silent": "has met its agent, and said no more within",
}
"""Endings of a trainer whose protocol is not that of this checkout's agent."""


class Measuring(Agent):
    """Reports at once that each snapshot is durable, and ends the training when it has measured itself."""

    meets_within_s = silence_max_s = MEETS_WITHIN_S

    def __init__(self, folder: Path, words: list[str], rule: FilesRule) -> None:
        super().__init__(Spawner(folder), {"script": "train.py", "args": words}, folder, on_message=self._heard)
        self._rule = rule
        self.saves: list[tuple[int, float]] = []

    def _send_resume(self, fit: int) -> None:  # the only fit
        told = {"epoch": 0, "step": 0, "every_steps": EVERY_STEPS, "seed": 0, "fresh": True}
        self.link.send(Resume(size_bytes=0, files=self._rule, **told))

    def _heard(self, _: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken):
            self.saves.append((message.step, 0.0))
            self.link.send(Committed(step=message.step, files=message.files))
        if (self.folder / MEASURED).exists():
            self.kill()


def measured(folder: Path, model: str, burden: Burden, checkout: Path = ROOT) -> Measurement:
    work, before = folder / "work", folder / "before.json"
    work.mkdir(parents=True)
    (work / "train.py").write_text(SCRIPT)
    work_files.remember(work, before)
    agent = Measuring(
        folder, words_of(model, folder, burden), FilesRule(work=str(work), before=str(before), exclude=())
    )
    (folder / SITE / "spotrun").symlink_to(checkout / "spotrun")  # the first folder in which the trainer looks for it
    with contextlib.chdir(work):
        how = agent.attempt()
    if how in STRANGERS:
        sys.exit(
            f"error: the trainer of {checkout} {STRANGERS[how]} {agent.meets_within_s:g} s\n"
            "  try: a checkout whose spotrun/trainer_link.py says the same as this one's"
        )
    if how != "killed":
        sys.exit(f"error: the training {how}:\n{agent.log.read_text()[-2000:]}")
    found = read(folder / MEASURED)
    iterations = [Iteration(*one) for one in found["iterations"]]
    return Measurement(found["state_bytes"], iterations, agent.saves, paused=[], peak_bytes=0)


def rounds_of(folder: Path, model: str, rounds: int, seed: int, every: list[Variant]) -> list[Round]:
    order, found = random.Random(seed), []
    for number in range(rounds):
        one = {}
        for variant in order.sample(every, len(every)):
            own = folder / f"{number}-{every.index(variant)}"
            one[variant] = measured(own, model, KEPT[variant.keeps], variant.checkout)
        found.append(one)
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    return found


def told(found: list[Round], every: list[Variant]) -> str:
    """Return the figures of each variant, and how much more it takes than another one."""
    lines = []
    for what, stalls in (("processor time", stalls_cpu_s), ("length", stalls_s)):
        for one in every:
            low, middle, high = quartiles([1e3 * median(stalls(each[one])) for each in found])
            lines.append(f"{what} of a stall with {one}: {middle:.1f} ms ({low:.1f} … {high:.1f})")
        lines += [f"  {one} over {other}: {effect(found, stalls, one, other)}" for one, other in compared(every)]
    return "\n".join(lines)


def compared(every: list[Variant]) -> list[tuple[Variant, Variant]]:
    """
    Return the pairs to compare: of each checkout the one that keeps much with the one that keeps nothing; and this
    one's with the other's.
    """
    within = [(every[n + 1], every[n]) for n in range(0, len(every), 2)]
    return within + list(zip(every[:2], every[2:], strict=False))


def effect(found: list[Round], stalls: Callable[[Measurement], list[float]], one: Variant, other: Variant) -> str:
    ratios = [ratio for each in found if (ratio := over(stalls(each[one]), stalls(each[other]))) is not None]
    low, middle, high = quartiles(ratios)
    noise = " noise" if len(ratios) < ROUNDS_MIN or high - low > abs(middle) else ""
    return f"{middle:+.0%} ({low:+.0%} … {high:+.0%}){noise}"


def checkout(text: str) -> Path:
    """Parse a checkout, for `type=`."""
    folder = Path(text).resolve()
    if not (folder / "spotrun" / "__init__.py").exists():
        raise argparse.ArgumentTypeError(f"{folder} has no folder spotrun/: it must be a checkout of spotrun")
    return folder


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--model", choices=PLANS, default="tiny", help="what is trained")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS_MIN, help=f"with fewer than {ROUNDS_MIN}: noise")
    parser.add_argument("--seed", type=int, default=1, help="of the order within each round")
    parser.add_argument("--against", type=checkout, metavar="FOLDER", help="another checkout to compare with")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="spotrun-stall-") as folder:
        every = variants(args.against)
        print(told(rounds_of(Path(folder), args.model, args.rounds, args.seed, every), every))


if __name__ == "__main__":
    main()
