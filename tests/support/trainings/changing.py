"""Data whose epochs are not alike: samplers that depend on the epoch or on themselves, and iterables without an end."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, default_collate

from tests.support.trainings.datasets import BATCH, Noisy


class Buckets(Sampler):
    """Batches of samples of a like length, in a random order. Their number depends on the epoch."""

    def __init__(self, samples):
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def batches(self):
        order = random.Random(self.epoch).sample(range(self.samples), self.samples - 3 * (self.epoch % 2))
        buckets = [[n for n in order if n % 3 == bucket] for bucket in range(3)]
        found = [b[start : start + BATCH] for b in buckets for start in range(0, len(b), BATCH)]
        found = [batch for batch in found if len(batch) > 1]
        random.Random(self.epoch).shuffle(found)
        return found

    def __len__(self):
        return len(self.batches())

    def __iter__(self):
        return iter(self.batches())


class Counting(Sampler):
    """Counts its passes, and knows how long one is only when it begins."""

    def __init__(self, samples):
        self.samples, self._passes, self.length, self.seen = samples, 0, samples, []

    def __len__(self):
        return self.length

    def __iter__(self):
        self._passes += 1
        self.length = self.samples - 5 * (self._passes % 2)
        order = random.Random(self._passes).sample(range(self.samples), self.length)
        self.seen.append(order[0])
        return iter(order)


class Endless(Sampler):
    """Says how many samples an epoch takes, and never stops."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __iter__(self):
        while True:
            yield from torch.randperm(self.samples).tolist()


class Counted(IterableDataset):
    """Is its own iterator, and goes on in the next epoch where it was."""

    def __init__(self, inner):
        self.inner, self.given = inner, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        return self.inner[self.given * 7 % len(self.inner)]


class Forever(IterableDataset):
    """Begins anew at each pass, and never ends."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        while True:
            for n in torch.randperm(len(self.inner)).tolist():
                yield self.inner[n]


def batches_of(data):
    """A generator of batches, which one can begin only once."""
    for first in itertools.count(step=3):
        yield default_collate([data[(first + n) % len(data)] for n in range(BATCH)])


def kinds(loaders):
    """Functions that make a loader, by the name of their kind."""
    data, samples, options = loaders.data, loaders.samples, loaders.options
    weights = torch.utils.data.WeightedRandomSampler(torch.ones(samples), samples)
    return {
        "buckets": lambda: DataLoader(data, batch_sampler=Buckets(samples), **options),
        "counting sampler": lambda: DataLoader(data, BATCH, sampler=Counting(samples), **options),
        "endless with a length": lambda: DataLoader(data, BATCH, sampler=Endless(samples), **options),
        "batches that grow": lambda: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, False)),
        "weights of samples": lambda: DataLoader(data, BATCH, sampler=weights, **options),
        "iterator": lambda: batches_of(data),
        "dataset that is an iterator": lambda: DataLoader(Counted(data), BATCH),
        "forever": lambda: DataLoader(Forever(data), BATCH, **options),
    }


def batches_that_grow(pl, kind):
    """A callback that makes batches larger from epoch to epoch, so that epochs get shorter."""

    class Growing(pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            trainer.train_dataloader.batch_sampler.batch_size = 4 + trainer.current_epoch

    return kind, [Growing()]


def data_that_grows(pl, kind):
    """Each epoch's loader is made by what the one before it has found: more samples, and other weights for them."""

    class Choosing(kind):
        def __init__(self):
            super().__init__()
            self.found, self.errors = set(range(12)), np.ones(40)

        def train_dataloader(self):
            chosen = sorted(self.found)
            weights = torch.from_numpy(self.errors[chosen].copy())
            sampler = torch.utils.data.WeightedRandomSampler(weights, len(chosen))
            return DataLoader(torch.utils.data.Subset(Noisy(40), chosen), BATCH, sampler=sampler)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.errors[batch[0].numpy()] *= 0.5 + loss.item()
            return loss

        def on_validation_epoch_end(self):
            if not self.trainer.sanity_checking:
                self.found |= {len(self.found) + number for number in range(10)}

    return Choosing, []


def hard_samples_first(pl, kind):
    """A callback that weighs samples by what it has seen of them."""

    class Weighing(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.train_dataloader.sampler.weights[batch[0]] *= 0.5

    return kind, [Weighing()]
