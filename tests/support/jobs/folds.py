"""
A cross-validation: a model, a Trainer, a folder of checkpoints and a test of the best one for each fold.

Its loops and what it keeps are on the first level of the script.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import fast_imports  # noqa: F401
import pytorch_lightning as pl
import torch
from filed import Tested
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from tiny import Noisy
from torch.utils.data import DataLoader, Subset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--folds", type=int, default=3)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die-after", default="", help="the number of a fold, once: after its training, before its test")
parser.add_argument("--mark", default="died")
args = parser.parse_args()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
data, results = Noisy(96), []
test = DataLoader(Noisy(16), batch_size=8)

for fold in range(args.folds):
    pl.seed_everything(fold, verbose=False)
    held = set(range(fold, 96, args.folds))
    train = DataLoader(Subset(data, sorted(set(range(96)) - held)), batch_size=8, shuffle=True)
    best = ModelCheckpoint(f"kept-{fold}", "{epoch}-{val_loss:.4f}", monitor="val_loss", save_top_k=1)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger("logs"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[best],
    )
    model = Tested(300, args.step_s)
    trainer.fit(model, train, DataLoader(Subset(data, sorted(held)), batch_size=8))
    if str(fold) == args.die_after and not Path(args.mark).exists():
        Path(args.mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    # Before the test: it loads the state of the callback, too, with the path that the file had where it was written.
    where = os.path.relpath(best.best_model_path)
    (found,) = trainer.test(model, test, ckpt_path="best", verbose=False)
    results.append(found | {"best": where, "there": sorted(os.listdir(f"kept-{fold}"))})
    with open("folds.log", "a") as log:
        log.write(f"fold {fold}: {results[-1]}\n")

Path("results.json").write_text(json.dumps(results, indent=1))
