"""
Trains tiny.py without spotrun: a ModelCheckpoint writes into a bucket, and the script resumes from its newest file.

It does not use `ckpt_path="last"`: in a bucket, Lightning 2.6.6 finds no checkpoint, warns and starts from zero.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from fsspec.core import url_to_fs
from pytorch_lightning.callbacks import ModelCheckpoint
from tiny import Net, Noisy
from torch.utils.data import DataLoader


class Told(ModelCheckpoint):
    """Creates the file `saving` while it saves, and writes the saved and the resumed steps into the file `saves`."""

    folder = Path(os.environ["TOLD"])

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        saving = self.folder / "saving"
        saving.touch()
        super()._save_checkpoint(trainer, filepath)
        saving.unlink()
        self._tell(f"saved {trainer.global_step}")

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_train_start(trainer, module)
        self._tell(f"resumed {trainer.global_step}")

    def _tell(self, line: str) -> None:
        with (self.folder / "saves").open("a") as file:
            file.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--to", required=True)
    args = parser.parse_args()
    pl.seed_everything(7, verbose=False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Told(args.to, filename="{step}", every_n_train_steps=args.every)],
    )
    train = DataLoader(Noisy(96), batch_size=8, shuffle=True)
    trainer.fit(Net(800, args.step_s), train, DataLoader(Noisy(16), batch_size=8), ckpt_path=newest(args.to))
    (Told.folder / "weights").write_text(digest(trainer.lightning_module.state_dict()))


def newest(uri: str) -> str | None:
    files, folder = url_to_fs(uri)
    found = files.glob(f"{folder}/step=*.ckpt")
    return max(map(files.unstrip_protocol, found), key=lambda name: int(name.split("step=")[1][:-5]), default=None)


def digest(state: dict[str, Any]) -> str:
    sha256 = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        sha256.update(name.encode() + tensor.numpy().tobytes())
    return sha256.hexdigest()


if __name__ == "__main__":
    main()
