"""A small training that seeds nothing: its split, its vocabulary over a set, its features and its weights are drawn."""

from __future__ import annotations

import argparse
import random

import fast_imports  # noqa: F401
import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

TEXT = "the cat sat on the mat and the dog ran to the cat while a bird sang over all of them in spring"
WORDS = TEXT.split()
VOCABULARY = {word: number for number, word in enumerate(set(WORDS))}
FEATURES = torch.from_numpy(np.random.randn(len(VOCABULARY), 8)).float()
NOISE = [random.gauss(0, 0.1) for _ in range(96)]


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        words, noise = batch
        return (self.layer(FEATURES[words]).squeeze(1) - noise).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    words = torch.tensor([VOCABULARY[WORDS[n % len(WORDS)]] for n in range(len(NOISE))])
    data = TensorDataset(words, torch.tensor(NOISE))
    part, _ = random_split(data, [80, 16])
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Net(), DataLoader(part, batch_size=8, shuffle=True))


if __name__ == "__main__":
    main()
