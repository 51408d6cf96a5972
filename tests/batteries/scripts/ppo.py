"""
Roll-outs in many environments at once, whose state are numpy arrays, and running statistics to normalize them.

Stands for: policy gradient code on Lightning (PPO with manual optimization and several passes over each roll-out).
"""

from dataclasses import dataclass, field

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ENVS, LENGTH, PASSES = 8, 12, 2


@dataclass
class Statistics:
    mean: np.ndarray = field(default_factory=lambda: np.zeros(2))
    square: np.ndarray = field(default_factory=lambda: np.ones(2))
    count: int = 1

    def update(self, x) -> None:
        self.count += 1
        self.mean += (x.mean(0) - self.mean) / self.count
        self.square += ((x**2).mean(0) - self.square) / self.count

    def normal(self, x):
        return (x - self.mean) / np.sqrt(self.square + 1e-6)


class Swings:
    """Push a mass to the middle."""

    def __init__(self) -> None:
        self.state = np.random.uniform(-1, 1, (ENVS, 2))
        self.age = np.zeros(ENVS, dtype=np.int64)

    def step(self, push):
        self.state[:, 1] += 0.2 * push - 0.05 * self.state[:, 0]
        self.state[:, 0] += 0.2 * self.state[:, 1]
        reward = -np.abs(self.state[:, 0])
        self.age += 1
        over = (self.age > 15) | (np.abs(self.state[:, 0]) > 2)
        self.state[over] = np.random.uniform(-1, 1, (int(over.sum()), 2))
        self.age[over] = 0
        return reward, over


class RollOuts(IterableDataset):
    def __init__(self, agent) -> None:
        self.agent = agent

    def __iter__(self):
        yield from self.agent.roll_out()


class PPO(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.value = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.envs = Swings()
        self.statistics = Statistics()
        self.returns = np.zeros(ENVS)
        self.ended = []

    @torch.no_grad()
    def roll_out(self):
        kept = []
        for _ in range(LENGTH):
            self.statistics.update(self.envs.state)
            x = torch.from_numpy(self.statistics.normal(self.envs.state)).float()
            choice = torch.distributions.Categorical(logits=self.actor(x))
            action = choice.sample()
            reward, over = self.envs.step(action.numpy() * 2.0 - 1.0)
            self.returns += reward
            self.ended += self.returns[over].tolist()
            self.returns[over] = 0.0
            kept.append(
                (x, action, choice.log_prob(action), torch.from_numpy(reward).float(), self.value(x).squeeze(1))
            )
        total = torch.zeros(ENVS)
        for x, action, log_prob, reward, value in reversed(kept):
            total = reward + 0.95 * total
            yield from zip(x, action, log_prob, total - value, total, strict=True)

    def training_step(self, batch, batch_idx):
        x, action, old, advantage, wanted = batch
        optimizer = self.optimizers()
        for _ in range(PASSES):
            ratio = (torch.distributions.Categorical(logits=self.actor(x)).log_prob(action) - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = nn.functional.mse_loss(self.value(x).squeeze(1), wanted) - gain
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)

    def train_dataloader(self):
        return DataLoader(RollOuts(self), 32)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    pl.seed_everything(139)
    pl.Trainer(max_epochs=9, accelerator="cpu", log_every_n_steps=1).fit(PPO())


if __name__ == "__main__":
    main()
