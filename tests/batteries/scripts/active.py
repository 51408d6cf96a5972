"""
Each fit trains on the labels so far, and the least certain samples get a label before the next one.

Stands for: active learning and self-training, which call `fit()` in a loop.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0]).softmax(1).max(1).values

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main() -> None:
    pl.seed_everything(131)
    x = torch.randn(120, 4)
    data = TensorDataset(x, (x[:, 0] > x[:, 1] * x[:, 2]).long())
    labelled = list(range(24))
    pool = [index for index in range(120) if index not in labelled]
    model = Net()
    for _ in range(3):
        trainer = pl.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False)
        trainer.fit(model, DataLoader(Subset(data, labelled), 8, shuffle=True))
        certain = torch.cat(trainer.predict(model, DataLoader(Subset(data, pool), 32)))
        chosen = [pool[place] for place in certain.argsort()[:16].tolist()]
        labelled += chosen
        pool = [index for index in pool if index not in chosen]
    with open("labelled.txt", "w") as file:
        file.write(" ".join(map(str, labelled)))


if __name__ == "__main__":
    main()
