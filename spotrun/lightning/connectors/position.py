"""Where training is, in Lightning's counters."""

from __future__ import annotations

from typing import Any


def epoch(trainer: Any) -> int:
    """The epoch that runs, from 0; after its end, the next one."""
    return int(trainer.fit_loop.epoch_progress.current.processed)


def batches_done(trainer: Any) -> int:
    """Batches of this epoch that were trained on."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def batches(trainer: Any) -> int:
    """Batches of a whole epoch, 0 where that is unknown."""
    number = trainer.num_training_batches
    return int(number) if number != float("inf") else 0


def logged_step(trainer: Any) -> int:
    """The step under which the metrics of the newest batch were logged."""
    return max(0, int(trainer.fit_loop.epoch_loop._batches_that_stepped) - 1)


def validates_by_the_clock(trainer: Any) -> bool:
    """`val_check_interval` is a time."""
    return trainer._val_check_time_interval is not None


def is_done(trainer: Any) -> bool:
    """Nothing is left to train."""
    return bool(trainer.fit_loop.done)


def next_position(trainer: Any) -> tuple[int, int]:
    """
    The epoch and the batch in it that a pass over the training data begins with.

    Not (epoch, 0) only on the way into an epoch whose middle was restored. The user's own checkpoints, restored on
    a fresh start, may have been written inside a batch (`on_train_batch_end`), which Lightning counts as completed
    later.
    """
    epochs = trainer.fit_loop.epoch_progress
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if not trainer.fit_loop.restarting or epochs.current.ready == epochs.current.processed:
        return epoch(trainer), 0
    inside_a_batch = progress.total.processed == progress.total.completed + 1
    if inside_a_batch and progress.is_last_batch:
        return epoch(trainer) + 1, 0
    return epoch(trainer), progress.current.completed + inside_a_batch
