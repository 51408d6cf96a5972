"""A trainer that counts in its own attributes, with the inner loop in another method."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


class Meter:
    def __init__(self):
        self.total, self.count, self.values = 0.0, 0, []

    def add(self, value):
        self.total += value
        self.count += 1
        self.values.append(value)


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.loader = DataLoader(Noisy(), 5, shuffle=True)
        self.loop = Loop(seed=5, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        self.best, self.meter, self.logs = 1e9, Meter(), {}

    def train_epoch(self, epoch):
        self.model.train()
        self.meter = Meter()
        for x in self.loop.batches(self.loader):
            loss = loss_of(self.model, x)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.meter.add(loss.item())
            tick()
        return self.meter.total / self.meter.count

    def fit(self):
        for epoch in self.loop.epochs(4):
            mean = self.train_epoch(epoch)
            self.scheduler.step()
            self.best = min(self.best, mean)
            self.logs[epoch] = mean
            tick()


trainer = Trainer()
trainer.fit()
done(
    model=trainer.model, optimizer=trainer.optimizer, best=trainer.best, logs=trainer.logs, values=trainer.meter.values
)
