"""
Follows the training loop of one Trainer: keeps its position, and calls the `Hooks`.

If gradients accumulate, one optimizer step takes several batches. After each step, the Trainer logs, evaluates and
saves if its TrainerControl requests that. At the end of an epoch, it first calls `on_epoch_end` of the callbacks, and
then logs, evaluates and saves again if requested.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from spotrun.training.framework import State
from spotrun.training.hooks import Hooks
from spotrun.training.place import Boundary
from spotrun.training.taps import Taps
from spotrun.transformers import state as trainer_state
from spotrun.transformers.loaders import Loaders

NOTHING_TO_READ: tuple[list[Any], None] = ([], None)
"""What `get_batch_samples` returns when a pass has ended."""


class TrainerLoop:
    """
    The loop of one train(). `batch` is the number of batches trained in the current epoch. Between two epochs, `batch`
    keeps the number of batches of the epoch that has ended.
    """

    _hooks: Hooks

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._taps = Taps()
        self._loaders = Loaders(trainer, self._taps)
        self.epoch = self.batch = 0
        self.loss: Any = None
        self._first = 0
        self._place: Boundary | None = None
        self._entering: Boundary | None = None
        self._closing = False
        self._closes_again = False
        self._pass_has_ended = False
        self._control_before: State = {}
        self._last: tuple[Any, Any] | None = None
        self._batch_is_begun = False
        self._nothing_is_left = False
        self._metrics: dict[str, float] = {}

    # --- where it is

    @property
    def batches(self) -> int:
        return self._loaders.batches

    @property
    def epochs(self) -> int:
        epochs: int = self._trainer.state.num_train_epochs
        return epochs if self.batches else 0  # a stream has no fixed number of batches

    @property
    def step(self) -> int:
        step: int = self._trainer.state.global_step
        return step

    @property
    def ends_epoch(self) -> bool:
        return self.batch == self.batches if self.batches else self._loaders.has_ended

    @property
    def is_done(self) -> bool:
        return bool(self._trainer.control.should_training_stop) or self.epoch == self.epochs > 0

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        return self.epoch, self._first

    def metrics(self) -> Mapping[str, Any]:
        return self._metrics

    def dump_place(self) -> State:
        """Return the parts of the position that a `Boundary` does not contain."""
        grad_norm, learning_rate = self._last or (None, None)
        return {
            "closing": self._closing,
            "pass_has_ended": self.ends_epoch,
            "has_stepped": self._last is not None,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "control": trainer_state.dump_wanted(self._trainer.control),
        }

    def load_place(self, place: Boundary, saved: State) -> None:
        """Make the Trainer begin at `place`."""
        self._place = place
        self._last = (saved["grad_norm"], saved["learning_rate"]) if saved["has_stepped"] else None
        self._closes_again = saved["closing"] and place.validation_due
        self._pass_has_ended = saved["pass_has_ended"]
        self._control_before = saved["control"]

    # --- its hooks

    def open(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._loaders.exchange(hooks, lambda: self.epoch)
        trainer, handler = self._trainer, self._trainer.callback_handler
        for owner, name, function in (
            (trainer, "_init_training_state", self._on_counters),
            (trainer, "_prepare_for_training", self._on_prepared),
            (handler, "on_train_begin", self._on_train_begin),
            (trainer, "_evaluate", self._on_evaluate),
            (handler, "on_epoch_begin", self._on_epoch_begin),
            (trainer, "_run_epoch", self._on_epoch),
            (trainer, "get_batch_samples", self._on_batches),
            (trainer, "training_step", self._on_batch),
            (trainer.accelerator, "backward", self._on_backward),
            (handler, "on_substep_end", self._on_batch_end),
            (handler, "on_pre_optimizer_step", self._on_optimizer_step),
            (trainer, "_maybe_log_save_evaluate", self._on_step_end),
            (handler, "on_prediction_step", self._on_prediction),
            (handler, "on_log", self._on_log),
            (handler, "on_epoch_end", self._on_epoch_end),
        ):
            self._taps.around(owner, name, function)

    def close(self) -> None:
        self._loaders.close()
        self._taps.close()

    def restored(self) -> None:
        """Finish the restore, once the model, the optimizer and its schedule exist and are on their device."""

    def _on_counters(self, original: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return the epoch in which training begins, and the batch in that epoch."""
        epochs, batches = original(*args, **kwargs)
        place = self._place
        if place is not None:
            epochs, batches = (place.epoch + 1, 0) if place.epoch_ended else (place.epoch, place.batch)
            self._entering = None if place.epoch_ended else place
        self.epoch, self._first = epochs, batches
        self.batch = place.batch if place is not None else batches
        if place is not None and place.finished:
            return self._trainer.state.num_train_epochs, 0
        return epochs, batches

    def _on_prepared(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(*args, **kwargs)
        self.restored()
        self._hooks.restore()
        return prepared

    def _on_train_begin(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(args, state, control)
        self._hooks.start()
        if self._place is not None:
            trainer_state.load_wanted(control, self._control_before)
        return control

    def _on_evaluate(self, original: Any, *args: Any, skip_scheduler: bool = False, **kwargs: Any) -> Any:
        if skip_scheduler and self._place is not None:  # this is the evaluation before the first step (`eval_on_start`)
            return {}
        return original(*args, skip_scheduler=skip_scheduler, **kwargs)

    def _on_epoch_begin(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        if self._entering is None and not self._first:
            self.batch, self._last = 0, None
        self._hooks.epoch_begins()
        if self._entering is not None:  # the callbacks ran before the snapshot
            return control
        return original(args, state, control)

    def _on_epoch(self, original: Any, *args: Any, **kwargs: Any) -> None:
        entering, self._entering = self._entering, None
        if entering is not None and entering.validation_due:
            if not self._closes_again:
                self._step_end_again(inspect.signature(original).bind(*args, **kwargs).arguments)
            self._nothing_is_left = self._pass_has_ended or self._closes_again or self._stops()
        if self._nothing_is_left:
            self._loaders.begin()  # begin the rest of this pass, which is empty; the next pass then follows it
        original(*args, **kwargs)
        self._nothing_is_left = self._closing = False
        self._first = 0
        self.epoch += 1
        self._hooks.epoch_ends()

    def _step_end_again(self, of_epoch: Mapping[str, Any]) -> None:
        """
        Log, save and evaluate after the last batch before the snapshot. The earlier process had not done this yet when
        the snapshot was taken.
        """
        grad_norm, learning_rate = self._last or (None, None)
        names = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
        self._trainer._maybe_log_save_evaluate(
            self._trainer._tr_loss, grad_norm, *(of_epoch[name] for name in names), learning_rate=learning_rate
        )

    def _on_batches(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """
        Call `batch_begins` after the Trainer has read the batches of a step. The Trainer reads all of a step's batches
        before it trains on the first one.
        """
        if self._nothing_is_left:
            return NOTHING_TO_READ
        batches, items = original(*args, **kwargs)
        if batches:
            self._batch_begins()
        return batches, items

    def _batch_begins(self) -> None:
        if not self._batch_is_begun:
            self._batch_is_begun = True
            self._hooks.batch_begins()

    def _on_batch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._batch_begins()
        self.loss = original(*args, **kwargs)
        self._batch_is_begun = False
        self.batch += 1
        return self.loss

    def _on_backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._hooks.backward_begins()
        original(*args, **kwargs)
        self._hooks.backward_ends()

    def _on_batch_end(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(args, state, control)
        self._hooks.batch_ends(boundary=False, validation_due=False)
        return control

    def _on_optimizer_step(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(args, state, control)
        self._hooks.optimizer_steps()
        return control

    def _on_step_end(
        self, original: Any, tr_loss: Any, grad_norm: Any, *args: Any, learning_rate: Any = None, **kwargs: Any
    ) -> None:
        if self._closing:
            if grad_norm is None and learning_rate is None and self._last is not None:  # trained before the resume
                grad_norm, learning_rate = self._last
            if self._trainer.control.should_evaluate:
                self._hooks.epoch_validates()
            original(tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs)
            return
        self._last = grad_norm, learning_rate
        self._hooks.batch_ends(boundary=True, validation_due=bool(self._trainer.control.should_evaluate))
        original(tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs)
        if not (self.ends_epoch or self._stops()):
            self._hooks.step_ends()

    def _stops(self) -> bool:
        control = self._trainer.control
        return bool(control.should_epoch_stop or control.should_training_stop)

    def _on_prediction(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(args, state, control)
        self._hooks.validation_batch_ends()
        return control

    def _on_log(self, original: Any, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> Any:
        control = original(args, state, control, logs, **kwargs)
        self._metrics |= trainer_state.numbers(logs)
        return control

    def _on_epoch_end(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        self._closing = True
        if self._closes_again:  # the callbacks ran before the snapshot
            self._closes_again = False
            return control
        self._hooks.epoch_closes()
        return original(args, state, control)
