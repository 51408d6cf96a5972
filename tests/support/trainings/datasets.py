"""Data whose samples depend on every generator there is, by index and as streams."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info

WIDTH = 6
BATCH = 5
WHOLE = 4
"""Samples of a batch that the data set itself makes."""


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(6)

    def __call__(self, x):
        return x + torch.rand(WIDTH, generator=self.generator)


class Shuffled(Sampler):
    """A sampler with a generator of its own."""

    def __init__(self, samples):
        self.samples = samples
        self.generator = random.Random(4)

    def __len__(self):
        return self.samples

    def __iter__(self):
        return iter(self.generator.sample(range(self.samples), self.samples))


class Noisy(Dataset):
    """Sample n is n's own vector plus noise from all three generators, and from its own ones where it has them."""

    def __init__(self, count, own_generators=False):
        self.x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))
        self.transforms = [Jitter()] if own_generators else []
        self.generator = np.random.default_rng(5)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index] + torch.rand(WIDTH) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1
        for transform in self.transforms:
            x = transform(x) + self.generator.random()
        return int(index), x.float()


class Whole(Noisy):
    """Each item is a batch."""

    def __getitem__(self, index):
        return default_collate([super(Whole, self).__getitem__(index * WHOLE + n) for n in range(WHOLE)])

    def __len__(self):
        return len(self.x) // WHOLE


class Stream(IterableDataset):
    """The same samples in a shuffled order, without an index. Each worker and each rank gives its share."""

    def __init__(self, inner, ranks=1):
        self.inner, self.ranks = inner, ranks

    def order(self):
        worker = get_worker_info()
        order = list(range(len(self.inner)))[worker.id if worker else 0 :: worker.num_workers if worker else 1]
        random.shuffle(order)
        return order[int(os.environ.get("LOCAL_RANK", 0)) :: self.ranks]  # all ranks have to shuffle alike

    def __iter__(self):
        for index in self.order():
            yield self.inner[index]


class StatefulStream(Stream):
    """Goes on where it stopped, in the next epoch too, and cannot be read again from its beginning."""

    def __init__(self, inner, ranks=1):
        super().__init__(inner, ranks)
        self.left, self.epochs, self.inside = [], 0, False

    def __iter__(self):
        if not self.inside:
            self.left, self.epochs, self.inside = self.order(), self.epochs + 1, True
        while self.left:
            n, x = self.inner[self.left.pop()]
            yield n, x + self.epochs
        self.inside = False

    def state_dict(self):
        return {"left": self.left, "epochs": self.epochs, "inside": self.inside}

    def load_state_dict(self, state):
        self.left, self.epochs, self.inside = list(state["left"]), state["epochs"], state["inside"]


class Batches:
    """No DataLoader at all."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        order = torch.randperm(len(self.data)).split(BATCH)
        return (default_collate([self.data[n] for n in batch.tolist()]) for batch in order)


def mixup(batch):
    """A collate function that draws."""
    ids, x = default_collate(batch)
    return ids, x + torch.rand(1) * 0.1 + random.random() * 0.1


def joined(parts):
    """One batch made of those that several loaders gave together; some may have given none."""
    given = [part for part in parts.values() if part is not None]
    return [torch.cat(column) for column in zip(*given, strict=True)]
