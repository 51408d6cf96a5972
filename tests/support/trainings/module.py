"""The module that is trained. It does what scripts do in theirs, each as an option of the job."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict, deque

import numpy as np
import torch
import torchmetrics
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.trainings.datasets import WIDTH, joined
from tests.support.trainings.schedules import SCHEDULES
from tests.support.trainings.trace import generators, learning_rates
from tests.support.trainings.variants import VARIANTS


def model(pl, job, loaders, trace):
    """
    A module of the package `pl`, and the callbacks that its variant brings. Its attributes are carried on, so what is
    not its state is in the closure.
    """

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = small_net()
            self.automatic_optimization = not job.get("manual")
            if job.get("torchmetric"):
                self.running = torchmetrics.MeanMetric()
            if job.get("usual"):
                self.spread = torchmetrics.MeanMetric()
            self.outputs, self.counts, self.last, self.given = [], defaultdict(int), deque(maxlen=3), set()
            self.total = torch.zeros(())
            self.noise = np.random.RandomState(9)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        # -- a batch of training -------------------------------------------------------------------------------------

        def training_step(self, batch, batch_idx):
            ids, x = joined(batch) if isinstance(batch, dict) else batch
            self.seen += len(ids)
            if job.get("patient") and self.global_step:
                await_room(self.trainer)
            self.write_to_weights(batch_idx)
            if job.get("own_generators"):
                x = x + self.noise.rand()
            if job.get("usual"):
                self.keep_for_the_epoch(ids, x, batch_idx)
            y = checkpoint(self.net, x, use_reentrant=False) if job.get("usual") else self.net(x)
            loss = nn.functional.mse_loss(y, x)
            self.log_losses(loss, batch_idx)
            if job.get("manual") == "two":
                self.optimize_two(x, batch_idx)
                return self.tell(batch_idx, ids)
            if job.get("manual") is True:
                self.optimize_every_other(loss, batch_idx)
            if job.get("nan_at") == self.global_step:
                loss = loss * float("nan")
            self.tell(batch_idx, ids, loss.item().hex())
            time.sleep(job.get("slow_s", 0.003))  # the agent frees an arena meanwhile
            return loss

        def tell(self, batch_idx, ids, *more):
            if "computed" in job:
                with open(job["computed"], "a") as computed:
                    computed.write(f"{os.getpid()}\n")
            here = self.current_epoch, batch_idx, self.global_step
            digests = [generators()] if job.get("digests") else []
            trace.write("train", *here, sorted(ids.tolist()), *more, learning_rates(self.trainer), *digests)

        def write_to_weights(self, batch_idx):
            if batch_idx not in job.get("writes_in", ()):
                return
            if job["writes"] == "hidden":
                self.net[0].weight.data.mul_(0.999)
                return
            with torch.no_grad():
                self.net[0].weight.mul_(0.999)

        def keep_for_the_epoch(self, ids, x, batch_idx):
            self.outputs.append({"ids": ids, "mean": x.mean()})
            self.counts["train"] += 1
            self.last.append(batch_idx)
            self.given.update(ids.tolist())
            self.total += 1

        def log_losses(self, loss, batch_idx):
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            if batch_idx == 0:
                self.log("first_loss", loss, on_step=False, on_epoch=True)
            self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
            if "TensorBoardLogger" in job.get("loggers", ()):
                self.loggers[-1].experiment.add_scalars("curves", {"a": loss, "b": -loss}, self.global_step)
            if job.get("torchmetric"):
                self.running.update(loss)
                self.log("running", self.running, on_step=False, on_epoch=True)

        def optimize_every_other(self, loss, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(loss / 2)
            if batch_idx % 2:
                self.clip_gradients(optimizer, 1.0, "norm")
                optimizer.step()
                optimizer.zero_grad()

        def optimize_two(self, x, batch_idx):
            for optimizer, schedule in zip(self.optimizers(), self.lr_schedulers(), strict=True):
                with optimizer.toggle_model():
                    optimizer.zero_grad()
                    self.manual_backward(nn.functional.mse_loss(self.net(x), x))
                    self.clip_gradients(optimizer, 0.5, "value")
                    optimizer.step()
                if batch_idx == 7:
                    schedule.step()

        # -- the rest ------------------------------------------------------------------------------------------------

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            ids, x = batch
            assert not self.net.training
            loss = nn.functional.mse_loss(self.net(x + torch.rand(1)), x)
            self.log("val_loss", loss)
            if job.get("usual"):
                self.counts["validate"] += 1
                self.spread(loss)
                self.log("spread", self.spread, on_step=True, on_epoch=True)
            if self.trainer.sanity_checking:
                return
            here = self.current_epoch, batch_idx, self.global_step
            trace.write("validate", *here, sorted(ids.tolist()), loss.item().hex())
            trace.kill(f"validation:{self.current_epoch}:{self.trainer.fit_loop.batch_idx + 1}")
            time.sleep(job.get("slow_validation_s", 0))

        def on_train_epoch_start(self):
            trace.write("epoch starts", self.current_epoch, torch.rand(1).item(), random.random())

        def on_train_epoch_end(self):
            if not job.get("usual"):
                return
            means = torch.stack([output["mean"] for output in self.outputs])
            self.log("mean", means.mean())
            kept = self.counts, list(self.last), len(self.given), self.total.item()
            trace.write("outputs", len(means), means.sum().item().hex(), *kept)
            self.given.clear()
            self.outputs.clear()

        def train_dataloader(self):
            return loaders.part(self.current_epoch)

        def configure_optimizers(self):
            return SCHEDULES[job.get("scheduler", "onecycle")](self, job)

    if job.get("load_hook"):
        Model.on_load_checkpoint = look_at_checkpoint
    variant = VARIANTS[job["variant"]] if "variant" in job else lambda pl, kind: (kind, [])
    kind, callbacks = variant(pl, Model)
    return kind(), callbacks


def look_at_checkpoint(module, checkpoint):
    """Some scripts change what is loaded."""
    (optimizer,) = checkpoint["optimizer_states"]
    values = [value for state in optimizer["state"].values() for value in state.values()]
    assert values
    assert all(torch.isfinite(value).all() for value in values)
    optimizer["param_groups"][0]["weight_decay"] = 0.5


def small_net():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, WIDTH))


def await_room(trainer):
    """Until the agent's arenas are there and one is free."""
    (callback,) = [each for each in trainer.callbacks if type(each).__name__ == "SpotrunCallback"]
    while not callback._fit._agent.any_room():
        time.sleep(0.001)
