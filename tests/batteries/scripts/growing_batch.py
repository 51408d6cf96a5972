"""
The batch grows with the epochs, in a new loader for each.

Stands for: recipes that raise the batch size and not the rate (`reload_dataloaders_every_n_epochs`).
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Growing(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 6
        self.made = []

    def setup(self, stage=None):
        x = torch.randn(120, 6, generator=torch.Generator().manual_seed(3))
        self.data = TensorDataset(x, x.cumsum(1)[:, -1:])

    def train_dataloader(self):
        self.batch_size = min(24, 6 * 2 ** (self.trainer.current_epoch // 2))
        self.made.append(self.batch_size)
        return DataLoader(self.data, self.batch_size, shuffle=True)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Mish(), nn.Linear(12, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    pl.seed_everything(101)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", reload_dataloaders_every_n_epochs=1, log_every_n_steps=5)
    trainer.fit(Net(), datamodule=Growing())


if __name__ == "__main__":
    main()
