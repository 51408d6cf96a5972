"""A small training that no resume can make exact: `--how` says what it takes from outside of seeds and checkpoints."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time

import fast_imports  # noqa: F401
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

SAMPLES = 96


class ClockOrder(Sampler[int]):
    """Shuffled, and otherwise each time it is asked."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self):
        return iter(random.Random(time.time_ns()).sample(range(SAMPLES), SAMPLES))


seen = itertools.count(1)
"""Which batch of this process is trained: an iterator, which nobody can save."""


class Net(pl.LightningModule):
    def __init__(self, how: str, outside: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.how = how
        self.outside = outside

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        number = next(seen)
        loss = self.layer(batch[0]).square().mean()
        if self.how == "entropy":
            return loss * random.SystemRandom().random()
        if self.how == "counter":
            return loss * (1 + number / 1000)
        if self.how == "outside":
            return loss * (1 + self.lines_outside() / 1000)
        return loss

    def lines_outside(self) -> int:
        """Of a file that is not in the work folder: batches that were trained twice are in it twice."""
        with open(f"{self.outside}.{os.environ['SPOTRUN_RUN_UID']}", "a+") as file:
            file.write("a batch\n")
            file.seek(0)
            return len(file.readlines())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=("entropy", "order", "counter", "outside", "crash"), required=True)
    parser.add_argument("--outside", default="", metavar="FILE", help="where to count, for each run by itself")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    how = args.how
    if how == "crash":
        raise SystemExit("planted failure")
    pl.seed_everything(3, verbose=False)
    data = TensorDataset(torch.randn(SAMPLES, 8))
    sampler = ClockOrder() if how == "order" else None
    trainer = pl.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Net(how, args.outside), DataLoader(data, batch_size=8, sampler=sampler))


if __name__ == "__main__":
    main()
