"""
Mixup and cutmix by the generators of numpy and of random, one of them made by the script.

Stands for: image classification recipes.
"""

import random

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self) -> None:
        drawn = np.random.RandomState(2)
        self.images = drawn.rand(80, 1, 8, 8).astype(np.float32)
        self.labels = drawn.randint(0, 4, 80)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image[:, :, ::-1]
        top, left = np.random.randint(0, 3, 2)
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
        return torch.from_numpy(padded[:, top : top + 8, left : left + 8].copy()), int(self.labels[index])


class Net(pl.LightningModule):
    def __init__(self, alpha: float = 0.4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4))
        self.alpha = alpha
        self.drawn = np.random.default_rng(97)

    def training_step(self, batch, batch_idx):
        x, y = batch
        share = self.drawn.beta(self.alpha, self.alpha)
        order = torch.from_numpy(self.drawn.permutation(len(x)))
        if self.drawn.random() < 0.5:
            x = share * x + (1 - share) * x[order]
        else:
            size = int(8 * np.sqrt(1 - share))
            top, left = self.drawn.integers(0, 9 - size, 2) if size else (0, 0)
            x[:, :, top : top + size, left : left + size] = x[order][:, :, top : top + size, left : left + size]
            share = 1 - size**2 / 64
        logits = self.net(x.float())
        cross_entropy = nn.functional.cross_entropy
        return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y[order])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    pl.seed_everything(97)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    trainer.fit(Net(), DataLoader(Images(), 8, shuffle=True))


if __name__ == "__main__":
    main()
