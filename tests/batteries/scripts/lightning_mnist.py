"""
Lightning's MNISTDataModule and Net, unchanged, on random digits in the files to which it would download the real ones.

Stands for: Lightning's own example `pytorch_lightning.demos.mnist_datamodule`.
"""

import os
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import Net
from pytorch_lightning.demos.mnist_datamodule import MNISTDataModule


def make_digits(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in (("training.pt", 320), ("test.pt", 64)):
        drawn = torch.Generator().manual_seed(size)
        images = torch.randint(0, 256, (size, 28, 28), generator=drawn, dtype=torch.uint8)
        torch.save((images, torch.randint(0, 10, (size,), generator=drawn)), folder / name)


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.nll_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.nll_loss(self.net(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adadelta(self.parameters(), lr=0.5)


if __name__ == "__main__":
    os.environ["PL_USE_MOCKED_MNIST"] = "1"  # the data module then reads these files, with torchvision or without
    pl.seed_everything(1)
    make_digits(Path("data", "MNIST", "complete"))
    data = MNISTDataModule("data", val_split=64, num_workers=0, normalize=False, batch_size=8)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", log_every_n_steps=4)
    trainer.fit(Digits(), datamodule=data)
    trainer.test(datamodule=data, ckpt_path="best")
