"""
A callback makes the data harder as the loss falls: an attribute of the data set, and weights of its sampler.

Stands for: curriculum learning and hard example mining.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Sums(Dataset):
    """Add numbers; the harder, the more of them."""

    def __init__(self) -> None:
        self.difficulty = 1
        self.read = 0

    def __len__(self):
        return 96

    def __getitem__(self, index):
        self.read += 1
        x = torch.zeros(8)
        count = 1 + index % self.difficulty
        x[:count] = torch.randn(count)
        return index, x, x.sum()


class Curriculum(pl.Callback):
    def __init__(self, data: Sums, sampler: WeightedRandomSampler) -> None:
        self.data = data
        self.sampler = sampler
        self.losses = []
        self.levels = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.sampler.weights[batch[0]] = outputs["each"].double() + 0.01

    def on_train_epoch_end(self, trainer, module):
        if sum(self.losses) / len(self.losses) < 2.0:
            self.data.difficulty = min(8, self.data.difficulty + 1)
        self.levels.append(self.data.difficulty)
        self.losses.clear()


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        _, x, y = batch
        each = (self.net(x).squeeze(1) - y).square()
        return {"loss": each.mean(), "each": each.detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(89)
    data = Sums()
    sampler = WeightedRandomSampler(torch.ones(96), 96)
    curriculum = Curriculum(data, sampler)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[curriculum])
    trainer.fit(Net(), DataLoader(data, 10, sampler=sampler))
    with open("levels.txt", "w") as file:
        file.write(f"{curriculum.levels}\n")


if __name__ == "__main__":
    main()
