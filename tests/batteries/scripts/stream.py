"""
A stream of shards, read by two workers with a shuffle buffer in each.

Stands for: web-scale data loading (webdataset-like) with an IterableDataset that divides shards among workers.
"""

import random

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, IN_SHARD = 6, 16


class Stream(IterableDataset):
    def __init__(self, seed: int = 0, buffer: int = 10) -> None:
        self.seed = seed
        self.buffer = buffer

    def __iter__(self):
        worker = get_worker_info()
        mine = range(SHARDS)[worker.id :: worker.num_workers] if worker else range(SHARDS)
        drawn = random.Random(worker.seed if worker else self.seed)
        waiting = []
        for shard in drawn.sample(list(mine), len(mine)):
            rows = torch.randn(IN_SHARD, 6, generator=torch.Generator().manual_seed(shard))
            for row in rows:
                waiting.append(row)
                if len(waiting) >= self.buffer:
                    yield waiting.pop(drawn.randrange(len(waiting))) + 0.01 * torch.randn(6)
        drawn.shuffle(waiting)
        yield from waiting


class Autoencoder(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))

    def training_step(self, x, batch_idx):
        loss = nn.functional.mse_loss(self.net(x), x)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(37, workers=True)
    loader = DataLoader(Stream(), 8, num_workers=2, drop_last=True)
    pl.Trainer(max_epochs=3, accelerator="cpu", log_every_n_steps=4).fit(Autoencoder(), loader)


if __name__ == "__main__":
    main()
