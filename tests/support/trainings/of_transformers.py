"""Runs a training as its job says with the Trainer of transformers: the data and the trace are those of the others."""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, default_collate
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils
from transformers.utils import logging

from tests.support.library_trainer import Summing
from tests.support.trainings.comparison import sha256
from tests.support.trainings.datasets import BATCH, WIDTH
from tests.support.trainings.loaders import Loaders
from tests.support.trainings.trace import Trace, generators

WALL_CLOCK = ("runtime", "per_second", "model_preparation_time")
logging.set_verbosity_error()
for late in ("transformers.modelcard", "transformers.integrations", "torch._dynamo"):
    importlib.import_module(late)  # here, and not in each fork


class Cut(Trace):
    """Begins where the training's own state says that it was."""

    def write(self, *parts):
        self.cut(self.lines)
        super().write(*parts)


class Named:
    """A batch by the names of its parts. If it counts, what it gives depends on the batches that it made before."""

    def __init__(self, collate, counts=False):
        self.collate = collate
        self.counts = counts
        self.made = []

    def __call__(self, samples):
        ids, x = self.collate(samples)
        if self.counts:
            self.made.append(len(ids))
            x = x * (1 + len(self.made) / 100)
        return {"ids": ids, "x": x}


class Net(nn.Module):
    """Its place in the training is in `here`, which the callback counts."""

    def __init__(self, job, trace, here):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, WIDTH)
        )
        self.job, self.trace, self.here = job, trace, here

    def forward(self, ids, x, return_loss=True):  # so that the Trainer knows that it gives one
        if not self.training:
            x = x + torch.rand(1)
        else:
            self.trace.kill(f"start:{self.here['epoch']}:{self.here['batch']}")
        drawn = generators()
        loss = nn.functional.mse_loss(self.net(x), x)
        if self.training:
            time.sleep(self.job.get("slow_s", 0.003))  # the agent frees an arena meanwhile
            if self.job.get("nan_at") == self.here["step"]:
                loss = loss * float("nan")
        place = [self.here[name] for name in ("epoch", "batch", "step")]
        what = "train" if self.training else "validate"
        self.trace.write(what, *place, sorted(ids.tolist()), loss.item().hex(), drawn)
        return {"loss": loss}


class Places(TrainerCallback):
    """Counts, and dies where the job says so."""

    def __init__(self, trace, here):
        self.trace, self.here = trace, here

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.here |= {"epoch": self.here["epoch"] + 1, "batch": 0}
        self.trace.write("epoch starts", self.here["epoch"], torch.rand(1).item())

    def on_substep_end(self, args, state, control, **kwargs):
        self.here["batch"] += 1
        place = f"{self.here['epoch']}:{self.here['batch']}"
        self.trace.kill(f"batch:{place}")
        if self.trace.job.get("kill") == f"error:{place}":
            raise RuntimeError("a bad batch")

    def on_step_end(self, args, state, control, **kwargs):
        self.here["step"] = state.global_step
        self.on_substep_end(args, state, control)

    def on_prediction_step(self, args, state, control, **kwargs):
        self.trace.kill(f"validation:{self.here['epoch']}:{self.here['batch']}")

    def on_epoch_end(self, args, state, control, **kwargs):
        self.trace.kill(f"epoch_end:{self.here['epoch']}")
        self.trace.write("epoch", self.here["epoch"], state.global_step, torch.rand(1).item())

    def on_train_end(self, args, state, control, **kwargs):
        self.trace.kill("train_end")


class Dicts(Dataset):
    """The samples of another data set by the names of their parts, and how long each counts as."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        number, x = self.inner[index]
        return {"ids": number, "x": x, "input_ids": [0] * (number % 7 + 1)}


class Calm(Dataset):
    """Draws nothing."""

    def __init__(self, inner):
        self.x = inner.x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return index, self.x[index]


def without_tokens(samples):
    return default_collate([{"ids": each["ids"], "x": each["x"]} for each in samples])


class OfLoaders(Trainer):
    """Reads the loaders of the job."""

    def __init__(self, loaders, **options):
        self.loaders = loaders
        super().__init__(**options)

    def get_train_dataloader(self):
        return self.prepared(self.loaders.train())

    def get_eval_dataloader(self, eval_dataset=None):
        return self.prepared(self.loaders.validation())

    def prepared(self, loader):
        loader.collate_fn = Named(loader.collate_fn, self.loaders.job.get("counts", False))
        return self.accelerator.prepare(loader)


def arguments(job, loaders, folder):
    options = job.get("trainer", {})
    steps = {}
    if isinstance(loaders.train().dataset, IterableDataset):
        steps = {"max_steps": 8 * options.get("max_epochs", 3)}
    usual = {
        "logging_steps": 1,
        "report_to": [],
        "eval_strategy": "steps",
        "eval_steps": 1 if "val_check_interval" in options else 8,
        "save_strategy": "no",
    }
    return TrainingArguments(
        output_dir=str(folder / "out"),
        num_train_epochs=options.get("max_epochs", 3),
        gradient_accumulation_steps=options.get("accumulate_grad_batches", 1),
        learning_rate=0.01,
        per_device_train_batch_size=BATCH,
        seed=job.get("seed", 1),
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **(usual | steps | job.get("arguments", {})),
    )


def adapted(net, job):
    """With adapters that are trained instead, if the job has some: their number seeds what they adapt."""
    if not job.get("adapters"):
        return net
    peft = importlib.import_module("peft")
    torch.manual_seed(job["adapters"])
    nn.init.normal_(net.net[0].weight)
    return peft.get_peft_model(net, peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["net.0", "net.4"]))


def untimed(logs):
    return {name: value for name, value in logs.items() if not name.endswith(WALL_CLOCK)}


def train(job):
    """Train, and write the job's result."""
    if job.get("ranks"):
        os.environ["RANK"] = os.environ["LOCAL_RANK"]
    if job.get("log_folder_by_process"):
        integration_utils.default_logdir = lambda: f"runs/{os.getpid()}"
        # A file of events is named by the second and the host, and these processes begin within one second.
        socket.gethostname = lambda: f"host-{os.getpid()}"
    trace, here = Cut(job), {"epoch": -1, "batch": 0, "step": 0}
    torch.manual_seed(job.get("seed", 1))
    loaders = Loaders(None, job)
    options = {
        "model": adapted(Net(job, trace, here), job),
        "args": arguments(job, loaders, trace.path.parent),
        "eval_dataset": Dicts(loaders.noisy(11)),
        "callbacks": [Places(trace, here)],
    }
    if job.get("patience"):
        options["callbacks"].append(EarlyStoppingCallback(job["patience"]))
    if job.get("own_data"):
        data = loaders.noisy(loaders.samples)
        data = Dicts(Calm(data) if job["own_data"] == "calm" else data)
        kind = Summing if job.get("of_a_library") else Trainer
        trainer = kind(train_dataset=data, data_collator=without_tokens, **options)
    else:
        trainer = OfLoaders(loaders, **options)
    for _ in range(job.get("fits", 1)):
        output = trainer.train(resume_from_checkpoint=job.get("resume_from"))
    optimizer = trainer.optimizer.state_dict()
    result = {
        "weights": sha256(trainer.model.state_dict()),
        "optimizer": sha256(*optimizer["state"].values()),
        "groups": optimizer["param_groups"],
        "schedule": trainer.lr_scheduler.state_dict(),
        "step": output.global_step,
        "loss": output.training_loss.hex(),
        "metrics": untimed(output.metrics),
        "history": list(map(untimed, trainer.state.log_history)),
        "epoch": trainer.state.epoch,
        "best": [trainer.state.best_metric, trainer.state.best_global_step],
        "generators": generators(),
    }
    Path(job["result"]).write_text(json.dumps(result, default=str))
