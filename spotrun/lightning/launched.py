"""
Rejects a fit() that trains in other processes: ddp_spawn, and the strategies for notebooks and clusters.

The process that calls fit() has the agent's socket but takes no steps; the processes that train have no socket. No
callback runs before they start, so the check is in fit() itself. If this process trains too, its ranks compare their
secret as soon as the process group exists, because the first messages that Lightning exchanges, before any callback,
are pickled objects.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any

from spotrun.training import unsupported
from spotrun.training.by_name import is_a
from spotrun.training.fit import claim
from spotrun.training.ranks import Ranks
from spotrun.training.session import Follower

TRAINS_HERE_TOO = "_SubprocessScriptLauncher"
"""Launcher that starts the other ranks as separate programs, while this process trains as rank 0."""


def watch(package: str) -> None:
    """Check, in fit() of every Trainer of `package`, which process will train. Idempotent."""
    trainer_class = importlib.import_module(package).Trainer
    original = trainer_class.fit
    if hasattr(original, "asks_who_trains"):
        return

    @functools.wraps(original)
    def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_others(trainer)
        with comparing_first(trainer):
            return original(trainer, *args, **kwargs)

    fit.asks_who_trains = True  # type: ignore[attr-defined]
    trainer_class.fit = fit


@contextlib.contextmanager
def comparing_first(trainer: Any) -> Iterator[None]:
    """Compare the ranks as soon as the Trainer's strategy has made the process group."""
    strategy = trainer.strategy
    original = strategy.setup_environment

    def setup_environment() -> None:
        original()
        Ranks(trainer.global_rank, trainer.world_size).compare()

    strategy.setup_environment = setup_environment
    try:
        yield
    finally:
        vars(strategy).pop("setup_environment", None)


def nodes_of_job() -> int:
    return int(os.environ.get("SPOTRUN_NUM_NODES", "1"))


def refuse_others(trainer: Any) -> None:
    """
    Check where `trainer` trains, and on how many nodes.

    Raises:
        TrainingUnsupported: fit() trains in other processes, or would wait for nodes that the job does not have.
    """
    if trainer.num_nodes != nodes_of_job():
        unsupported.reject(
            claim() or Follower(),
            f"the Trainer's num_nodes is {trainer.num_nodes}, and the job's is {nodes_of_job()}",
            'leave it out, or write num_nodes=int(os.environ["SPOTRUN_NUM_NODES"]), and num_nodes into the job',
        )
    launcher = trainer.strategy.launcher
    if launcher is None or is_a(launcher, TRAINS_HERE_TOO):
        return
    unsupported.reject(
        claim() or Follower(),
        "the Trainer's strategy hands the training to processes that it starts, which no agent reaches",
        'use Trainer(strategy="ddp") if devices is more than 1, else Trainer(devices=1) without a strategy',
    )
