"""
What a training did, batch by batch, for `spotrun verify-resume` (see spotrun/exactness/trace.py).

A second callback beside SpotrunCallback, added only if the environment names a file for it (trace_file.py). The
environment may also list steps to hold at: the trainer stands still after each of them, once, until it is killed. So a
kill hits the intended step on a fast and on a slow machine.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotrun.exactness.trace import Begun, Ended, Held, Trained
from spotrun.exactness.trace_file import FILE_VARIABLE, HOLD_VARIABLE, TraceFile
from spotrun.training.data import data_order

SLOW_STEPS = 40
"""This many steps before a hold take `SLOW_STEP_S` or longer, so that a checkpoint becomes durable in between."""
SLOW_STEP_S = 0.05


class TraceCallback:
    """
    Writes the trace. factory.py mixes it with the Callback of the Lightning package in use, behind SpotrunCallback.
    Epochs and steps count on over the fits of a process.
    """

    fits = 0
    ended_at = 0, 0
    """Of all Trainers of this process: how many fits there were, and at which epoch and step the last one has ended."""

    def __init__(self) -> None:
        self._file = TraceFile(Path(os.environ[FILE_VARIABLE]))
        self._holds: list[int] = []
        self._began_s = 0.0
        self._data = ""
        self._lr: tuple[tuple[str, ...], ...] = ()
        self._ahead = 0, 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing is restored yet: the counters are where this fit() begins, whatever it resumes from."""
        if stage == "fit":
            TraceCallback.fits += 1
            epoch, step = TraceCallback.ended_at
            self._ahead = epoch - trainer.current_epoch, step - trainer.global_step

    def _step(self, trainer: Any) -> int:
        return int(trainer.global_step) + self._ahead[1]

    def _epoch(self, trainer: Any) -> int:
        return int(trainer.current_epoch) + self._ahead[0]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        held = set(self._file.read().held_at)
        self._holds = sorted({int(step) for step in os.environ.get(HOLD_VARIABLE, "").split(",") if step} - held)
        self._file.append(Begun(pid=os.getpid(), step=self._step(trainer)))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._began_s = time.monotonic()
        self._data = digest(batch)
        self._lr = tuple(
            tuple(float(group["lr"]).hex() for group in optimizer.param_groups) for optimizer in trainer.optimizers
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        order = data_order.order_of(trainer.train_dataloader)
        self._file.append(
            Trained(
                epoch=self._epoch(trainer),
                batch=batch_idx,
                step=self._step(trainer),
                samples=None if order is None else repr(order.indices(batch_idx)),
                data=self._data,
                lr=self._lr,
                loss=_exact_loss(outputs),
                rng=digest(list(generators().values())),
            )
        )
        self._hold(self._step(trainer))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """After SpotrunCallback's, which leaves the generators as the rest of the script finds them."""
        if stage != "fit":
            return
        TraceCallback.ended_at = self._epoch(trainer), self._step(trainer)
        states = [optimizer.state_dict() for optimizer in trainer.optimizers]
        self._file.append(
            Ended(
                fit=TraceCallback.fits,
                step=self._step(trainer),
                weights=_digests(pl_module.state_dict()),
                optimizer=_digests(states),
                rng=_digests(generators()),
            )
        )

    def _hold(self, step: int) -> None:
        if not self._holds:
            return
        if step >= self._holds[0]:
            self._file.append(Held(step=self._holds[0]))
            while True:
                threading.Event().wait(3600)
        if step >= self._holds[0] - SLOW_STEPS:
            time.sleep(max(0.0, self._began_s + SLOW_STEP_S - time.monotonic()))


def generators() -> dict[str, Any]:
    """The state of every generator that spotrun seeds."""
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states |= {f"cuda:{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def digest(value: Any) -> str:
    """The sha256 over every bit of a tree of tensors, arrays and plain values."""
    total = sha256()
    for path, leaf in _leaves(value):
        total.update(f"{path} {_leaf_digest(leaf)}\n".encode())
    return total.hexdigest()


def _digests(value: Any) -> dict[str, str]:
    """The sha256 of each leaf of a tree, by its path."""
    return {path: _leaf_digest(leaf) for path, leaf in _leaves(value)}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value) if len(value) < _LONG or not all(type(item) is int for item in value) else None
    else:
        items = None
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


_LONG = 100
"""A list of this many whole numbers or more is one leaf: the state of Python's generator has 625."""


def _leaf_digest(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        data = (leaf if leaf.layout is torch.strided else leaf.to_dense()).detach().cpu().contiguous()
        kind = f"{data.dtype} {tuple(data.shape)} ".encode()
        return sha256(kind + data.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    if isinstance(leaf, np.ndarray):
        return sha256(f"{leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes()).hexdigest()
    return sha256(_stable(leaf).encode()).hexdigest()


def _stable(leaf: Any) -> str:
    """A text for a value that is the same in each process: without addresses, and without the order of a set."""
    if isinstance(leaf, float):
        return leaf.hex()
    if isinstance(leaf, set | frozenset):
        return str(sorted(map(_stable, leaf)))
    return _ADDRESS.sub("", repr(leaf))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _exact_loss(outputs: Any) -> str | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss.detach()).hex() if isinstance(loss, Tensor) and loss.numel() == 1 else None
