"""Reads the position of a training from Lightning's counters."""

from __future__ import annotations

from typing import Any


class Position:
    """
    Implements those methods of `Framework` that concern the position in the training. They are documented there.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def epoch(self) -> int:
        return int(self._trainer.fit_loop.epoch_progress.current.processed)

    @property
    def batch(self) -> int:
        return int(self._trainer.fit_loop.epoch_loop.batch_progress.current.ready)

    @property
    def batches(self) -> int:
        number = self._trainer.num_training_batches
        return int(number) if number != float("inf") else 0

    @property
    def epochs(self) -> int:
        return max(0, int(self._trainer.max_epochs or 0))

    @property
    def step(self) -> int:
        return int(self._trainer.global_step)

    @property
    def logged_step(self) -> int:
        """The number of the step under which Lightning logged the metrics of the newest batch."""
        return max(0, int(self._trainer.fit_loop.epoch_loop._batches_that_stepped) - 1)

    @property
    def ends_epoch(self) -> bool:
        return bool(self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)

    @property
    def is_done(self) -> bool:
        return bool(self._trainer.fit_loop.done)

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        """
        The epoch and the batch at which a pass over the data would begin now. Usually the batch is 0.

        The batch is not 0 if the loop is about to continue in the middle of an epoch that was restored from a snapshot
        or from a checkpoint that the script itself wrote. Lightning calls `on_train_batch_end` before it counts the
        batch that was just trained. So if the script wrote its checkpoint there, this property adds that batch.
        """
        epochs = self._trainer.fit_loop.epoch_progress
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        if not self._trainer.fit_loop.restarting or epochs.current.ready == epochs.current.processed:
            return self.epoch, 0
        inside_a_batch = progress.current.processed == progress.current.completed + 1
        if inside_a_batch and progress.is_last_batch:
            return self.epoch + 1, 0
        return self.epoch, progress.current.completed + inside_a_batch


def validates_by_the_clock(trainer: Any) -> bool:
    """Return True if `val_check_interval` is a duration."""
    return trainer._val_check_time_interval is not None
