"""What the scripts share: data, the place of a kill, and the result."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.support.trainings.trace import generators

job = json.loads(sys.argv[1])
WIDTH = 6
LOCAL = job.get("local")


class Noisy(Dataset):
    """Samples that draw from each global generator."""

    def __init__(self, count: int = 37) -> None:
        self.x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index] + torch.rand(WIDTH) * 0.1 + float(np.random.rand()) * 0.1 + random.random() * 0.1


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, WIDTH))


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x)


TICKS = "LOOP_SCRIPT_TICKS"


def tick() -> None:
    """The n-th call of this process may be its last: `at:n`. A count that the script itself held would be carried."""
    ticks = int(os.environ.get(TICKS, "0")) + 1
    os.environ[TICKS] = str(ticks)
    if job.get("kill") == f"at:{ticks}":
        os.kill(0 if job.get("ranks") else os.getpid(), signal.SIGKILL)  # 0: the whole process group


def _digest(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.detach().cpu().numpy().tobytes().hex()
    if isinstance(thing, dict):
        return {str(key): _digest(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_digest(value) for value in thing]
    return thing.hex() if isinstance(thing, float) else repr(thing)


def done(**found: Any) -> None:
    states = {n: v.state_dict() if hasattr(v, "state_dict") else v for n, v in found.items()}
    Path(job["result"]).write_text(json.dumps({n: _digest(v) for n, v in states.items()} | {"rng": generators()}))


__all__ = ["WIDTH", "Noisy", "done", "job", "loss_of", "network", "tick"]
