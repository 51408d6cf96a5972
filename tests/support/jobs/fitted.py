"""A small training of Lightning, for scripts that are started in many ways. Its weights' digest is its result."""

import hashlib
import os
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 30


class Model(pl.LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def training_step(self, batch):
        time.sleep(float(os.environ.get("STEP_S", "0.1")))
        if self.trainer.is_global_zero:
            with Path(os.environ["TRACE"]).open("a") as trace:
                trace.write(f"{os.getpid()} {self.global_step + 1}\n")
        (x,) = batch
        return self.net(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)

    def on_fit_end(self):
        if self.trainer.is_global_zero:
            weights = b"".join(each.detach().numpy().tobytes() for each in self.parameters())
            Path(os.environ["TRACE"]).with_name("result").write_text(hashlib.sha256(weights).hexdigest())


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        generator = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(torch.randn(4 * STEPS // 2, 4, generator=generator)), 4, shuffle=True)


OPTIONS = {
    "max_epochs": 2,
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def train(**options):
    pl.seed_everything(1)
    pl.Trainer(**OPTIONS, **options).fit(Model(), datamodule=Data())


if __name__ == "__main__":
    train()
