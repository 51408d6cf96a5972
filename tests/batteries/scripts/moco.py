"""
A queue of keys in a buffer, and an encoder whose weights follow those of another one.

Stands for: self-supervised repositories after MoCo.
"""

import copy

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Views(Dataset):
    """Two random views of each point."""

    def __init__(self) -> None:
        self.points = torch.randn(96, 8)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return tuple(self.points[index] + 0.1 * torch.randn(8) for _ in range(2))


class MoCo(pl.LightningModule):
    def __init__(self, size: int = 48, momentum: float = 0.95) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("queue", nn.functional.normalize(torch.randn(8, size), dim=0))
        self.register_buffer("place", torch.zeros((), dtype=torch.long), persistent=False)

    def training_step(self, batch, batch_idx):
        one, other = batch
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.mul_(self.momentum).add_(theirs, alpha=1 - self.momentum)
            order = torch.randperm(len(other))
            keys = nn.functional.normalize(self.key(other[order]), dim=1)[order.argsort()]
        queries = nn.functional.normalize(self.query(one), dim=1)
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone()], dim=1) / 0.1
        self._enqueue(keys)
        return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))

    @torch.no_grad()
    def _enqueue(self, keys) -> None:
        start = int(self.place)
        self.queue[:, start : start + len(keys)] = keys.T
        self.place.fill_((start + len(keys)) % self.queue.shape[1])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.query.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)]


def main() -> None:
    pl.seed_everything(59)
    trainer = pl.Trainer(max_epochs=6, accelerator="cpu", logger=False)
    trainer.fit(MoCo(), DataLoader(Views(), 12, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True))


if __name__ == "__main__":
    main()
