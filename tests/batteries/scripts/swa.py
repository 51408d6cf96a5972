"""
Lightning's StochasticWeightAveraging on a network with batch norms, whose statistics it computes again at the end.

Stands for: competition kernels and baselines that add SWA for the last epochs.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)]


def main() -> None:
    pl.seed_everything(11)
    x = torch.randn(96, 12)
    data = TensorDataset(x, x[:, :1].sin() + 0.1 * torch.randn(96, 1))
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        callbacks=[StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3, annealing_epochs=2)],
    )
    model = Net()
    trainer.fit(model, DataLoader(data, 12, shuffle=True), DataLoader(data, 48))
    trainer.save_checkpoint("final.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
