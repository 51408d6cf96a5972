"""
Cosine with warm restarts, stepped by the hook with a fraction of the epoch, besides a schedule of the weight decay.

Stands for: self-supervised and segmentation repositories that step schedulers by themselves.
"""

import math

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))
        self.decays = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, label_smoothing=0.1)

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(self.trainer.current_epoch + self.trainer.fit_loop.batch_idx / 8)

    def on_train_batch_start(self, batch, batch_idx):
        share = self.trainer.global_step / 48
        decay = 0.4 + 0.5 * (0.04 - 0.4) * (1 + math.cos(math.pi * share))
        self.trainer.optimizers[0].param_groups[0]["weight_decay"] = decay
        self.decays.append(decay)

    def configure_optimizers(self):
        whole = [each for each in self.parameters() if each.ndim > 1]
        thin = [each for each in self.parameters() if each.ndim <= 1]
        optimizer = torch.optim.AdamW([{"params": whole}, {"params": thin, "weight_decay": 0.0}], lr=0.02)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2, eta_min=1e-4)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    pl.seed_everything(29)
    x = torch.randn(96, 5)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    trainer = pl.Trainer(max_epochs=6, accelerator="cpu", logger=False)
    trainer.fit(Net(), DataLoader(data, 12, shuffle=True))


if __name__ == "__main__":
    main()
