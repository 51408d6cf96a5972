"""
Scripts that call fit() several times, each a function of its job. What they find after each fit() is their result.

It is run as `__main__`, with its job as the one argument. Most of what a script keeps is global, as in most scripts.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.support.trainings.comparison import sha256
from tests.support.trainings.loggers import logged, logger
from tests.support.trainings.trace import Trace, generators

WIDTH = 6
SAMPLES = 30
BATCH = 5
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}

results = []
fits = 0
checks = 0


class Recorder(pl.Callback):
    """Its lines are an attribute, so they are carried; a kill is named by the fit() that it hits."""

    def __init__(self):
        self.lines = []
        self.number = fits

    def kill(self, place):
        trace.kill(f"{self.number}:{place}")

    def on_sanity_check_start(self, trainer, module):
        global checks
        checks += 1

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.kill(f"start:{trainer.current_epoch}:{batch_idx}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        rates = [group["lr"].hex() for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self.lines.append((trainer.current_epoch, trainer.global_step, outputs["loss"].item().hex(), rates))
        self.kill(f"batch:{trainer.current_epoch}:{batch_idx + 1}")

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.lines.append(("validated", trainer.current_epoch, metrics(trainer)))

    def on_train_epoch_end(self, trainer, module):
        self.kill(f"epoch_end:{trainer.current_epoch}")

    def on_train_end(self, trainer, module):
        self.kill("train_end")

    def on_fit_end(self, trainer, module):
        self.kill("fit_end")


class Net(pl.LightningModule):
    def __init__(self, encoder=None):
        super().__init__()
        self.encoder = encoder or nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, WIDTH if encoder is None else 1)
        self.target = WIDTH if encoder is None else 1

    def loss(self, batch):
        (x,) = batch
        return (self.head(self.encoder(x + 0.1 * torch.rand(1))) - x[:, : self.target]).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)  # early stopping asks each process

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW([each for each in self.parameters() if each.requires_grad], lr=0.02)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def metrics(trainer):
    return {name: float(value).hex() for name, value in sorted(trainer.callback_metrics.items())}


def make_trainer(**options):
    callbacks = [Recorder(), pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.001)]
    loggers = [logger(pl, trace.path.parent / "logs", name) for name in job.get("loggers", ())]
    options = (
        {"max_epochs": 2, "enable_checkpointing": False, "callbacks": callbacks, "logger": loggers} | QUIET | options
    )
    return pl.Trainer(log_every_n_steps=1, **options, **job.get("trainer", {}))


def loader(first, last, **options):
    return DataLoader(Subset(data, range(first, last)), BATCH, num_workers=job.get("workers", 0), **options)


def fit(trainer, net, train, validation):
    """And all that a script may look at after it."""
    global fits
    fits += 1
    recorder = trainer.callbacks[0]
    recorder.number = fits
    trainer.fit(net, train, validation)
    found = {
        "weights": sha256(net.state_dict()),
        "optimizer": sha256(*[state for one in trainer.optimizers for state in one.state_dict()["state"].values()]),
        "metrics": metrics(trainer),
        "place": (trainer.current_epoch, trainer.global_step, trainer.should_stop, checks),
        "patience": trainer.callbacks[1].state_dict() | {"best_score": float(trainer.callbacks[1].best_score).hex()},
        "lines": list(recorder.lines),
        "generators": generators(),
        "drawn": (torch.rand(1).item(), random.random()),
    }
    trace.kill(f"after:{fits}")
    (found["test"],) = trainer.test(net, loader(25, 30), verbose=False)
    trace.kill(f"tested:{fits}")
    results.append(found)
    return found


def one_trainer():
    """Pretrain, then unfreeze and go on with the same Trainer."""
    net, trainer = Net(), make_trainer()
    net.head.requires_grad_(False)
    fit(trainer, net, loader(0, 20, shuffle=True), loader(20, 25))
    net.head.requires_grad_(True)
    trainer.fit_loop.max_epochs += 2
    fit(trainer, net, loader(0, 25, shuffle=True), loader(20, 25))


def two_trainers():
    net = Net()
    fit(make_trainer(), net, loader(0, 20, shuffle=True), loader(20, 25))
    net.encoder.requires_grad_(False)
    fit(make_trainer(max_steps=7, max_epochs=-1), Net(net.encoder), loader(5, 25, shuffle=True), loader(20, 25))


def folds():
    for fold in range(3):
        pl.seed_everything(fold, verbose=False)
        held = range(fold * 8, fold * 8 + 8)
        rest = [index for index in range(28) if index not in held]
        train = DataLoader(Subset(data, rest), BATCH, shuffle=True)
        fit(make_trainer(), Net(), train, DataLoader(Subset(data, held), BATCH))


def until_good():
    """How many fits there are depends on what they find."""
    net, found = Net(), {"test": {"test_loss": 9.0}}
    while found["test"]["test_loss"] > 0.9 * float(job.get("good", 0.6)) and fits < 5:
        found = fit(make_trainer(max_epochs=1), net, loader(0, 20, shuffle=True), loader(20, 25))


def nothing_to_train():
    """A fit() without a step, between two."""
    net = Net()
    for epochs in (1, 0, 2):
        fits_of = make_trainer(max_epochs=epochs)
        fit(fits_of, net, loader(0, 20, shuffle=True), loader(20, 25))


def within_another():
    class Nested(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            make_trainer().fit(Net(), loader(0, 20), loader(20, 25))

    make_trainer(callbacks=[Nested()]).fit(Net(), loader(0, 20), loader(20, 25))


def after_an_error():
    class Breaks(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            raise RuntimeError("out of memory")

    try:
        make_trainer(callbacks=[Breaks()]).fit(Net(), loader(0, 20), loader(20, 25))
    except RuntimeError:
        fit(make_trainer(), Net(), loader(0, 20), loader(20, 25))


def tuned():
    net = Net()
    fit(make_trainer(), net, loader(0, 20, shuffle=True), loader(20, 25))
    pl.tuner.Tuner(make_trainer()).lr_find(net, loader(0, 20))


def fewer():
    """The next process does not do what the first has begun."""
    net = Net()
    fit(make_trainer(), net, loader(0, 20, shuffle=True), loader(20, 25))
    mark = Path(job["result"]).with_name("begun")
    if not mark.exists():
        mark.touch()
        fit(make_trainer(), net, loader(0, 20, shuffle=True), loader(20, 25))


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    trace = Trace(job)
    pl.seed_everything(3, verbose=False)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1)))
    globals()[job["fits"]]()
    result = {"fits": results, "logs": logged(trace.path.parent / "logs")}
    Path(job["result"]).write_text(json.dumps(result))
