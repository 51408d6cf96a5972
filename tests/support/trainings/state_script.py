"""
A script whose loss feeds on what it keeps in Python objects, in as many ways as scripts do.

It is run as `__main__`, with its job as the one argument.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import json
import random
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset, Subset

from tests.support.trainings.comparison import sha256
from tests.support.trainings.trace import Trace, first_and_last

WIDTH = 6
SAMPLES = 40
PLACES = [0.0]
"""The module holds the same list."""

steps = 0
kinds = collections.Counter()
generator = random.Random(4)


class Mode(enum.Enum):
    RISING = 1.25
    FALLING = 0.75


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)

    def add(self, value):
        self.total += value
        self.seen.append(value)


class Rated(Dataset):
    """Remembers how often each sample was read."""

    def __init__(self):
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
        self.read = np.zeros(SAMPLES)
        self.epoch = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read[index] += 1
        return self.x[index] * (1 + self.read[index] / 100 + self.epoch / 10)


def smoothed(value, before={}):  # noqa: B006 - scripts do it
    smoothed.calls = getattr(smoothed, "calls", 0) + 1
    before["value"] = 0.9 * before.get("value", 0.0) + 0.1 * value
    return before["value"] + smoothed.calls / 1000


class Average(pl.Callback):
    """An average of the weights, as many scripts write it, a copy of how they began, and a loss of the past."""

    def on_fit_start(self, trainer, module):
        self.model = copy.deepcopy(module.net)
        self.began = copy.deepcopy(module.net).eval()
        self.norm = sum(each.square().sum().item() for each in module.net.parameters())
        self.meters = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for mine, theirs in zip(self.model.parameters(), module.net.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        self.meters.append(Meter())
        for meter in self.meters[-3:]:
            meter.add(outputs["loss"].item())


class Net(pl.LightningModule):
    best = 9.0

    def __init__(self, average):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, WIDTH)
        )
        self.average = average
        self.places = PLACES
        self.mode = Mode.RISING
        self.recent = collections.deque([(0, 0.0)], maxlen=3)
        self.by_mode = collections.defaultdict(lambda: [0])
        self.classes = np.ones(WIDTH, np.float32)
        self.memory = torch.zeros(1 << 17)
        self.rates = {"exact": Decimal("1.0"), "of": Path("a")}
        self._count = np.int64(0)
        self.validated = 0

    def on_fit_start(self):
        self.importance = {name: each.detach().abs() for name, each in self.net.named_parameters()}

    def on_train_start(self):
        self.anchors = [each.detach().clone() for each in self.net.parameters()]
        self.factor = nn.Parameter(torch.ones(()), requires_grad=False).data
        other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        other.step()
        self.held = [ExponentialLR(other, 0.99)]
        self.bests = set()

    def training_step(self, batch, batch_idx):
        global steps
        steps += 1
        self.change_late()
        loss = (self.net(batch * torch.from_numpy(self.classes)) - batch).square().mean()
        loss = loss + (self.average.model(batch).detach() - batch).square().mean()
        loss = loss + (self.average.began(batch).detach() - batch).square().mean() / self.average.norm
        loss = loss + self.away_from_its_beginning() / 100
        return loss * self.keep(loss.item())

    def away_from_its_beginning(self):
        """As of elastic weight consolidation: its anchors are never changed."""
        kept = zip(self.net.parameters(), self.anchors, self.first, self.importance.values(), strict=True)
        return sum(((now - 2 * anchor + first).square() * weight).sum() for now, anchor, first, weight in kept)

    def change_late(self):
        """What a script does once, and never again."""
        if steps == 5:
            self.net[3].p = 0.5
            self.pair = (self.places, Mode.FALLING)
        if steps == 9:
            self.net[4].bias.requires_grad_(self.trainer.world_size > 1)  # several processes wait for each gradient
            self.mode = Mode.FALLING
        if steps >= 12:
            self.net[1].eval()

    def keep(self, loss):
        """A factor of the loss that depends on all that was kept."""
        self._count += 1
        self.places[0] += loss / 100
        self.recent.append((steps, loss))
        self.by_mode[self.mode][0] += 1
        self.classes[steps % WIDTH] *= 1.01
        self.memory.data[steps] = loss
        self.rates["exact"] *= Decimal("1.001")
        self.factor.mul_(1.001)
        self.held[0].optimizer.step()
        self.held[0].step()
        self.bests.add(round(loss, 3))
        kinds[self.mode.name] += 1
        Net.best = min(Net.best, loss)
        factors = (
            PLACES[0], steps / 100, self.mode.value, sum(value for _, value in self.recent), self._count / 50,
            sum(count for (count,) in self.by_mode.values()) / 50, self.memory.sum().item() / 50, self.validated / 50,
            float(self.rates["exact"]), self.factor.item(), self.held[0].get_last_lr()[0], len(self.bests) / 50,
            kinds["FALLING"] / 50, Net.best, smoothed(loss), generator.random(), len(self.average.meters) / 50,
            sum(meter.total for meter in self.average.meters) / 50, len(getattr(self, "pair", ())),
        )  # fmt: skip
        self.say(factors)
        return 1 + sum(factors) / len(factors) / 10

    def on_validation_epoch_end(self):
        self.validated += 1

    def on_train_epoch_start(self):
        rated.epoch = self.current_epoch

    def configure_optimizers(self):
        self.first = tuple(each.detach().clone() for each in self.parameters())
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch) - batch).square().mean())
        self.after_validation_batch()


def main(job):
    trace = Trace(job)
    first, last = first_and_last(pl, trace)
    average = Average()
    net = Net(average)
    vars(net)["say"] = lambda factors: trace.write("train", steps, [float(each).hex() for each in factors])
    vars(net)["after_validation_batch"] = lambda: (
        net.trainer.sanity_checking
        or trace.kill(f"validation:{net.current_epoch}:{net.trainer.fit_loop.batch_idx + 1}")
    )
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[first, average, last], **job.get("trainer", {}),
    )  # fmt: skip
    train = DataLoader(Subset(rated, range(SAMPLES)), 5, shuffle=True, num_workers=job.get("workers", 0))
    trainer.fit(net, train, DataLoader(torch.randn(10, WIDTH), 5))
    result = {
        "weights": sha256(net.state_dict(), average.model.state_dict()),
        "step": trainer.global_step,
        "read": rated.read.tolist(),
        "kept": repr((steps, kinds, PLACES, net.recent, net.places is PLACES, net.mode, sorted(net.bests))),
        "flags": [parameter.requires_grad for parameter in net.parameters()],
    }
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    pl.seed_everything(3, verbose=False)
    rated = Rated()
    main(json.loads(sys.argv[1]))
