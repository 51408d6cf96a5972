"""
What spotrun costs and gives a training, by the framework that runs its loop.

    python -m benchmarks.frameworks [--rounds 5] [--seed 1]   how much slower, with a snapshot every 20 steps
    python -m benchmarks.frameworks --exactness               the Trainer of transformers resumed by itself and by us,
                                                              into docs/exactness.md

Each round trains with and without an agent, in a random order. The agent stores nothing, so that only the trainer is
measured: from its tenth step to its last one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import own_resume
from benchmarks.arguments import at_least
from benchmarks.checkpoint.figures import quartiles
from spotrun.trainer_link import SnapshotTaken
from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Spawner

EVERY_STEPS, STEPS, FROM, BATCH = 20, 110, 10, 64
ROUNDS_MIN = 5
PAGE = ROOT / "docs" / "exactness.md"
BEGIN, END = "<!-- table: python -m benchmarks.frameworks --exactness -->\n", "<!-- end of that table -->"
COMMON = f"""
import json, sys, time
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)
MARKS = []

def network():
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512))

def mark():
    MARKS.append((time.perf_counter(), time.thread_time()))

def end():
    with open(sys.argv[1], "w") as file:
        json.dump([last - first for first, last in zip(MARKS[{FROM}], MARKS[-1])], file)

DATA = torch.utils.data.TensorDataset(torch.randn({BATCH} * {STEPS}, 512))

def collate(rows):
    return {{"x": torch.stack([row for row, in rows])}}
"""
SCRIPTS = {
    "pytorch_lightning": f"""
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch["x"]), batch["x"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

class Clock(pl.Callback):
    def on_train_batch_start(self, *args):
        mark()

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(max_steps={STEPS}, accelerator="cpu", callbacks=[Clock()], **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(DATA, {BATCH}, shuffle=True, collate_fn=collate))
end()
""",
    "transformers": f"""
import transformers.trainer
from spotrun.transformers import entry

entry.install(transformers.trainer)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return {{"loss": nn.functional.mse_loss(self.net(x), x)}}

class Clock(transformers.TrainerCallback):
    def on_step_begin(self, *args, **kwargs):
        mark()

args = transformers.TrainingArguments(
    output_dir=sys.argv[1] + "-out", max_steps={STEPS}, per_device_train_batch_size={BATCH}, save_strategy="no",
    logging_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
)
transformers.Trainer(Model(), args, train_dataset=DATA, data_collator=collate, callbacks=[Clock()]).train()
end()
""",
}
"""Frameworks by the package that has to be there."""


class Took(NamedTuple):
    """Seconds that the steps took, by the clock and of the processor for the thread that trains."""

    length_s: float
    cpu_s: float


class Round(NamedTuple):
    """The same steps, and how long each snapshot held the training up."""

    alone: Took
    ours: Took
    stalls_s: list[float]


def round_of(folder: Path, framework: str, order: random.Random) -> Round:
    folder.mkdir(parents=True)
    script = folder / "script.py"
    script.write_text(COMMON + SCRIPTS[framework])
    took: dict[str, Took] = {}
    stalls: list[float] = []
    for name in order.sample(["alone", "ours"], 2):
        took[name], told = measured(folder / name, script, under_agent=name == "ours")
        stalls += told
    return Round(took["alone"], took["ours"], stalls)


def measured(folder: Path, script: Path, *, under_agent: bool) -> tuple[Took, list[float]]:
    seconds = folder / "seconds"
    agent = Agent(Spawner(folder), {"script": str(script), "args": [str(seconds)]}, folder, every_steps=EVERY_STEPS)
    if under_agent:
        how, said = agent.attempt(), agent.log.read_text()
    else:
        command = [sys.executable, str(script), str(seconds)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        how, said = "failed" if done.returncode else "finished", done.stderr
    if how != "finished":
        sys.exit(f"error: the training {how}:\n{said[-2000:]}")
    return Took(*json.loads(seconds.read_text())), [each.stall_s for each in agent.told(SnapshotTaken)]


def told(framework: str, rounds: list[Round]) -> str:
    stall = 1e3 * median(stall for one in rounds for stall in one.stalls_s)
    length = slower([one.ours.length_s / one.alone.length_s for one in rounds])
    cpu = slower([one.ours.cpu_s / one.alone.cpu_s for one in rounds])
    return (
        f"{framework}, a snapshot every {EVERY_STEPS} steps, each of which held it up for {stall:.1f} ms: "
        f"{length} longer, {cpu} processor time"
    )


def slower(ratios: list[float]) -> str:
    low, middle, high = quartiles([ratio - 1 for ratio in ratios])
    noise = " noise" if len(ratios) < ROUNDS_MIN or high - low > abs(middle) else ""
    return f"{middle:+.1%} ({low:+.1%} … {high:+.1%}){noise}"


def slowdown(rounds: int, seed: int) -> None:
    order = random.Random(seed)
    there = [name for name in SCRIPTS if importlib.util.find_spec(name)]
    found: dict[str, list[Round]] = {name: [] for name in there}
    with tempfile.TemporaryDirectory(prefix="spotrun-frameworks-") as folder:
        for number in range(rounds):
            for name in order.sample(there, len(there)):
                found[name].append(round_of(Path(folder) / f"{name}-{number}", name, order))
            print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    print("\n".join(told(name, each) for name, each in found.items()))


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
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS_MIN, help=f"with fewer than {ROUNDS_MIN}: noise")
    parser.add_argument("--seed", type=int, default=1, help="of the order within each round")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.exactness:
        exactness()
    else:
        slowdown(args.rounds, args.seed)


if __name__ == "__main__":
    main()
