"""
A second framework, whole in this file: a plain torch loop, and how it answers `Framework` and calls `Hooks`.

It trains the jobs of tests/support/trainings with their data and their trace, and without Lightning. played_trainer.py
stays a trainer of its own: tests of the agent start it dozens of times as a process, and it must not import torch.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import IterableDataset

from spotrun.training.fit import Fit
from spotrun.training.framework import OPTIMIZERS, STEP, WEIGHTS, Problem, State
from spotrun.training.hooks import Hooks, Stage
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.weights import Weights
from tests.support.trainings.comparison import sha256
from tests.support.trainings.datasets import WIDTH
from tests.support.trainings.loaders import Loaders
from tests.support.trainings.trace import Trace, generators


class Ahead:
    """The batches of a pass, read one ahead, so that the last one is known when it is trained."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self._next = next(self._batches, None)

    @property
    def is_empty(self) -> bool:
        return self._next is None

    def __iter__(self) -> Iterator[Any]:
        while self._next is not None:
            batch, self._next = self._next, next(self._batches, None)
            yield batch


class Toy:
    """The loop. `epoch`, `batch` and `step` count what was trained; `batch` is of the epoch that runs or ended last."""

    hooks: Hooks

    def __init__(self, job: dict) -> None:
        torch.manual_seed(job.get("seed", 1))
        options = job.get("trainer", {})
        self.job, self.trace = job, Trace(job)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, WIDTH)
        )
        self.optimizer = AdamW(self.net.parameters(), lr=0.01)
        self.schedule = StepLR(self.optimizer, 3, 0.9)
        self.epochs = options.get("max_epochs", 3)
        self.accumulated = options.get("accumulate_grad_batches", 1)
        self.validations = round(1 / options.get("val_check_interval", 1.0))
        loaders = Loaders(None, job)
        self.loaders: dict[Stage, Any] = {"train": loaders.train(), "validate": loaders.validation()}
        self.batches = 0 if isinstance(self.loaders["train"].dataset, IterableDataset) else len(self.loaders["train"])
        self.epoch = self.batch = self.step = 0
        self.loss: Any = None
        self.metrics: dict[str, float] = {}
        self.ends_epoch = False
        self.entering: Boundary | None = None
        self.ahead: Ahead | None = None

    def fit(self) -> None:
        framework = ToyFramework(self)
        fit = Fit.begin(framework)
        assert fit is not None, "the toy trains under an agent only"
        try:
            self.hooks.built()
            framework.restore()
            self.hooks.restore()
            for stage, loader in self.loaders.items():
                with self.hooks.loading(stage, self.epoch):
                    self.loaders[stage] = self.hooks.exact(loader, stage)
            self.hooks.start()
            while self.epoch < self.epochs:
                self.train_epoch()
            self.trace.kill("train_end")
            self.hooks.finish()
        except Exception:
            fit.fail()
            raise
        finally:
            fit.close()

    def train_epoch(self) -> None:
        entering, self.entering = self.entering, None
        if entering is None:
            self.batch = 0
        self.hooks.epoch_begins()
        if entering is None:
            self.trace.write("epoch starts", self.epoch, torch.rand(1).item(), random.random())
        ahead, self.ahead = self.ahead or Ahead(self.loaders["train"]), None
        if entering is not None and entering.validation_due:
            self.end_batch(ahead)
        for ids, x in ahead:
            self.train_batch(ids, x, last=ahead.is_empty)
            self.end_batch(ahead)
        self.hooks.epoch_closes()
        self.trace.kill(f"epoch_end:{self.epoch}")
        self.trace.write("epoch", self.epoch, self.step, self.metrics, self.schedule.get_last_lr(), random.random())
        self.epoch += 1
        self.hooks.epoch_ends()

    def train_batch(self, ids: torch.Tensor, x: torch.Tensor, *, last: bool) -> None:
        self.hooks.batch_begins()
        self.trace.kill(f"start:{self.epoch}:{self.batch}")
        loss = nn.functional.mse_loss(self.net(x), x) / self.accumulated
        if self.job.get("nan_at") == self.step:
            loss = loss * float("nan")
        self.hooks.backward_begins()
        loss.backward()
        self.hooks.backward_ends()
        self.loss = loss.detach()
        time.sleep(self.job.get("slow_s", 0.003))  # the agent frees an arena meanwhile
        self.batch += 1
        here = self.epoch, self.batch, self.step
        self.trace.write("train", *here, sorted(ids.tolist()), loss.item().hex(), generators())
        if last or self.batch % self.accumulated == 0:
            self.hooks.optimizer_steps()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.step += 1
        self.metrics["train_loss"] = loss.item()
        self.trace.kill(f"batch:{self.epoch}:{self.batch}")
        if self.job.get("kill") == f"error:{self.epoch}:{self.batch}":
            raise RuntimeError("a bad batch")

    def end_batch(self, ahead: Ahead) -> None:
        self.ends_epoch = ahead.is_empty
        boundary = ahead.is_empty or self.batch % self.accumulated == 0
        within = self.validations > 1 and self.batch % (self.batches // self.validations) == 0
        self.hooks.batch_ends(boundary=boundary, validation_due=ahead.is_empty or within)
        if ahead.is_empty or within:
            self.validate()
        if boundary and not ahead.is_empty:
            self.hooks.step_ends()

    @torch.no_grad()
    def validate(self) -> None:
        self.net.eval()
        for ids, x in self.loaders["validate"]:
            loss = nn.functional.mse_loss(self.net(x + torch.rand(1)), x).item()
            self.metrics["val_loss"] = loss
            self.trace.write("validate", self.epoch, self.step, sorted(ids.tolist()), loss.hex())
            self.trace.kill(f"validation:{self.epoch}:{self.batch}")
            self.hooks.validation_batch_ends()
        self.net.train()


class ToyFramework:
    """The loop behind the port."""

    name, version = "toy", "1.0"
    rank, ranks = 0, 1
    steps_optimizers = True
    leaves_gradients = False
    passes_before = 0
    takes_whole_batches = True
    repeats_epoch_begins = True
    way_out = "train with the toy of before"
    averages: Mapping[str, nn.Module] = MappingProxyType({})
    base: Mapping[str, str] = MappingProxyType({})
    own_attributes: frozenset[str] = frozenset()
    loggers: Sequence[Any] = ()
    own_objects: Sequence[object] = ()
    cycles = False

    def __init__(self, toy: Toy) -> None:
        self._toy = toy
        self._saved: tuple[State, Boundary, OptimizerStates] | None = None
        self.module: nn.Module = toy.net
        self.optimizers = [toy.optimizer]
        self.seed: int = toy.job.get("seed", 1)
        self.epochs: int = toy.epochs

    def problems(self) -> Sequence[Problem]:
        return [Problem("the toy is told to be unsupported", "do otherwise")] if "unsupported" in self._toy.job else []

    def roots(self) -> Mapping[str, object]:
        return {}

    def lost(self) -> Sequence[UntrackedChange]:
        return ()

    # --- where it is

    @property
    def epoch(self) -> int:
        return self._toy.epoch

    @property
    def batch(self) -> int:
        return self._toy.batch

    @property
    def batches(self) -> int:
        return self._toy.batches

    @property
    def step(self) -> int:
        return self._toy.step

    @property
    def ends_epoch(self) -> bool:
        return self._toy.ends_epoch

    @property
    def is_done(self) -> bool:
        return self._toy.epoch == self._toy.epochs

    @property
    def loss(self) -> Any:
        return self._toy.loss

    def metrics(self) -> Mapping[str, Any]:
        return self._toy.metrics

    def log(self, figures: Mapping[str, float]) -> None:
        print(json.dumps(dict(figures)))

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        return [self._toy.loaders[stage]]

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        return self._toy.epoch, self._toy.batch if self._toy.entering else 0

    def restart_pass(self) -> None:
        self._toy.ahead = Ahead(self._toy.loaders["train"])

    # --- its state

    def dump(self) -> State:
        toy = self._toy
        own = {"schedule": toy.schedule.state_dict(), "lines": toy.trace.lines}
        return {WEIGHTS: toy.net.state_dict(), OPTIMIZERS: [toy.optimizer.state_dict()], STEP: toy.step, **own}

    def dump_rest(self) -> State:
        return {}

    def dump_metrics(self) -> State:
        return dict(self._toy.metrics)

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        self._saved = state, place, optimizers

    def restore(self) -> None:
        """The loop restores itself."""
        if self._saved is None:
            return
        toy, (state, place, optimizers) = self._toy, self._saved
        toy.net.load_state_dict(state[WEIGHTS])
        toy.schedule.load_state_dict(state["schedule"])
        optimizers.load(self.optimizers)
        toy.trace.cut(state["lines"])
        toy.epoch, toy.batch, toy.step = place.epoch + place.epoch_ended, place.batch, state[STEP]

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        pass

    def misfit(self) -> str:
        return ""

    def exchange_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        assert list(optimizers) == self.optimizers

    def load_metrics(self, metrics: State) -> None:
        self._toy.metrics = metrics

    def enter(self) -> None:
        assert self._saved is not None
        _, place, _ = self._saved
        self._toy.entering = None if place.epoch_ended else place

    def load_file(self, path: str) -> None:
        raise NotImplementedError("the toy has no checkpoint files")

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        self._toy.hooks = hooks

    def close(self) -> None:
        pass


def train(job: dict) -> None:
    """Train, and write the job's result."""
    toy = Toy(job)
    toy.fit()
    result = {
        "weights": sha256(toy.net.state_dict()),
        "optimizer": sha256(*toy.optimizer.state_dict()["state"].values()),
        "step": toy.step,
        "epoch": toy.epoch,
        "lr": toy.schedule.get_last_lr(),
        "metrics": toy.metrics,
        "generators": generators(),
    }
    Path(job["result"]).write_text(json.dumps(result))
