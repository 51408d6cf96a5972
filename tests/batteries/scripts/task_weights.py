"""
The losses of three tasks are weighed by how fast each falls, in dictionaries of Python numbers.

Stands for: multi-task learning (GradNorm, dynamic weight averaging).
"""

import math
from collections import defaultdict

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TASKS = ("mean", "spread", "sign")


class MultiTask(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(16, 1) for task in TASKS})
        self.weights = dict.fromkeys(TASKS, 1.0)
        self.first_losses = {}
        self.running = defaultdict(list)

    def training_step(self, batch, batch_idx):
        x, *wanted = batch
        hidden = self.trunk(x)
        losses = {}
        for task, y in zip(TASKS, wanted, strict=True):
            losses[task] = nn.functional.mse_loss(self.heads[task](hidden).squeeze(1), y)
            self.first_losses.setdefault(task, losses[task].item())
            self.running[task].append(losses[task].item())
        if self.global_step % 4 == 3:
            self._weigh(losses)
        self.log_dict({f"weight/{task}": weight for task, weight in self.weights.items()})
        return sum(self.weights[task] * loss for task, loss in losses.items())

    def _weigh(self, losses) -> None:
        norms = {
            task: torch.autograd.grad(loss, self.trunk[0].weight, retain_graph=True)[0].norm().item()
            for task, loss in losses.items()
        }
        speed = {task: math.exp(self.running[task][-1] / self.first_losses[task]) for task in TASKS}
        total = sum(speed[task] / (norms[task] + 1e-3) for task in TASKS)
        for task in TASKS:
            share = speed[task] / (norms[task] + 1e-3) / total
            self.weights[task] = 0.7 * self.weights[task] + 0.3 * len(TASKS) * share

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(103)
    x = torch.randn(96, 8)
    data = TensorDataset(x, x.mean(1), x.std(1), x[:, 0].sign())
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", log_every_n_steps=1)
    trainer.fit(MultiTask(), DataLoader(data, 10, shuffle=True))


if __name__ == "__main__":
    main()
