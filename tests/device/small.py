"""
A small training on the accelerator of this process, by a `Loop` or by Lightning.

    small.py loop|lightning
"""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.batteries.gpu.resnet50 import KIND, use_accelerator


def network() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 1))
    return nn.Sequential(*layers)


def batches() -> DataLoader[Any]:
    return DataLoader(torch.randn(80, 3, 6, 6), 4, shuffle=True)  # type: ignore[arg-type]


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.01)


def by_loop() -> None:
    model, train = network().to(KIND), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loop = Loop(seed=1, model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for images in loop.batches(train):
            loss = model(images.to(KIND)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loop.log(loss=loss.item())


def by_lightning() -> None:
    use_accelerator()
    pl.Trainer(max_epochs=2, logger=False, enable_checkpointing=False).fit(Model(), batches())


if __name__ == "__main__":
    torch.manual_seed(1)
    {"loop": by_loop, "lightning": by_lightning}[sys.argv[1]]()
