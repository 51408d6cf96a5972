"""
A script that keeps things in many ways, and writes down by itself what it has in the end: an independent recorder.

`--kinds` names what it keeps. Nothing of it has a part in the loss, so that only the end can differ. The record is
written beside the trace of `verify-resume`, where nothing is a file of the work folder.
"""

from __future__ import annotations

import argparse
import array
import collections
import copy
import dataclasses
import functools
import io
import itertools
import json
import os
import random
import sqlite3
import threading
import time
import types
from pathlib import Path

import fast_imports  # noqa: F401
import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MinMaxMetric

SAMPLES = 80
BESIDE = ("flag", "anchor", "first", "bound", "sampler", "parameter", "hook", "extremes")
"""Kinds that are no matter of `Kinds`: made of the weights, or a part of the model."""
STARTED = time.time()
"""Differs in any two processes, and is no matter of a resume."""

table = {"of": {"steps": []}}
started_s = {}


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("value",)


class Classwide:
    best = 9.0


def counted(value, seen=[]):  # noqa: B006 - scripts do it
    seen.append(value)
    counted.calls = getattr(counted, "calls", 0) + 1
    return len(seen)


@functools.lru_cache
def remembered(value):
    return value * 2


def counter():
    number = 0

    def up():
        nonlocal number
        number += 1
        return number

    return up, lambda: number


def endless():
    number = 0
    while True:
        number += 1
        yield number


class Shuffled:
    """A sampler that shuffles a list of its own in place."""

    def __init__(self, count):
        self.order = list(range(count))

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


class Kinds:
    """Everything that can be kept. For each kind a method changes it, and one of the same name in `Seen` reads it."""

    def __init__(self):
        self.plain = 0
        self.history = []
        self.meters = []
        self.recent = collections.deque(maxlen=3)
        self.words = collections.Counter()
        self.weights = np.zeros(4)
        self.average = torch.zeros(3)
        self.slotted = Slotted()
        self.slotted.value = 0
        self.namespace = types.SimpleNamespace(best=0.0)
        self.up, self.count = counter()
        self.numbers = itertools.count()
        self.endless = endless()
        self.packed = array.array("d")
        self.text = io.StringIO()
        self.chained = collections.ChainMap({})
        self.local = threading.local()
        self.local.value = 0
        self.part = functools.partial(max, [0])
        self.drawn = []
        self.seconds = []
        self.ours = random.Random(3)
        self.rows = 0
        self.began_s = started_s["training"] = time.monotonic()
        self.unlabelled = DataLoader(TensorDataset(torch.arange(22.0)), 4, shuffle=True)
        self.others = iter(self.unlabelled)
        self.sums = []

    def following(self):
        """The next batch of a loader that training does not know, over and over."""
        try:
            return next(self.others)
        except StopIteration:
            self.others = iter(self.unlabelled)
            return next(self.others)

    def change(self, kind, number, loss):
        match kind:
            case "plain":
                self.plain += number
            case "history":
                self.history.append({"loss": loss, "step": number})
            case "meters":
                self.meters.append(Meter(loss, [number]))
            case "recent":
                self.recent.append((number, loss))
            case "words":
                self.words[str(number % 3)] += 1
            case "array":
                self.weights[number % 4] += loss
            case "tensor":
                self.average.mul_(0.9).add_(loss)
            case "slots":
                self.slotted.value += number
            case "namespace":
                self.namespace.best = max(self.namespace.best, loss)
            case "class":
                Classwide.best = min(Classwide.best, loss)
            case "global":
                table["of"]["steps"].append(number)
            case "default":
                counted(loss)
            case "generator":
                self.ours.random()
            case "closure":
                self.up()
            case "iterator":
                next(self.numbers)
            case "yield":
                next(self.endless)
            case "packed":
                self.packed.append(loss)
            case "text":
                self.text.write(f"{number} ")
            case "chained":
                self.chained[str(number % 5)] = loss
            case "local":
                self.local.value += number
            case "partial":
                self.part.args[0].append(loss)
            case "cache":
                remembered(number)
            case "entropy":
                self.drawn.append(random.SystemRandom().random())
            case "clock":
                self.seconds.append(time.time())
            case "timed":
                write("summary.json", json.dumps({"steps": number, "train_time": time.monotonic() - self.began_s}), "w")
            case "loader":
                self.sums.append(self.following()[0].sum().item())
            case "log":
                write("own.log", f"step {number}: {loss!r}\n", "a")
            case "outside":
                write(outside("counts"), f"{number}\n", "a")
            case "copied":
                write("copied.txt", read(outside("counts")) + ".", "w")
            case "json":
                write("now.json", json.dumps({"step": number, "loss": loss}), "w")
            case "saved":
                torch.save({"loss": loss, "average": torch.full((3,), loss)}, "own.pt")
            case "table":
                self.insert(number, loss)
            case "result":
                self.rows += 1

    def insert(self, number, loss):
        with sqlite3.connect("own.db") as database:
            database.execute("create table if not exists steps (step, loss)")
            database.execute("delete from steps where step >= ?", (number,))
            database.execute("insert into steps values (?, ?)", (number, loss))
        database.close()

    def seen(self, kind):
        """What a user would see of it, in a form for JSON. Reading it may use it up."""
        match kind:
            case "plain":
                return self.plain
            case "history":
                return self.history
            case "meters":
                return [dataclasses.asdict(meter) for meter in self.meters]
            case "recent":
                return list(self.recent)
            case "words":
                return dict(self.words)
            case "array":
                return self.weights.tolist()
            case "tensor":
                return self.average.tolist()
            case "slots":
                return self.slotted.value
            case "namespace":
                return self.namespace.best
            case "class":
                return Classwide.best
            case "global":
                return table["of"]["steps"]
            case "default":
                return [len(counted.__defaults__[0]), getattr(counted, "calls", 0)]
            case "generator":
                return self.ours.random()
            case "closure":
                return self.count()
            case "iterator":
                return next(self.numbers)
            case "yield":
                return next(self.endless)
            case "packed":
                return self.packed.tolist()
            case "text":
                return self.text.getvalue()
            case "chained":
                return list(self.chained.items())
            case "local":
                return self.local.value
            case "partial":
                return self.part.args[0]
            case "cache":
                return list(remembered.cache_info())
            case "entropy":
                return self.drawn
            case "clock":
                return None
            case "timed":
                return json.loads(read("summary.json"))["steps"]
            case "loader":
                return self.sums
            case "log":
                return read("own.log")
            case "outside":
                return None
            case "copied":
                return read("copied.txt")
            case "json":
                return read("now.json")
            case "saved":
                return [
                    each.tolist() if isinstance(each, torch.Tensor) else each for each in torch.load("own.pt").values()
                ]
            case "table":
                return self.selected()
            case "result":
                return self.rows

    def selected(self):
        with sqlite3.connect("own.db") as database:
            return database.execute("select * from steps").fetchall()


def outside(name):
    """Where no checkpoint looks; one file for each of the two trainings."""
    return f"{os.environ['SPOTRUN_TRACE']}-{name}"


def write(path, text, mode):
    with open(path, mode) as file:
        file.write(text)


def read(path):
    return Path(path).read_text() if os.path.exists(path) else ""


def clipped(parameter):
    """Have the gradient clipped to twice its running norm, which only the hook knows."""
    norm = torch.ones(())

    def clip(gradient):
        nonlocal norm
        norm = norm * 0.9 + gradient.norm() * 0.1
        return gradient * (2 * norm / gradient.norm()).clamp(max=1.0)

    parameter.register_hook(clip)
    return lambda: norm.item()


class Keeper(pl.Callback):
    def __init__(self, names, kept):
        self.names = names
        self.kept = kept
        self.shadow = None

    def on_fit_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.layers)
        self.anchor = copy.deepcopy(module.layers) if "anchor" in self.names else None
        began = [each.detach().clone() for each in module.layers.parameters()]
        self.bound = (lambda: [each.tolist() for each in began]) if "bound" in self.names else list
        if "hook" in self.names:
            self.norms = clipped(next(module.layers.parameters()))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for mine, theirs in zip(self.shadow.parameters(), module.layers.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        for mine, theirs in zip(self.shadow.buffers(), module.layers.buffers(), strict=True):
            mine.copy_(theirs)
        for name in self.names:
            self.kept.change(name, trainer.global_step, outputs["loss"].item())
        if "parameter" in self.names:
            for each in module.parameters():
                each.ema = getattr(each, "ema", torch.zeros_like(each)) * 0.9 + each.detach() * 0.1
        if "extremes" in self.names:
            module.extremes(outputs["loss"].detach())
        if "flag" in self.names and trainer.global_step == 7:
            module.layers[0].bias.requires_grad_(False)


class Net(pl.LightningModule):
    def __init__(self, kept):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 1))
        self.kept = kept
        self.extremes = MinMaxMetric(MeanMetric())

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch[0]).square().mean(), sync_dist=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.layers(batch[0]).square().mean() + self.kept.rows, sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return self.layers(batch[0]) + self.kept.rows

    def configure_optimizers(self):
        self.first = [each.detach().clone() for each in self.parameters()]
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="")
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    names = [name for name in args.kinds.split(",") if name]
    pl.seed_everything(5, verbose=False)
    torch.set_num_threads(1)
    kept = Kinds()
    keeper, net = Keeper(names, kept), Net(kept)
    best = ModelCheckpoint("kept", "{epoch}-{val_loss:.4f}", monitor="val_loss", save_last=True)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", devices=args.devices, strategy="ddp" if args.devices > 1 else "auto",
        logger=CSVLogger("logs"), log_every_n_steps=2, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[keeper, best, EarlyStopping("val_loss", patience=5)],
    )  # fmt: skip
    data = TensorDataset(torch.randn(SAMPLES, 4))
    held_out = DataLoader(TensorDataset(torch.randn(16, 4)), 8)
    sampler = Shuffled(SAMPLES) if "sampler" in names else None
    trainer.fit(net, DataLoader(data, 8, shuffle=sampler is None, sampler=sampler), held_out)
    pl.seed_everything(6, verbose=False)
    (tested,) = trainer.test(net, held_out, ckpt_path="best", verbose=False)
    predicted = trainer.predict(net, held_out)
    record = {
        "tested": tested,
        "predicted": [each.tolist() for each in predicted],
        "best": [os.path.basename(best.best_model_path), float(best.best_model_score)],
        "shadow": [each.tolist() for each in keeper.shadow.state_dict().values()],
        "flags": [each.requires_grad for each in net.parameters()],
        "files": sorted(str(path) for folder in ("kept", "logs") for path in Path(folder).rglob("*.c*")),
        "kinds": {name: kept.seen(name) for name in names if name not in BESIDE},
        "first": [each.tolist() for each in net.first] if "first" in names else [],
        "bound": keeper.bound(),
        "order": sampler.order if sampler else [],
        "ema": [each.ema.tolist() for each in net.parameters()] if "parameter" in names else [],
        "extremes": {name: each.item() for name, each in net.extremes.compute().items()} if "extremes" in names else {},
        "norm": keeper.norms() if "hook" in names else None,
        "anchor": [each.tolist() for each in keeper.anchor.parameters()] if keeper.anchor else [],
    }
    write(outside(f"record{trainer.global_rank or ''}"), json.dumps(record, sort_keys=True), "w")


if __name__ == "__main__":
    main()
