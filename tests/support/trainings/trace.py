"""What a training writes down as it goes, and the places where it is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch


class Trace:
    """A file of lines, and the place where the job wants the trainer killed."""

    def __init__(self, job):
        self.job = job
        self.path = Path(job["trace"])
        self.lines = 0

    def write(self, *parts):
        self.lines += 1
        with open(self.path, "a") as file:
            file.write(json.dumps(parts) + "\n")

    def cut(self, lines):
        """Back to its first `lines`."""
        text = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        self.lines = min(len(text), lines)
        self.path.write_text("".join(text[: self.lines]))

    def kill(self, place):
        """Die if this is the place."""
        if place == self.job.get("kill"):
            time.sleep(self.job.get("kill_after_s", 0))
            os.kill(0 if self.job.get("ranks") else os.getpid(), signal.SIGKILL)  # 0: the whole process group


def generators():
    """A digest of the state of each global generator."""
    states = repr((random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()))
    return hashlib.sha256(states.encode()).hexdigest()


def learning_rates(trainer):
    return [float(group["lr"]).hex() for optimizer in trainer.optimizers for group in optimizer.param_groups]


def metrics(trainer):
    return {name: float(value).hex() for name, value in sorted(trainer.callback_metrics.items())}


def first_and_last(pl, trace):
    """Callbacks before and after those of the job. Both write, and the first saves the length of the trace."""

    class First(pl.Callback):
        def state_dict(self):
            return {"lines": trace.lines}

        def load_state_dict(self, state):
            trace.cut(state["lines"])

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            trace.kill(f"start:{trainer.current_epoch}:{batch_idx}")

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trace.kill(f"batch:{trainer.current_epoch}:{batch_idx + 1}")
            if trace.job.get("kill") == f"error:{trainer.current_epoch}:{batch_idx + 1}":
                raise RuntimeError("a bad batch")
            if trace.job.get("stop_at") == [trainer.current_epoch, batch_idx + 1]:
                trainer.should_stop = True

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                trace.write("validated", trainer.current_epoch, trainer.global_step, metrics(trainer))

        def on_train_epoch_end(self, trainer, module):
            trace.kill(f"epoch_end:{trainer.current_epoch}")

        def on_train_end(self, trainer, module):
            trace.kill("train_end")

    class Last(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            here = trainer.current_epoch, trainer.global_step
            trace.write("epoch", *here, metrics(trainer), learning_rates(trainer), trainer.should_stop)

    return First(), Last()
