"""
A backbone that is frozen at first and gets its parameter group in the middle of the training.

Stands for: transfer learning examples with BackboneFinetuning.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BackboneFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tuned(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.backbone(x)), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self.head(self.backbone(x)).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam([each for each in self.parameters() if each.requires_grad], lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)]


def main() -> None:
    pl.seed_everything(8)
    x = torch.randn(96, 8)
    data = TensorDataset(x, x[:, :3].argmax(1))
    thaw = BackboneFinetuning(
        unfreeze_backbone_at_epoch=2, lambda_func=lambda epoch: 1.5, backbone_initial_ratio_lr=0.1
    )
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[thaw])
    trainer.fit(Tuned(), DataLoader(data, 12, shuffle=True), DataLoader(data, 48))


if __name__ == "__main__":
    main()
