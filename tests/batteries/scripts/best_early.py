"""
The best of several checkpoints is tested after early stopping.

Stands for: project templates and course notebooks (ModelCheckpoint by a metric, EarlyStopping, `ckpt_path="best"`).
"""

import json
import os

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(pl.LightningModule):
    def __init__(self, width: int = 32, lr: float = 0.03) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 2))

    def _step(self, batch, name):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log_dict({f"{name}_loss": loss, f"{name}_acc": (logits.argmax(1) == y).float().mean()})
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._step(batch, "val")

    def test_step(self, batch, batch_idx):
        self._step(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plan, "interval": "step"}}


def main() -> None:
    pl.seed_everything(42, workers=True)
    x = torch.randn(160, 10)
    y = ((x[:, 0] * x[:, 1] + 0.7 * torch.randn(160)) > 0).long()
    train, val, test = random_split(TensorDataset(x, y), [96, 32, 32])
    best = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True, filename="{epoch}-{val_loss:.3f}")
    trainer = pl.Trainer(
        max_epochs=10,
        accelerator="cpu",
        deterministic=True,
        logger=CSVLogger("logs", name="run"),
        log_every_n_steps=2,
        callbacks=[best, EarlyStopping("val_loss", patience=4), LearningRateMonitor()],
    )
    trainer.fit(Classifier(), DataLoader(train, 16, shuffle=True), DataLoader(val, 32))
    (scores,) = trainer.test(ckpt_path="best", dataloaders=DataLoader(test, 32))
    with open("scores.json", "w") as file:
        scores |= {"best": os.path.basename(best.best_model_path), "score": float(best.best_model_score)}
        json.dump(scores, file)


if __name__ == "__main__":
    main()
