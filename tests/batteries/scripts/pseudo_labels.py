"""
Each validation labels more samples by the model itself, and the next epoch has a loader of all that are labelled.

Stands for: self-training and semi-supervised repositories (`reload_dataloaders_every_n_epochs` with data that grows).
"""

import random

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


class Data(pl.LightningDataModule):
    def setup(self, stage=None) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(96, 8, generator=generator)
        self.labels = self.x[:, :1].sin() + 0.3 * self.x[:, 1:2]
        self.trust = torch.ones(96)
        self.labelled = set(range(0, 96, 3))
        self.pool = [number for number in range(96) if number % 3]
        self.rng = random.Random(3)

    def train_dataloader(self):
        chosen = sorted(self.labelled)
        sampler = WeightedRandomSampler(self.trust[chosen], len(chosen))
        return DataLoader(TensorDataset(self.x[chosen], self.labels[chosen]), 8, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.x[:24], self.x[:24, :1].sin()), 12)


class Teacher(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def on_validation_epoch_end(self) -> None:
        data = self.trainer.datamodule
        for _ in range(0 if self.trainer.sanity_checking else 6):
            number = data.pool.pop(data.rng.randrange(len(data.pool)))
            data.labels[number] = self.net(data.x[number])
            data.trust[number] = 0.5 + 0.1 * data.rng.random()
            data.labelled.add(number)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main() -> None:
    pl.seed_everything(223)
    trainer = pl.Trainer(
        max_epochs=6, accelerator="cpu", reload_dataloaders_every_n_epochs=1, log_every_n_steps=1, logger=False
    )
    trainer.fit(Teacher(), datamodule=Data())


if __name__ == "__main__":
    main()
