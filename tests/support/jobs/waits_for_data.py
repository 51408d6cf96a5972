"""
A training that waits for its data for about `--share` of its time, and writes down which share that was.

    waits_for_data.py --share 0.4 --batch-size 16 --into FILE
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import fast_imports  # noqa: F401
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

COMPUTES_S = 0.04


class Slow(Dataset[Tensor]):
    def __init__(self, batch_s: float, batch_size: int) -> None:
        self._each_s = batch_s / batch_size
        self.took_s = 0.0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        began = time.perf_counter()
        time.sleep(self._each_s)
        self.took_s += time.perf_counter() - began
        return torch.ones(8)


class Calm(pl.LightningModule):
    def __init__(self, data: Slow, into: Path, batch_size: int) -> None:
        super().__init__()
        self._layer = nn.Linear(8, 1)
        self._data, self._into, self._batch_size = data, into, batch_size
        self._began: tuple[float, float] | None = None

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if self._batch_size > 1000:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 TiB")
        time.sleep(COMPUTES_S)
        return self._layer(batch).pow(2).mean()  # type: ignore[no-any-return]

    def on_train_batch_end(self, *_: object) -> None:
        now, took = time.perf_counter(), self._data.took_s
        if self._began is None:
            self._began = now, took
        else:
            share = (took - self._began[1]) / (now - self._began[0])
            told = self._into.with_name(f"{self._into.name}-{self._batch_size}")
            new = told.with_suffix(".new")  # a bench may end this process at any moment
            new.write_text(str(share))
            new.replace(told)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


parser = argparse.ArgumentParser()
parser.add_argument("--share", type=float, required=True)
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--into", type=Path, required=True)
args = parser.parse_args()
data = Slow(COMPUTES_S * args.share / (1 - args.share), args.batch_size)
trainer = pl.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
)
trainer.fit(Calm(data, args.into, args.batch_size), DataLoader(data, args.batch_size))
