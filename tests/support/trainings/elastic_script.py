"""
An elastic training: `python elastic_script.py JOB`, on as many processes as `ranks` says.

The job's `variant` names what the training has besides BatchNorm, dropout, momentum, clipping and a short last batch.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from spotrun import Loop
from spotrun.trainer_link import VIRTUAL_RANKS
from tests.support.trainings.loop_scripts.world import WIDTH, Noisy, done, job, loss_of, network, tick

VARIANT = job["variant"]
OWN = np.random.default_rng(7)
os.environ[VIRTUAL_RANKS] = str(job["virtual_ranks"])


class Chance(nn.Module):
    """Of its two branches, each micro-batch uses one that it draws. A third is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([network(), network(), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[int(torch.randint(0, 2, ()))](x)


def main() -> None:
    distributed.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(1 + distributed.get_rank())  # the weights of rank 0 count
    model = Chance() if VARIANT == "branches" else network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01) if VARIANT == "scaled" else None
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124, growth_interval=3, enabled=VARIANT == "scaled")
    train = DataLoader(Noisy(66), 24, shuffle=True, num_workers=2 if VARIANT == "workers" else 0)
    every = 2 if VARIANT == "accumulated" else 1
    loop = Loop(seed=13, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    s = loop.state(losses=[])

    def backward(loss: torch.Tensor) -> torch.Tensor:
        scaler.scale(loss / every).backward()
        return loop.mean(loss)

    for _ in loop.epochs(3):
        for number, batch in loop.enumerate(train):
            for x in loop.micro_batches(batch):
                with torch.autocast("cpu", torch.bfloat16, enabled=VARIANT == "scaled"):
                    mean = backward(loss_of(model, x))
                tick()
            if VARIANT == "twice":  # a second step on the same batch, and one on samples that the script draws
                step(model, optimizer, scaler)
                for x in loop.micro_batches(batch):
                    mean = backward(loss_of(model, x + torch.rand(1)))
                step(model, optimizer, scaler)
                for _ in loop.micro_batches():
                    mean = backward(loss_of(model, torch.rand(5, WIDTH) + float(OWN.random())))
            if (number + 1) % every == 0 or number == 2:
                step(model, optimizer, scaler)
                scheduler.step()
            s.losses.append(float(mean))
            tick()
            if VARIANT == "apart":
                s.losses.append(torch.nn.init.normal_(model[0].weight) if distributed.get_rank() else None)
    if distributed.get_rank() == 0:
        done(model=model, optimizer=optimizer, losses=s.losses, scale=scaler.get_scale())
    distributed.destroy_process_group()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with torch.no_grad():
        next(model.parameters()).add_(torch.rand(1) * 1e-3)  # noise between the gradients and the step
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


main()
