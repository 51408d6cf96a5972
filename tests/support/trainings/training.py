"""Runs a training as its job says, from the loaders to the sha256 of the result."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from tests.support.trainings.comparison import sha256
from tests.support.trainings.loaders import Loaders
from tests.support.trainings.loggers import logged, logger
from tests.support.trainings.module import model
from tests.support.trainings.trace import Trace, first_and_last, learning_rates, metrics

QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


def train(pl, job):
    """Train by the package `pl`, pytorch_lightning or lightning.pytorch, and write the job's result."""
    trace = Trace(job)
    folder = trace.path.parent
    loaders = Loaders(pl, job)
    first, *callbacks = _callbacks(pl, job, trace)
    pl.seed_everything(job.get("seed", 1), verbose=False)
    module, more = model(pl, job, loaders, trace)
    trainer = _trainer(pl, job, folder, [first, *more, *callbacks])
    other = pl.Trainer(logger=False, enable_checkpointing=False, **QUIET)
    validation = loaders.validation()
    if job.get("validate_first"):
        other.validate(module, validation, verbose=False)
    if job.get("usual"):
        trainer.fit(module, datamodule=_data_module(pl, loaders, validation))
    else:
        loader = None if job.get("loader") == "of the module" else loaders.train()
        trainer.fit(module, loader, validation, ckpt_path=job.get("ckpt_path"))
    other.validate(module, validation, verbose=False)
    Path(job["result"]).write_text(json.dumps(_result(job, folder, module, trainer)))


def _callbacks(pl, job, trace):
    first, last = first_and_last(pl, trace)
    found = [first]
    if job.get("early_stopping"):
        options = {"patience": job["early_stopping"], "min_delta": job.get("min_delta", 0.0)}
        found.append(pl.callbacks.EarlyStopping("val_loss", **options))
    if job.get("explicit"):
        from spotrun.lightning import SpotrunCallback

        found.append(SpotrunCallback())
    if job.get("checkpoints"):
        options = {"monitor": "val_loss", "save_top_k": 2, "save_last": True, **job.get("saving", {})}
        found.append(pl.callbacks.ModelCheckpoint(trace.path.parent / "checkpoints", **options))
    if job.get("accumulation"):
        scheduling = {int(epoch): batches for epoch, batches in job["accumulation"].items()}
        found.append(pl.callbacks.GradientAccumulationScheduler(scheduling))
    if job.get("exception_checkpoint"):
        found.append(pl.callbacks.OnExceptionCheckpoint(trace.path.parent))
    found += [getattr(pl.callbacks, name)(**options) for name, options in job.get("callbacks", {}).items()]
    return [*found, last]


def _trainer(pl, job, folder, callbacks):
    checkpointing = bool(job.get("checkpoints") or job.get("exception_checkpoint"))
    options = {"max_epochs": 3, "enable_checkpointing": checkpointing} | job.get("trainer", {})
    if "strategy" in job:
        options["strategy"] = getattr(pl.strategies, job["strategy"])()
    loggers = [logger(pl, folder / "logs", name) for name in job.get("loggers", ())]
    return pl.Trainer(logger=loggers, log_every_n_steps=2, accelerator="cpu", callbacks=callbacks, **QUIET, **options)


def _data_module(pl, loaders, validation):
    class Data(pl.LightningDataModule):
        """Counts the times it was asked for its data, and keeps the count in checkpoints."""

        asked = 0

        def train_dataloader(self):
            return loaders.train()

        def val_dataloader(self):
            self.asked += 1
            return [validation, DataLoader(loaders.noisy(7), 4)]

        def state_dict(self):
            return {"asked": self.asked}

        def load_state_dict(self, state):
            self.asked = state["asked"]

    return Data()


def _result(job, folder, module, trainer):
    savers = trainer.checkpoint_callbacks if job.get("checkpoints") else []
    scores = [float(callback.best_model_score).hex() for callback in savers]
    scores += [int(torch.load(callback.last_model_path, weights_only=True)["global_step"]) for callback in savers]
    states = [values for optimizer in trainer.optimizers for values in optimizer.state_dict()["state"].values()]
    return {
        "weights": sha256(dict(module.named_parameters()), dict(module.named_buffers())),
        "optimizer": sha256(*states),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": learning_rates(trainer),
        "metrics": metrics(trainer),
        "seen": module.seen.item(),
        "logs": logged(folder / "logs"),
        "best": scores,
        "rates": [callback.lrs for callback in trainer.callbacks if hasattr(callback, "lrs")],
    }
