"""tiny.py with a CSVLogger whose folder outlives the instance."""

from __future__ import annotations

import os

import fast_imports  # noqa: F401
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from tiny import Net, Noisy
from torch.utils.data import DataLoader

if __name__ == "__main__":
    pl.seed_everything(7, verbose=False)
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=CSVLogger(os.environ["LOGS"]),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Net(64, 0.05), DataLoader(Noisy(96), batch_size=8, shuffle=True), DataLoader(Noisy(16), batch_size=8))
