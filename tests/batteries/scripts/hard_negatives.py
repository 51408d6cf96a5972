"""
The hardest negatives of each class are looked up in a dictionary of embeddings of earlier batches.

Stands for: face recognition and metric learning repositories.
"""

from collections import OrderedDict

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Embedder(pl.LightningModule):
    def __init__(self, classes: int = 6, kept: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.PReLU(), nn.Linear(16, 4))
        self.memory = OrderedDict((label, []) for label in range(classes))
        self.kept = kept
        self.margin = 0.2
        self.hits = {}

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = nn.functional.normalize(self.net(x), dim=1)
        loss = torch.zeros(())
        for each, label in zip(z, y.tolist(), strict=True):
            positives = self.memory[label]
            negatives = [(other, old) for other, olds in self.memory.items() if other != label for old in olds]
            if positives and negatives:
                hardest = max(negatives, key=lambda pair: float(pair[1] @ each.detach()))
                self.hits[label, hardest[0]] = self.hits.get((label, hardest[0]), 0) + 1
                loss = loss + (self.margin + hardest[1] @ each - positives[-1] @ each).relu()
        for each, label in zip(z.detach(), y.tolist(), strict=True):
            self.memory[label] = [*self.memory[label][1 - self.kept :], each]
            self.memory.move_to_end(label)
        return loss / len(x) + 1e-4 * self.net[0].weight.square().sum()

    def configure_optimizers(self):
        optimizer = torch.optim.Adagrad(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "spread"}}

    def validation_step(self, batch, batch_idx):
        self.log("spread", self.net(batch[0]).std())


def main() -> None:
    pl.seed_everything(149)
    labels = torch.arange(96) % 6
    data = TensorDataset(torch.randn(6, 8)[labels] + 0.5 * torch.randn(96, 8), labels)
    trainer = pl.Trainer(max_epochs=6, accelerator="cpu", logger=False)
    trainer.fit(Embedder(), DataLoader(data, 12, shuffle=True), DataLoader(data, 48))


if __name__ == "__main__":
    main()
