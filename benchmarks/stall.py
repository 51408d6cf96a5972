"""
What a checkpoint costs a training that keeps 2,000 attributes and 100 files, beside one that keeps nothing.

    python -m benchmarks.stall [--model tiny] [--rounds 5] [--seed 1]

Both train the same network under an agent that stores nothing, so that only the trainer is measured. Each round trains
both, in a random order. A stall is what benchmarks/checkpoint takes for one; its processor time is that of the training
thread, which means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.arguments import at_least
from benchmarks.checkpoint.figures import over, quartiles, stalls_cpu_s, stalls_s
from benchmarks.checkpoint.measurement import Iteration, Measurement, read
from benchmarks.checkpoint.ours import SCRIPT, words_of
from benchmarks.checkpoint.plan import BURDENS, EVERY_STEPS, MEASURED, PLANS, ROUNDS_MIN, Burden
from spotrun.folder import work_files
from spotrun.trainer_link import Committed, FilesRule, Resume, SnapshotTaken
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Spawner

PLAIN, BURDENED = "nothing", "2,000 attributes and 100 files"
KEPT = {PLAIN: Burden(), BURDENED: BURDENS["ours_all"]}


class Measuring(Agent):
    """Says at once that each snapshot is durable, and ends the training when it has measured itself."""

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


def measured(folder: Path, model: str, burden: Burden) -> Measurement:
    work, before = folder / "work", folder / "before.json"
    work.mkdir(parents=True)
    (work / "train.py").write_text(SCRIPT)
    work_files.remember(work, before)
    agent = Measuring(
        folder, words_of(model, folder, burden), FilesRule(work=str(work), before=str(before), exclude=())
    )
    with contextlib.chdir(work):
        how = agent.attempt()
    if how != "killed":
        sys.exit(f"error: the training {how}:\n{agent.log.read_text()[-2000:]}")
    found = read(folder / MEASURED)
    iterations = [Iteration(*one) for one in found["iterations"]]
    return Measurement(found["state_bytes"], iterations, agent.saves, paused=[], peak_bytes=0)


def rounds_of(folder: Path, model: str, rounds: int, seed: int) -> list[dict[str, Measurement]]:
    order, found = random.Random(seed), []
    for number in range(rounds):
        names = order.sample(list(KEPT), len(KEPT))
        found.append({name: measured(folder / f"{number}-{name[:1]}", model, KEPT[name]) for name in names})
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    return found


def told(found: list[dict[str, Measurement]]) -> str:
    lines = []
    for what, stalls in (("processor time", stalls_cpu_s), ("length", stalls_s)):
        each = {name: 1e3 * median(median(stalls(one[name])) for one in found) for name in KEPT}
        effects = [effect for one in found if (effect := over(stalls(one[BURDENED]), stalls(one[PLAIN]))) is not None]
        low, middle, high = quartiles(effects)
        noise = " noise" if len(effects) < ROUNDS_MIN or high - low > abs(middle) else ""
        lines.append(
            f"{what} of a stall: {each[PLAIN]:.1f} ms with {PLAIN}, {each[BURDENED]:.1f} ms with {BURDENED},"
            f" {middle:+.0%} ({low:+.0%} … {high:+.0%}){noise}"
        )
    return "\n".join(lines)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--model", choices=PLANS, default="tiny", help="what is trained")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS_MIN, help=f"with fewer than {ROUNDS_MIN}: noise")
    parser.add_argument("--seed", type=int, default=1, help="of the order within each round")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="spotrun-stall-") as folder:
        print(told(rounds_of(Path(folder), args.model, args.rounds, args.seed)))


if __name__ == "__main__":
    main()
