"""
LightningCLI with a configuration file that it writes next to the logs.

Stands for: projects whose `main` is `LightningCLI(Model, Data)`.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Data(pl.LightningDataModule):
    def __init__(self, size: int = 96, batch_size: int = 12) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        x = torch.randn(self.hparams.size, 5, generator=torch.Generator().manual_seed(151))
        self.data = TensorDataset(x, x.min(1, keepdim=True).values)

    def train_dataloader(self):
        return DataLoader(self.data, self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, 48)


class Model(pl.LightningModule):
    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))


if __name__ == "__main__":
    LightningCLI(
        Model,
        Data,
        seed_everything_default=151,
        trainer_defaults={"max_epochs": 5, "accelerator": "cpu", "log_every_n_steps": 4},
        args=[
            "fit",
            "--optimizer=Adam",
            "--optimizer.lr=0.01",
            "--lr_scheduler=ExponentialLR",
            "--lr_scheduler.gamma=0.9",
        ],
    )
