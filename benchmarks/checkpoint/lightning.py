"""Lightning's own checkpoints: a ModelCheckpoint, as in the manual, to a folder or a bucket."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO

from benchmarks.checkpoint.peers import Ending, Peer
from benchmarks.checkpoint.plan import EVERY_STEPS
from benchmarks.checkpoint.processes import WITHIN_S
from benchmarks.checkpoint.training import Clock


class Saving(Peer):
    """Saves to `where`, a folder or an address; `in_background` by AsyncCheckpointIO."""

    def __init__(self, folder: Path, where: str, *, in_background: bool = False) -> None:
        super().__init__(folder)
        self._where = where
        self._under_way: dict[str, float] = {}
        self._changed = threading.Condition()
        durable = Telling(TorchCheckpointIO(), after=self._ends)
        self._io = Telling(AsyncCheckpointIO(durable) if in_background else durable, before=self._begins)

    def callbacks(self, clock: Clock, notices: int) -> list[pl.Callback]:
        keeping = ModelCheckpoint(self._where, filename="{step}", every_n_train_steps=EVERY_STEPS)
        return [Ending(clock, self, notices), keeping]

    def plugins(self) -> list[Any]:
        return [self._io]

    def save(self, trainer: pl.Trainer, number: int) -> None:
        trainer.save_checkpoint(self._path(number))

    def finish(self) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._under_way, WITHIN_S):
                raise TimeoutError(f"not saved after {WITHIN_S:.0f} s: {', '.join(self._under_way)}")

    def resumed_path(self) -> str:
        return self._path(0)

    def _path(self, number: int) -> str:
        return f"{self._where}/paused-{number}.ckpt"

    def _begins(self, path: str, checkpoint: dict[str, Any]) -> None:
        with self._changed:
            self._under_way[path] = time.perf_counter()

    def _ends(self, path: str, checkpoint: dict[str, Any]) -> None:
        with self._changed:
            self.saves.append((checkpoint["global_step"], time.perf_counter() - self._under_way.pop(path)))
            self._changed.notify_all()


class Telling(CheckpointIO):
    """Wraps another CheckpointIO, and reports before and after each save."""

    def __init__(self, inner: CheckpointIO, before: Any = None, after: Any = None) -> None:
        self._inner, self._before, self._after = inner, before, after

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if self._before:
            self._before(str(path), checkpoint)
        self._inner.save_checkpoint(checkpoint, path, storage_options)
        if self._after:
            self._after(str(path), checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self._inner.load_checkpoint(path, map_location, weights_only)

    def remove_checkpoint(self, path: Any) -> None:
        self._inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self._inner.teardown()
