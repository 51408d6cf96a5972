"""The training of a job as a script writes it that owns its loop, with `Loop`."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spotrun import Loop
from tests.support.trainings.comparison import sha256
from tests.support.trainings.datasets import WIDTH
from tests.support.trainings.loaders import Loaders
from tests.support.trainings.trace import Trace, generators


class Lines:
    """A trace that goes on behind the line that the state knows."""

    def __init__(self, job: dict, state: Any) -> None:
        self.trace, self.state = Trace(job), state

    def write(self, *parts: object) -> None:
        self.trace.cut(self.state.lines)
        self.trace.write(*parts)
        self.state.lines = self.trace.lines


def train(job: dict) -> None:
    torch.manual_seed(1)
    options = job.get("trainer", {})
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, WIDTH))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    given = {} if "unsupported" in job else {"optimizer": optimizer}
    loop = Loop(seed=1, net=net, schedule=schedule, **given)
    state = loop.state(lines=0, step=0)
    lines = Lines(job, state)
    kill = lines.trace.kill
    loaders = Loaders(None, job)
    training, validation = loaders.train(), loaders.validation()
    every = options.get("accumulate_grad_batches", 1)
    batches = 8
    for epoch in loop.epochs(options.get("max_epochs", 3)):
        net.train()
        for number, (ids, x) in loop.enumerate(training):
            kill(f"start:{epoch}:{number}")
            loss = nn.functional.mse_loss(net(x), x) / every
            if job.get("nan_at") == state.step:
                loss = loss * float("nan")
            loss.backward()
            time.sleep(job.get("slow_s", 0.003))
            lines.write("train", epoch, number, sorted(ids.tolist()), loss.item().hex(), generators())
            if (number + 1) % every == 0 or number + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                state.step += 1
            loop.log(train_loss=loss.item())
            kill(f"batch:{epoch}:{number + 1}")
            if job.get("kill") == f"error:{epoch}:{number + 1}":
                raise RuntimeError("a bad batch")
        net.eval()
        with torch.no_grad():
            for ids, x in loop.validation(validation):
                loss = nn.functional.mse_loss(net(x + torch.rand(1)), x).item()
                loop.log(val_loss=loss)
                lines.write("validate", epoch, sorted(ids.tolist()), loss.hex())
                kill(f"validation:{epoch}:{batches}")
        kill(f"epoch_end:{epoch}")
        lines.write("epoch", epoch, state.step, schedule.get_last_lr(), random.random())
    kill("train_end")
    result = {
        "weights": sha256(net.state_dict()),
        "optimizer": sha256(*optimizer.state_dict()["state"].values()),
        "step": state.step,
        "lr": schedule.get_last_lr(),
        "generators": generators(),
    }
    Path(job["result"]).write_text(json.dumps(result))
