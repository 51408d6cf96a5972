"""Two processes by torch.distributed, DistributedDataParallel with `no_sync`, and a sampler for each one's share."""

from __future__ import annotations

import contextlib
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main() -> None:
    distributed.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
    torch.manual_seed(1)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    data = Noisy()
    train = DataLoader(data, 5, sampler=DistributedSampler(data, seed=3))
    loop = Loop(seed=13, model=model, optimizer=optimizer)
    s = loop.state(losses=[])
    for epoch in loop.epochs(3):
        train.sampler.set_epoch(epoch)
        for number, x in loop.enumerate(train):
            syncs = number % 2 == 1
            with contextlib.nullcontext() if syncs else model.no_sync():
                loss = loss_of(model, x)
                loss.backward()
            tick()
            if syncs:
                optimizer.step()
                optimizer.zero_grad()
            s.losses.append(loss.item())
            tick()
    done(model=model, optimizer=optimizer, losses=s.losses)
    distributed.destroy_process_group()


main()
