"""
Gradients of more and more batches make a step; validation four times an epoch.

Stands for: training of large models on small machines (GradientAccumulationScheduler, `val_check_interval`).
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 18), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(18, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.huber_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.huber_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.NAdam(self.parameters(), lr=0.01)
        plan = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=50, power=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plan, "interval": "step"}}


def main() -> None:
    pl.seed_everything(71)
    x = torch.randn(164, 9)
    data = TensorDataset(x, x[:, :2].prod(1, keepdim=True))
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        val_check_interval=0.25,
        log_every_n_steps=1,
        callbacks=[GradientAccumulationScheduler({0: 1, 1: 2, 3: 4}), ModelCheckpoint(monitor="val_loss", mode="min")],
    )
    trainer.fit(Net(), DataLoader(data, 8, shuffle=True), DataLoader(data, 82))


if __name__ == "__main__":
    main()
