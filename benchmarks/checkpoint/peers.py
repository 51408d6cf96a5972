"""The parts that a variant adds to the training: its callbacks and plugins, and a save once training stands still."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmarks.checkpoint.plan import SAVED
from benchmarks.checkpoint.training import Clock, digest, write


class Peer:
    """
    A way to make checkpoints, with parts that some variants do not need.

    `saves` has (step, seconds until durable) of each checkpoint that was taken while training went on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saves: list[tuple[int, float]] = []

    def callbacks(self, clock: Clock, notices: int) -> list[pl.Callback]:
        return [Ending(clock, self, notices)]

    def plugins(self) -> list[Any]:
        return []

    def restoring_callbacks(self) -> list[pl.Callback]:
        """Return the callbacks that restore, if fit() does not by itself."""
        return []

    def resumed_path(self) -> str | None:
        """Return the path from which fit() resumes."""
        return None

    def finish(self) -> None:
        """Wait until what is being saved is durable."""

    def save(self, trainer: pl.Trainer, number: int) -> None:
        """Save as on any other step; `finish` waits for it."""


class Nothing(Peer):
    """No checkpoints at all."""

    def callbacks(self, clock: Clock, notices: int) -> list[pl.Callback]:
        return [Ending(clock, self, notices=0)]


class Spotrun(Peer):
    """Its callback comes by itself, and its agent stops it."""

    def callbacks(self, clock: Clock, notices: int) -> list[pl.Callback]:
        return []


class Ending(pl.Callback):
    """Acts after the measured steps: saves with training paused, `notices` times; then ends the process."""

    def __init__(self, clock: Clock, peer: Peer, notices: int) -> None:
        self._clock, self._peer, self._notices = clock, peer, notices

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if not self._clock.done:
            return
        self._peer.finish()
        saves = list(self._peer.saves)
        paused = [self._paused(trainer, number) for number in range(self._notices)]
        found = {"saves": saves, "paused": paused, "step": trainer.global_step, "digest": digest(trainer)}
        write(self._peer.folder / SAVED, found)
        os._exit(0)

    def _paused(self, trainer: pl.Trainer, number: int) -> tuple[float, float]:
        """Return the seconds that the training thread had to wait, and the seconds until the state was durable."""
        began = time.perf_counter()
        self._peer.save(trainer, number)
        returned = time.perf_counter()
        self._peer.finish()
        return returned - began, time.perf_counter() - began


def peer_of(variant: str, uri: str, folder: Path) -> Peer:
    """Imports only what that variant needs, as it counts as its memory."""
    if variant == "none":
        return Nothing(folder)
    if variant.startswith("ours"):
        return Spotrun(folder)
    if variant.startswith("pl_"):
        from benchmarks.checkpoint import lightning

        where = str(folder / "checkpoints") if variant == "pl_local" else uri
        return lightning.Saving(folder, where, in_background=variant == "pl_async_s3")
    from benchmarks.checkpoint import dcp

    storage = dcp.S3Torch(uri) if variant == "dcp_s3torchconnector" else dcp.Fsspec(uri)
    return dcp.Saving(folder, storage, dcp.Kind.PROCESS if variant == "dcp_process_s3" else dcp.Kind.THREAD)
