"""
Rejects a fit() that would train in processes which the agent cannot reach: ddp_spawn, and the strategies for notebooks
and clusters.

With these strategies, the process that calls fit() is connected to the agent but takes no steps, and the processes that
train are not connected. No callback runs before they start, so the check is made in fit() itself.

With all other strategies, the process that calls fit() trains too. There, this module makes the ranks compare their
shared secret as soon as the process group exists. This has to happen before Lightning sends its first messages between
ranks: they are pickled objects, so an intruder in the group could use them to run code in a rank. Lightning sends them
before any callback runs, so a callback would be too late.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any

from spotrun.lightning.connectors import names
from spotrun.training import unsupported
from spotrun.training.by_name import is_a
from spotrun.training.fit import claim
from spotrun.training.ranks import Ranks
from spotrun.training.session import Follower

TRAINS_HERE_TOO = "_SubprocessScriptLauncher"
"""
The name of the launcher that starts ranks 1 and up as separate programs, while the process that calls fit() trains as
rank 0.
"""


def watch(package: str) -> None:
    """
    Wrap fit() of the Trainer class of `package`, so that each call first checks which processes will train. Further
    calls of `watch` for the same package have no effect.
    """
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
    """
    Return a context in which the ranks compare their shared secret as soon as the Trainer's strategy has made the
    process group.
    """
    strategy = trainer.strategy
    original = strategy.setup_environment

    def setup_environment() -> None:
        original()
        ranks = Ranks(trainer.global_rank, trainer.world_size)
        if ranks.elastic is not None:
            _seed_again(trainer)
        ranks.compare()

    strategy.setup_environment = setup_environment
    try:
        yield
    finally:
        vars(strategy).pop("setup_environment", None)


def _seed_again(trainer: Any) -> None:
    """
    Seed the random number generators as the script's seed_everything has done. Lightning does so with DDP only. So
    whatever an elastic training draws from here on, for its model or a split of its data, would depend on the strategy.
    """
    if (seed := os.environ.get("PL_GLOBAL_SEED", "")).isdecimal():
        workers = os.environ.get("PL_SEED_WORKERS") == "1"
        importlib.import_module(names.root(trainer)).seed_everything(int(seed), workers=workers, verbose=False)


def nodes_of_job() -> int:
    return int(os.environ.get("SPOTRUN_NUM_NODES", "1"))


def refuse_others(trainer: Any) -> None:
    """
    Check in which processes `trainer` trains, and on how many nodes.

    Raises:
        TrainingUnsupported: fit() would train in processes that no agent can reach, or on more or fewer nodes than the
            job has.
    """
    if trainer.num_nodes != nodes_of_job():
        unsupported.reject(
            claim() or Follower(),
            f"the Trainer's num_nodes is {trainer.num_nodes}, and the job's is {nodes_of_job()}",
            'leave num_nodes out, or give Trainer num_nodes=int(os.environ["SPOTRUN_NUM_NODES"]) and set num_nodes in'
            " the job",
        )
    launcher = trainer.strategy.launcher
    if launcher is None or is_a(launcher, TRAINS_HERE_TOO):
        return
    unsupported.reject(
        claim() or Follower(),
        "the Trainer's strategy hands the training to processes that it starts, and no agent can reach these processes",
        'use Trainer(strategy="ddp") if devices is more than 1, else Trainer(devices=1) without a strategy',
    )
