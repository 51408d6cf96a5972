"""
Lightning's Tuner looks for a rate before the training.

Stands for: notebooks that begin with `tuner.lr_find(model)`.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.lr = 1e-3
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    pl.seed_everything(137)
    x = torch.randn(96, 6)
    loader = DataLoader(TensorDataset(x, x.exp().mean(1, keepdim=True)), 12, shuffle=True)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    model = Net()
    Tuner(trainer).lr_find(model, loader, num_training=20, min_lr=1e-4, max_lr=0.3)
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
