import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Curves(pl.LightningDataModule):
    def __init__(self, samples: int = 150, batch_size: int = 10) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(self.hparams.samples, 6, generator=generator)
        data = TensorDataset(x, x.prod(1, keepdim=True).tanh())
        self.train, self.val = random_split(data, [0.8, 0.2], generator)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, self.hparams.batch_size)


class Regression(pl.LightningModule):
    def __init__(self, width: int = 24, dropout: float = 0.1, noise: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x + self.hparams.noise * torch.randn_like(x)), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))
