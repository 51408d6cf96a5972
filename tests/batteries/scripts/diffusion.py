"""
Noise that is to be found again, an average of the weights in another module, and samples by a generator of its own.

Stands for: DDPM repositories (loss by timestep kept in arrays, importance sampling of timesteps).
"""

import copy

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TIMES = 20


class Timesteps:
    """Draws the times whose loss is largest more often."""

    def __init__(self, history: int = 3) -> None:
        self.history = np.zeros((TIMES, history))
        self.counts = np.zeros(TIMES, dtype=np.int64)

    def draw(self, count: int):
        warm = (self.counts == self.history.shape[1]).all()
        odds = np.sqrt((self.history**2).mean(1)) if warm else np.ones(TIMES)
        return torch.from_numpy(np.random.choice(TIMES, count, p=odds / odds.sum()))

    def update(self, times, losses) -> None:
        for time, loss in zip(times.tolist(), losses.tolist(), strict=True):
            if self.counts[time] == self.history.shape[1]:
                self.history[time, :-1] = self.history[time, 1:]
                self.history[time, -1] = loss
            else:
                self.history[time, self.counts[time]] = loss
                self.counts[time] += 1


class Diffusion(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("kept", torch.linspace(0.99, 0.8, TIMES).cumprod(0))
        self.times = Timesteps()
        self.sampling = torch.Generator().manual_seed(127)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        times = self.times.draw(len(x))
        noise = torch.randn_like(x)
        kept = self.kept[times].unsqueeze(1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        found = self.net(torch.cat([noisy, times.unsqueeze(1) / TIMES], 1).float())
        each = (found - noise).square().mean(1)
        self.times.update(times, each.detach())
        return each.mean()

    def on_before_zero_grad(self, optimizer):
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)

    def on_train_epoch_end(self):
        x = torch.randn(8, 2, generator=self.sampling)
        for time in reversed(range(TIMES)):
            x = x - 0.05 * self.average(torch.cat([x, torch.full((8, 1), time / TIMES)], 1))
        np.savez(f"samples-{self.current_epoch}.npz", x=x.numpy())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(127)
    angle = torch.rand(96) * 6.28
    data = TensorDataset(torch.stack([angle.cos(), angle.sin()], 1))
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    trainer.fit(Diffusion(), DataLoader(data, 10, shuffle=True))


if __name__ == "__main__":
    main()
