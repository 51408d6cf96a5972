"""
Logs by the script's own hand: a CSV that stays open, lines of JSON that are appended, a text replaced at each epoch.

Stands for: research code without a logger.
"""

import csv
import json
import logging
import os

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Logs(pl.Callback):
    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.file = open(f"{folder}/steps.csv", "w", newline="")  # noqa: SIM115  open until the end
        self.rows = csv.writer(self.file)
        self.rows.writerow(["step", "loss"])
        self.best = float("inf")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rows.writerow([trainer.global_step, outputs["loss"].item()])
        self.file.flush()

    def on_validation_epoch_end(self, trainer, module):
        if trainer.sanity_checking:
            return
        loss = trainer.callback_metrics["val_loss"].item()
        with open(f"{self.folder}/epochs.jsonl", "a") as file:
            file.write(json.dumps({"epoch": trainer.current_epoch, "val_loss": loss}) + "\n")
        if loss < self.best:
            self.best = loss
            logging.info("epoch %d is the best so far: %r", trainer.current_epoch, loss)
        with open(f"{self.folder}/status.tmp", "w") as file:
            file.write(f"epoch {trainer.current_epoch}, best {self.best!r}\n")
        os.replace(f"{self.folder}/status.tmp", f"{self.folder}/status.txt")


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 10), nn.Sigmoid(), nn.Linear(10, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Rprop(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(79)
    logs = Logs("out")
    logging.basicConfig(filename="out/train.log", level=logging.INFO, format="%(asctime)s %(message)s")
    x = torch.randn(96, 5)
    data = TensorDataset(x, x.max(1, keepdim=True).values)
    trainer = pl.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[logs])
    trainer.fit(Net(), DataLoader(data, 12, shuffle=True), DataLoader(data, 48))
    logs.file.close()


if __name__ == "__main__":
    main()
