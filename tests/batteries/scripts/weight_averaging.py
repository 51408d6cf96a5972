"""
Lightning's own EMAWeightAveraging, whose average is what checkpoints hold as the weights.

Stands for: newer Lightning projects that replaced an EMA callback of their own by the library's.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Dropout(0.1), nn.Linear(20, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(5)
    x = torch.randn(80, 6)
    data = TensorDataset(x, x.prod(1, keepdim=True))
    trainer = pl.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        callbacks=[EMAWeightAveraging(decay=0.95), ModelCheckpoint("kept", monitor="val_loss")],
    )
    trainer.fit(Net(), DataLoader(data, 8, shuffle=True), DataLoader(data, 40))
    trainer.test(ckpt_path="best", dataloaders=DataLoader(data, 40))


if __name__ == "__main__":
    main()
