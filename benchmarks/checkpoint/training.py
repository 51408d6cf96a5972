"""
The trainer process of every variant: the same Lightning training, timed in the same way.

    python -m benchmarks.checkpoint.training --model resnet50 --variant pl_s3 --to s3://… --folder DIR [--restore]

On a GPU, where there is one, in mixed precision with its GradScaler; else on one thread of the processor.

The stall of a checkpoint is what the training loop takes besides computing. Forward, backward and the optimizer's
arithmetic are timed where they happen; the rest of an iteration, from the start of one batch to the start of the next,
is the loop, its hooks and whatever checkpoints do there. So hooks are counted wherever a variant puts them, and
computing that is slower because of a simultaneous upload shows in the slowdown only. The processor time of the
training thread is taken in the same way: that of a stall means something on a busy machine too. See figures.py.

It writes `begun.json` at its first batch, `measured.json`, then whatever its variant does once training is paused; with
`--restore`, `restored.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.checkpoint.measurement import Iteration
from benchmarks.checkpoint.models import MODELS, Model
from benchmarks.checkpoint.plan import BEGUN, DIGESTS, DIGESTS_WANTED, MEASURED, PLANS, RESTORED, Plan

EPOCH_STEPS, EPOCHS = 3000, 100
"""Steps of an epoch, and epochs: no measurement comes to the end of either."""
SAMPLES = 64
ON_GPU = 256
"""How many times larger batches are on a GPU, so that a step takes it tens of milliseconds."""
CHANGING_OF = 20
"""One of this many attributes changes in each step."""
KINDS: tuple[Callable[[int], object], ...] = (
    int,
    float,
    str,
    lambda number: [number, float(number)],
    lambda number: {"last": number, "best": 1.0 / (1 + number)},
    lambda number: deque([float(number)] * 8, maxlen=8),
    lambda number: np.full(8, number),
    lambda number: torch.full((8,), float(number)),
)
"""Types of values that scripts keep on their modules."""


class Stopwatch:
    """
    The time that passed within `running`, until the GPU has done what it was given there; it may copy meanwhile. And
    the processor time of this thread.
    """

    def __init__(self) -> None:
        self.seconds, self.cpu_seconds = 0.0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began, began_cpu = time.perf_counter(), time.thread_time()
        yield
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += time.thread_time() - began_cpu


COMPUTING = Stopwatch()
"""Not in the module, because a checkpoint may hold the content of a module."""
ITERATIONS: list[Iteration] = []
"""Not in a callback, for the same reason."""


def timed(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """
    Return the same optimizer with its own arithmetic timed; Lightning runs forward, backward and hooks in the closure.
    """

    class Timed(kind):  # type: ignore[misc,valid-type]
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with COMPUTING.running():
                super().step()
            return loss

    return Timed


class Training(pl.LightningModule):
    def __init__(self, model: Model, attributes: int = 0) -> None:
        super().__init__()
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # which makes 8 GB in no time
            self.network = model.build()
        self._model = model
        self._changing = [f"kept_{number}" for number in range(0, attributes, CHANGING_OF)]
        for number in range(attributes):
            setattr(self, f"kept_{number}", KINDS[number % len(KINDS)](number))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, label = batch
        for name in self._changing:
            setattr(self, name, batch_idx)
        with COMPUTING.running():
            return F.cross_entropy(self.network(x).flatten(0, -2), label.flatten())

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        with COMPUTING.running():
            loss.backward(*args, **kwargs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._model.optimizer(self.parameters(), timed(self._model.optimizer_class))


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """A few samples, over and over."""

    def __init__(self, model: Model, batch_size: int) -> None:
        self._samples = [model.sample() for _ in range(SAMPLES)]
        self._length = EPOCH_STEPS * batch_size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._samples[index % SAMPLES]


class Clock(pl.Callback):
    """
    Times `steps` iterations and writes them down. Once a file requests it, it notes the digest of the state after each
    step instead, in this process and in those that resume it: the step at which the machine will be taken is unknown.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._began: tuple[float, float, float] | None = None
        self._digests: dict[int, str] = {}

    @property
    def done(self) -> bool:
        return len(ITERATIONS) == self._steps

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        now_s = time.perf_counter()
        now = (now_s, now_s - COMPUTING.seconds, time.thread_time() - COMPUTING.cpu_seconds)
        if self._began is not None and not self.done and not self._digests_wanted():
            ITERATIONS.append(Iteration(*(end - began for began, end in zip(self._began, now, strict=True))))
            if self.done:
                measured = {"iterations": ITERATIONS, "state_bytes": state_bytes(trainer)}
                write(self._folder / MEASURED, measured)
        self._began = now

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._digests_wanted():
            self._digests[trainer.global_step] = digest(trainer)
            write(self._folder / DIGESTS, self._digests)

    def _digests_wanted(self) -> bool:
        return (self._folder / DIGESTS_WANTED).exists()


class Begun(pl.Callback):
    """Writes down the seconds from the start of the process to the first batch, and their parts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began_s = psutil.Process().create_time()
        self._imported_s, self._built_s = time.time(), 0.0
        self._told = False

    def built(self) -> None:
        """Note that the network and its data are there."""
        self._built_s = time.time()

    def on_train_batch_start(self, *_: Any) -> None:
        if self._told:
            return
        self._told = True
        first_s = time.time() - self._began_s
        parts = {"imports_s": self._imported_s - self._began_s, "build_s": self._built_s - self._imported_s}
        write(self._folder / BEGUN, parts | {"first_batch_s": first_s})


class Restored(pl.Callback):
    """
    Times a restore, from the set-up of fit() to its first batch and until nothing of it is missing, with all imports
    done and the network built; then ends the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began_s = 0.0

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self._began_s = time.monotonic()

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        seconds = time.monotonic() - self._began_s
        tensors(trainer)  # wait for those that are still coming
        whole_s = time.monotonic() - self._began_s
        found = {"seconds": seconds, "whole_s": whole_s, "step": trainer.global_step, "digest": digest(trainer)}
        write(self._folder / RESTORED, found)
        os._exit(0)


def tensors(trainer: pl.Trainer) -> list[Tensor]:
    """Return the living tensors of the network and the optimizer, in an order that a resume keeps."""
    (optimizer,) = trainer.optimizers
    moments = optimizer.state_dict()["state"]
    kept = [value for _, entry in sorted(moments.items()) for value in entry.values() if isinstance(value, Tensor)]
    return [*trainer.lightning_module.state_dict().values(), *kept]


def state_bytes(trainer: pl.Trainer) -> int:
    return sum(tensor.nbytes for tensor in tensors(trainer))


def digest(trainer: pl.Trainer) -> str:
    sha256 = hashlib.sha256()
    for tensor in tensors(trainer):
        sha256.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    sha256.update(repr(trainer.precision_plugin.state_dict()).encode())  # the scale of the loss, in mixed precision
    return sha256.hexdigest()


def write(path: Path, content: Any) -> None:
    """Write a file whole or not at all: another process waits for it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--to", default="")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--restore", action="store_true")
    parser.add_argument("--attributes", type=int, default=0)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--file-bytes", type=int, default=0)
    args = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    pl.seed_everything(1, verbose=False)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    train(MODELS[args.model], PLANS[args.model], args)


def write_files(files: int, size_bytes: int) -> None:
    """Write files into the work folder: the same ones in each process, of bytes that no compression makes smaller."""
    for number in range(files):
        (Path(f"kept-{number}.bin")).write_bytes(random.Random(number).randbytes(size_bytes // files))


def train(model: Model, plan: Plan, args: argparse.Namespace) -> None:
    from benchmarks.checkpoint.peers import peer_of

    peer = peer_of(args.variant, args.to, args.folder)
    if not args.restore:
        write_files(args.files, args.file_bytes)
    clock, begun = Clock(args.folder, plan.steps), Begun(args.folder)
    own = [Restored(args.folder)] if args.restore else [begun, clock, *peer.callbacks(clock, plan.notices)]
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        precision="16-mixed" if torch.cuda.is_available() else "32-true",
        logger=False,
        enable_checkpointing=any(isinstance(one, pl.callbacks.ModelCheckpoint) for one in own),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=own + (peer.restoring_callbacks() if args.restore else []),
        plugins=peer.plugins(),
    )
    module = Training(model, args.attributes)
    batch_size = model.batch_size * (ON_GPU if torch.cuda.is_available() else 1)
    loader = DataLoader(Batches(model, batch_size), batch_size=batch_size)
    begun.built()
    trainer.fit(module, loader, ckpt_path=peer.resumed_path() if args.restore else None, weights_only=False)


if __name__ == "__main__":
    main()
