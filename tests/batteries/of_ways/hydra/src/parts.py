import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Rings(pl.LightningDataModule):
    def __init__(self, batch_size, samples):
        super().__init__()
        self.save_hyperparameters(logger=False)

    def setup(self, stage):
        x = torch.randn(2 * self.hparams.samples, 4, generator=torch.Generator().manual_seed(8))
        y = (x.norm(dim=1) > 1.8).long()
        half = self.hparams.samples
        self.parts = TensorDataset(x[:half], y[:half]), TensorDataset(x[half:], y[half:])

    def train_dataloader(self):
        return DataLoader(self.parts[0], self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], 40)

    def test_dataloader(self):
        return DataLoader(self.parts[1], 40)


class Classifier(pl.LightningModule):
    """`optimizer` and `scheduler` are made by whoever calls them."""

    def __init__(self, net, optimizer, scheduler):
        super().__init__()
        self.net = net
        self.optimizer, self.scheduler = optimizer, scheduler
        self.best = float("inf")

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", nn.functional.cross_entropy(self.net(x), y))

    def on_validation_epoch_end(self):
        self.best = min(self.best, float(self.trainer.callback_metrics["val/loss"]))
        self.log("val/best", self.best)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test/accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = self.optimizer(params=self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer=optimizer)}
