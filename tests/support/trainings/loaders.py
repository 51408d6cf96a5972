"""The loaders of a job, by the name of their kind."""

from __future__ import annotations

import importlib
import itertools

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.support.trainings.changing import kinds
from tests.support.trainings.datasets import (
    BATCH,
    WHOLE,
    Batches,
    Noisy,
    Shuffled,
    StatefulStream,
    Stream,
    Whole,
    mixup,
)

STREAMS = {"stream": Stream, "stateful stream": StatefulStream}


class Loaders:
    """What a job is trained on and validated with."""

    def __init__(self, pl, job):
        self.pl, self.job = pl, job
        self.samples = job.get("samples", 40)
        self.data = self.noisy(self.samples)
        workers = job.get("workers", 0)
        self.options = {"num_workers": workers, "persistent_workers": bool(workers and job.get("persistent"))}
        self.kinds = {
            "shuffle": self.shuffled,
            "stream": lambda: self.streamed("stream"),
            "stateful stream": lambda: self.streamed("stateful stream"),
            "stream and list": lambda: [DataLoader(self.stream("stream"), BATCH), DataLoader(self.data, BATCH)],
            "endless": lambda: DataLoader(self.data, BATCH, sampler=itertools.cycle(range(self.samples))),
            "batches": lambda: Batches(self.data),
            "two": self.two,
            "min_size": lambda: self.combined("min_size"),
            "max_size": lambda: self.combined("max_size"),
            "own sampler": lambda: DataLoader(self.data, BATCH, sampler=Shuffled(self.samples), **self.options),
            "batch sampler": self.batch_sampler,
            "weighted": self.weighted,
            "generator": self.generator,
            "no batches": self.no_batches,
            **kinds(self),
        }

    def noisy(self, count):
        return Noisy(count, self.job.get("own_generators", False))

    def stream(self, kind):
        return STREAMS[kind](self.noisy(self.samples), self.job.get("ranks", 1))

    def train(self):
        return self.kinds[self.job.get("loader", "shuffle")]()

    def part(self, epoch):
        """Another random part of the data each time; its size depends on the epoch."""
        order = torch.randperm(self.samples)[: self.samples - epoch].tolist()
        return DataLoader(torch.utils.data.Subset(self.data, order), BATCH, shuffle=True)

    def validation(self):
        workers = self.job.get("val_workers", 0)
        if kind := self.job.get("validation_stream"):
            return DataLoader(self.stream(kind), BATCH, num_workers=workers, persistent_workers=workers > 0)
        persistent = bool(self.job.get("val_persistent"))
        return DataLoader(self.noisy(11), 4, num_workers=workers, persistent_workers=persistent)

    # -- kinds -------------------------------------------------------------------------------------------------------

    def loader_class(self):
        """The one of torch, or that of torchdata, which keeps its place itself."""
        if not self.job.get("torchdata"):
            return DataLoader
        return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader

    def shuffled(self):
        return self.loader_class()(self.data, BATCH, shuffle=True, collate_fn=mixup, **self.options)

    def streamed(self, kind):
        return self.loader_class()(self.stream(kind), BATCH, collate_fn=mixup, **self.options)

    def two(self):
        return self.three_of_two_lengths(self.data)

    def combined(self, mode):
        combined = importlib.import_module(self.pl.__name__ + ".utilities.combined_loader").CombinedLoader
        return combined(self.three_of_two_lengths(self.noisy(15)), mode)

    def three_of_two_lengths(self, third):
        return {
            "a": DataLoader(self.data, BATCH, shuffle=True, **self.options),
            "b": DataLoader(self.noisy(15), BATCH, shuffle=True, **self.options),
            "c": DataLoader(third, BATCH, shuffle=True),
        }

    def batch_sampler(self):
        sampler = BatchSampler(SubsetRandomSampler(range(self.samples)), BATCH, False)
        return DataLoader(self.data, batch_sampler=sampler, **self.options)

    def weighted(self):
        sampler = WeightedRandomSampler(torch.arange(1.0, self.samples + 1), self.samples)
        return DataLoader(self.data, BATCH, sampler=sampler, **self.options)

    def generator(self):
        own = {"generator": torch.Generator().manual_seed(3), "drop_last": True}
        return DataLoader(self.data, BATCH, shuffle=True, collate_fn=mixup, **self.options, **own)

    def no_batches(self):
        whole = Whole(self.samples, self.job.get("own_generators", False))
        sampler = RandomSampler(range(self.samples // WHOLE))
        return DataLoader(whole, batch_size=None, sampler=sampler, **self.options)
