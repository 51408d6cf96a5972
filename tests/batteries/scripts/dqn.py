"""
An agent that plays while it trains: a replay memory in a deque, an epsilon that decays, a target network.

Stands for: reinforcement learning examples on Lightning (DQN with an IterableDataset over its memory).
"""

import random
from collections import deque, namedtuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

Experience = namedtuple("Experience", ("state", "action", "reward", "done", "next_state"))


class Corridor:
    """Walk to the right end; a step to the left may slip."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.place = 0

    def reset(self):
        self.place = 0
        return self._state()

    def step(self, action: int):
        move = 1 if action == 1 or random.random() < 0.1 else -1
        self.place = max(0, self.place + move)
        done = self.place == self.length - 1
        return self._state(), 1.0 if done else -0.05, done

    def _state(self):
        state = np.zeros(self.length, dtype=np.float32)
        state[self.place] = 1.0
        return state


class Memory:
    def __init__(self, size: int) -> None:
        self.items = deque(maxlen=size)

    def append(self, experience: Experience) -> None:
        self.items.append(experience)

    def sample(self, size: int):
        chosen = np.random.choice(len(self.items), size, replace=False)
        return [np.array(each) for each in zip(*(self.items[index] for index in chosen), strict=True)]


class Replayed(IterableDataset):
    def __init__(self, memory: Memory, size: int) -> None:
        self.memory = memory
        self.size = size

    def __iter__(self):
        yield from zip(*self.memory.sample(self.size), strict=True)


class DQN(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
        self.target = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
        self.target.load_state_dict(self.net.state_dict())
        self.env = Corridor()
        self.memory = Memory(100)
        self.state = self.env.reset()
        self.episode_reward = 0.0
        self.rewards = []
        for _ in range(40):
            self.play(1.0)

    @torch.no_grad()
    def play(self, epsilon: float) -> None:
        explore = random.random() < epsilon
        action = random.randrange(2) if explore else int(self.net(torch.from_numpy(self.state)).argmax())
        state, reward, done = self.env.step(action)
        self.memory.append(Experience(self.state, action, reward, done, state))
        self.state = self.env.reset() if done else state
        self.episode_reward += reward
        if done:
            self.rewards.append(self.episode_reward)
            self.episode_reward = 0.0

    def training_step(self, batch, batch_idx):
        states, actions, rewards, dones, next_states = batch
        self.play(max(0.05, 1.0 - self.global_step / 40))
        if self.global_step % 10 == 0:
            self.target.load_state_dict(self.net.state_dict())
        values = self.net(states).gather(1, actions.long().unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            next_values = self.target(next_states).max(1).values.masked_fill(dones, 0.0)
        return nn.functional.smooth_l1_loss(values, rewards.float() + 0.95 * next_values)

    def train_dataloader(self):
        return DataLoader(Replayed(self.memory, 32), 16)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(53)
    agent = DQN()
    pl.Trainer(max_epochs=24, accelerator="cpu", logger=False, enable_checkpointing=False).fit(agent)
    with open("rewards.txt", "w") as file:
        file.writelines(f"{reward!r}\n" for reward in agent.rewards)


if __name__ == "__main__":
    main()
