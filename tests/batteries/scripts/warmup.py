"""
A scheduler that raises the rate at first and then hands over to another scheduler, which it holds itself.

Stands for: vision repositories that use the GradualWarmupScheduler of a well-known package.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, TensorDataset


class GradualWarmup(LRScheduler):
    """From the rate of the optimizer to `multiplier` times that, and then what `after` says."""

    def __init__(self, optimizer, multiplier: float, warm: int, after) -> None:
        self.multiplier = multiplier
        self.warm = warm
        self.after = after
        self.finished = False
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch > self.warm:
            if not self.finished:
                self.after.base_lrs = [rate * self.multiplier for rate in self.base_lrs]
                self.finished = True
            return self.after.get_last_lr()
        factor = (self.multiplier - 1.0) * self.last_epoch / self.warm + 1.0
        return [rate * factor for rate in self.base_lrs]

    def step(self, epoch=None):
        if self.finished:
            self.after.step()
            self._last_lr = self.after.get_last_lr()
        else:
            super().step(epoch)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])
        return nn.functional.smooth_l1_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        after = CosineAnnealingLR(optimizer, T_max=36)
        scheduler = GradualWarmup(optimizer, multiplier=8.0, warm=12, after=after)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    pl.seed_everything(23)
    x = torch.randn(96, 5)
    data = TensorDataset(x, x.norm(dim=1, keepdim=True))
    trainer = pl.Trainer(max_epochs=6, accelerator="cpu", log_every_n_steps=1)
    trainer.fit(Net(), DataLoader(data, 12, shuffle=True))


if __name__ == "__main__":
    main()
