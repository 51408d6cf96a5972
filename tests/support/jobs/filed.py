"""
A script that relies on the files that it writes: the best of its own checkpoints is tested at the end.

It keeps two files by a metric and the last one, and an average of the weights, logs to a CSV file, appends to a log
that it opened before training, replaces a file of its own at each epoch, removes what it does not need any more, and
changes a file that came with it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any, TextIO

import fast_imports  # noqa: F401
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from tiny import Net, Noisy
from torch.utils.data import DataLoader

RANK = os.environ.get("LOCAL_RANK", "")


class Hold(pl.Callback):
    """Waits to be killed after each step for which there is a file in `folder`, and says there that it has come."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        wanted = Path(self.folder, str(trainer.global_step))
        if self.folder and wanted.exists():
            wanted.with_suffix(".reached").touch()
            while True:
                signal.pause()


class Averaged(pl.Callback):
    """An average of the weights, as many scripts write it."""

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.average = copy.deepcopy(module.layers).eval()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        for mine, theirs in zip(self.average.parameters(), module.layers.parameters(), strict=True):
            mine.data.mul_(0.95).add_(theirs.data, alpha=0.05)


class Own(pl.Callback):
    """The script's own files."""

    def __init__(self, log: TextIO) -> None:
        self.lines = log
        self.steps = sqlite3.connect(f"steps{RANK}.db")
        self.steps.execute("create table if not exists steps (step, loss)")
        self.steps.execute("delete from steps")
        self.steps.commit()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.lines.write("training begins\n")

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: dict, *_: object) -> None:
        self.lines.write(f"step {trainer.global_step}: {outputs['loss'].item()!r}\n")
        self.steps.execute("insert into steps values (?, ?)", (trainer.global_step, outputs["loss"].item()))
        self.steps.commit()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.global_rank:
            return
        torch.save(module.state_dict(), "own.tmp")
        os.replace("own.tmp", "own.pt")
        Path(f"epoch-{trainer.current_epoch}.json").write_text(json.dumps({"step": trainer.global_step}))
        Path(f"epoch-{trainer.current_epoch - 2}.json").unlink(missing_ok=True)
        with open("README.txt", "a") as file:
            file.write(f"epoch {trainer.current_epoch}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--hold", default="", help="a folder with a file for each step to be killed at")
    parser.add_argument("--patience", type=int, default=1000, help="epochs without a better one")
    parser.add_argument("--die-once", default="", help="after the training, if there is no such file yet")
    args = parser.parse_args()
    pl.seed_everything(7, verbose=False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    best = ModelCheckpoint("kept", "{epoch}-{val_loss:.4f}", monitor="val_loss", save_top_k=2, save_last=True)
    averaged = Averaged()
    log = open(f"training{RANK}.log", "w")  # noqa: SIM115  as long as the process lives
    log.write("a new log\n")
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        logger=CSVLogger("logs"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Own(log), averaged, Hold(args.hold), best, EarlyStopping("val_loss", patience=args.patience)],
    )
    held_out = DataLoader(Noisy(16), batch_size=8)
    trainer.fit(Tested(300, args.step_s), DataLoader(Noisy(96), batch_size=8, shuffle=True), held_out)
    if args.die_once and not Path(args.die_once).exists():
        Path(args.die_once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    results: dict[str, Any] = {
        "best": os.path.relpath(best.best_model_path),
        "kept": sorted(os.path.relpath(path) for path in best.best_k_models),
        "last": os.path.relpath(best.last_model_path),
        "there": sorted(os.listdir("kept")),
        "steps": trainer.global_step,
    }
    torch.save(averaged.average.state_dict(), f"average{RANK}.pt")
    # On the local cloud each instance has another work folder. That file may name the one of an earlier instance, and
    # it is loaded with the state of the callbacks: so they are asked before.
    pl.seed_everything(7, verbose=False)
    (results["test"],) = trainer.test(ckpt_path="best", dataloaders=held_out, verbose=False)
    Path(f"results{RANK}.json").write_text(json.dumps(results, indent=1, sort_keys=True))


class Tested(Net):
    def validation_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> None:
        _, x_BF, y_B1 = batch
        loss = torch.nn.functional.mse_loss(self.head(self.layers(x_BF)), y_B1)
        self.log("val_loss", loss, sync_dist=True)

    def test_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> None:
        _, x_BF, y_B1 = batch
        self.log("test_loss", torch.nn.functional.mse_loss(self.head(self.layers(x_BF)), y_B1), sync_dist=True)


if __name__ == "__main__":
    main()
