"""Scripts with a `Loop` that are refused, and one that names what it loses: `loops[name]()`, by the job's `name`."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from spotrun import Loop

job = json.loads(sys.argv[1])
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train = DataLoader(TensorDataset(torch.zeros(job.get("samples", 12), 3)), 2)


def step() -> None:
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()


def trains(loop: Loop, epochs: int = 2) -> None:
    for _ in loop.epochs(epochs):
        for _ in loop.batches(train):
            step()


def second_loop() -> None:
    for _ in Loop(model=model, optimizer=optimizer).epochs(2):
        trains(Loop(model=model, optimizer=optimizer))


def enumerated() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for _ in enumerate(loop.batches(train)):
            step()


def enumerated_bar() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for _ in enumerate(tqdm(loop.batches(train))):
            step()


def zipped() -> None:
    """Pairs labelled batches with others, whose place nobody knows after a resume."""
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for _ in zip(tqdm(loop.enumerate(train)), itertools.cycle(train), strict=False):
            step()


def sliced() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for _ in itertools.islice(loop.batches(train), 4):
            step()


def no_optimizer() -> None:
    trains(Loop(model=model))


def other_model() -> None:
    trains(Loop(model=nn.Linear(2, 2), optimizer=optimizer))


def two_passes_at_once() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for _ in loop.batches(train):
            for _ in loop.batches(train):
                step()


def outside_of_epochs() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.batches(train):
        step()


def shaped() -> None:
    own = nn.Linear(3, job.get("width", 3))
    loop = Loop(model=model, other=own, optimizer=optimizer)
    for _ in loop.epochs(job.get("epochs", 2)):
        for _ in loop.batches(train):
            step()


def counts_in_a_local() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    total, best = 0, 0
    for epoch in loop.epochs(2):
        seen, last = [], None
        for number, _ in loop.enumerate(train):
            step()
            total += 1
            seen.append(number)
            last = number
        best = max(best, epoch, len(seen), last)
    print(total, best)


def reads_on_and_on() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    others = iter(train)
    for _ in loop.steps(20):
        try:
            next(others)
        except StopIteration:
            others = iter(train)
        step()


def cycle_before_the_pass() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    others = loop.cycle(train)
    for _ in loop.epochs(2):
        for _ in zip(others, loop.batches(train), strict=False):
            step()


def cycle_within() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        loop.cycle(train)


def looks_at_clocks() -> None:
    """Measures its time as scripts do. What it prints after a loop comes from within."""
    loop = Loop(model=model, optimizer=optimizer)
    began = last = time.time()
    for epoch in loop.epochs(2):
        end = time.perf_counter()
        for number, _ in loop.enumerate(train):
            waited = number, time.perf_counter() - end
            step()
            now = time.time()
            took, last = now - last, now
            end = time.perf_counter()
        for batch in loop.validation(train):
            width = batch[0].shape
        print(epoch, number, waited, took, width, began)


def sets_what_it_lacks() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for number, _ in loop.enumerate(train):
            if number == 0:
                scale = 2.0
            step()
            print(scale)


def changes_in_place() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    losses, total = [], torch.zeros(2)
    for _ in loop.epochs(2):
        for number, _ in loop.enumerate(train):
            step()
            losses += [number]
            total += number
    print(losses, total)


def ends_with_a_local() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for number, _ in loop.enumerate(train):
            assert number < len(train)
            step()
    print(number)


def begins_from_state() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    s = loop.state(steps=0)
    for epoch in loop.epochs(10_000):
        start, half = s.steps, epoch / 2
        for _ in loop.batches(train):
            step()
            s.steps += 1
            print(s.steps - start, half)


def uneven() -> None:
    distributed.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
    replica = DistributedDataParallel(model)
    loop = Loop(model=replica, optimizer=optimizer)
    mine = DataLoader(TensorDataset(torch.zeros(8 + 2 * distributed.get_rank(), 3)), 2)
    for _ in loop.epochs(2):
        with Join([replica]):
            for x in loop.batches(mine):
                replica(*x).sum().backward()
                optimizer.step()


def raises() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    for _ in loop.epochs(2):
        for number, _ in loop.enumerate(train):
            step()
            if number == 2:
                raise ValueError("a bad batch")


def counts_in_both_loops() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    kept = loop.state(bad=0)
    best = 0.5
    for epoch in loop.epochs(2):
        total = 0.25
        for number, _ in loop.enumerate(train):
            step()
            total += number
        best = max(best, total, epoch)
        kept.bad += best < total


def counts_without_passes() -> None:
    loop = Loop(model=model, optimizer=optimizer)
    total = 3
    for epoch in loop.epochs(2):
        total += 1 + epoch


def grows() -> None:
    grown = nn.Sequential(nn.Linear(3, 3))
    learner = torch.optim.SGD(grown.parameters(), 0.1)
    loop = Loop(model=grown, optimizer=learner)
    for epoch in loop.epochs(3):
        if epoch == 1:
            grown.append(nn.Linear(3, 3))
        for x in loop.batches(train):
            grown(*x).sum().backward()
            learner.step()


globals()[job["name"]]()
