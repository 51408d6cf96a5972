"""
Calls spotrun's hooks in Lightning's training loops. At each point of a loop, spotrun's hooks run after all other hooks.

Lightning has no public hook for that, so this module wraps methods of the loop *objects* of the running Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from spotrun.training.hooks import Hooks, Stage
from spotrun.training.taps import Taps


class Loops:
    """
    The loops of one Trainer. Between `open` and `close` they call `Hooks`. For a resume, `resume` and `enter` set the
    loops' counters and flags.
    """

    _hooks: Hooks

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._entering: dict[str, Any] | None = None
        self._loaded_at: dict[str, int] = {}
        self._begins_epoch = False
        self._lag = 0
        self._taps = Taps()

    def open(self, hooks: Hooks) -> None:
        self._hooks = hooks
        for loop, name, function in (
            (self._fit, "setup_data", partial(self._make_loaders, "train")),
            (self._epoch.val_loop, "setup_data", partial(self._make_loaders, "validate")),
            (self._fit, "on_advance_start", self._on_epoch_start),
            (self._epoch, "advance", self._advance),
            (self._epoch, "on_advance_end", self._on_batch_end),
            (self._fit, "on_advance_end", self._on_epoch_end),
            (self._fit, "on_run_end", self._on_run_end),
        ):
            self._taps.around(loop, name, function)

    def close(self) -> None:
        self._lag_again()
        self._taps.close()

    def forget_loading(self) -> None:
        """
        Clear the loops' `restarting` flags after a fit(), so that the Trainer's next fit() starts normally.

        Lightning clears them itself, but only in loops that have run, and no loop runs if the training had already
        ended.
        """
        for loop in _all_loops(self._fit):
            loop.on_iteration_done()

    def loaded_at(self) -> dict[str, int]:
        """Return, for each stage, the epoch in which its loaders were made."""
        epochs = {
            "train": self._fit._last_train_dl_reload_epoch,
            "validate": self._epoch.val_loop._last_val_dl_reload_epoch,
        }
        return {stage: int(epoch) for stage, epoch in epochs.items() if epoch != float("-inf")}

    def lengths(self) -> dict[str, Any]:
        """
        Return the lengths of the loaders, in batches, as Lightning knows them. Lightning reads these lengths only once
        and then uses them in all epochs. They have to be saved, because a sampler might report a different length after
        a resume.
        """
        loader = self._fit._combined_loader
        return {
            "limits": list(loader.limits) if loader is not None and loader.limits is not None else None,
            "batches": self._fit.max_batches,
            "validation_after": getattr(self._trainer, "val_check_batch", None),
            "validation": list(self._epoch.val_loop._max_batches),
        }

    def have_lengths(self, saved: dict[str, Any]) -> None:
        """Restore the numbers that `lengths` returned earlier. Called in on_train_start after a resume."""
        loader = self._fit._combined_loader
        self._trainer.val_check_batch = saved["validation_after"]
        if saved["validation"] and len(saved["validation"]) == len(self._epoch.val_loop._max_batches):
            self._epoch.val_loop._max_batches = saved["validation"]
        if (loader.limits, self._fit.max_batches) != (saved["limits"], saved["batches"]):
            loader.limits, self._fit.max_batches = saved["limits"], saved["batches"]
            iter(self._fit._data_fetcher)

    def make_loaders_as_in(self, epochs: dict[str, int]) -> None:
        """
        Make fit() create each loader as in the interrupted training: while a loader is created, the current epoch is
        the one in which the interrupted training created it. `epochs` has this epoch for each stage (see `loaded_at`).
        Call this in `Callback.setup`; it has an effect until `enter` is called.
        """
        self._loaded_at = epochs

    def _make_loaders(self, stage: Stage, original: Callable[[], None]) -> None:
        current = self._fit.epoch_progress.current
        epoch = self._loaded_at.get(stage, current.completed)
        true, current.completed = current.completed, epoch
        try:
            with self._hooks.loading(stage, epoch):
                original()
        finally:
            current.completed = true

    def counting_the_epoch_as_begun(self, state: dict[str, Any], *, epoch_ended: bool) -> dict[str, Any]:
        """
        Return a copy of `state` in which the current epoch counts as begun. Call this in `Callback.setup`.

        If a fit() continues from a checkpoint that the script wrote in the last batch of an epoch, Lightning's count of
        begun epochs is one too low from then on. When Lightning loads a snapshot from the middle of a later epoch, it
        would take it for one from the epoch's end. So this method raises the count by one for the load. When training
        continues, `_lag_again` lowers it again, so that it is the same as in the interrupted training.
        """
        progress = state["loops"]["fit_loop"]["epoch_progress"]
        current = progress["current"]
        self._lag = current["processed"] + (not epoch_ended) - current["ready"]
        ahead = {
            span: {**progress[span], **{name: progress[span][name] + self._lag for name in ("ready", "started")}}
            for span in ("current", "total")
        }
        fit_loop = {**state["loops"]["fit_loop"], "epoch_progress": {**progress, **ahead}}
        return {**state, "loops": {**state["loops"], "fit_loop": fit_loop}}

    def _lag_again(self) -> None:
        for span in (self._fit.epoch_progress.current, self._fit.epoch_progress.total):
            span.ready -= self._lag
            span.started -= self._lag
        self._lag = 0

    def resume(self, *, validation_due: bool, should_stop: bool) -> None:
        """
        Prepare the loops for a resume. Call this in on_fit_start, before the loops run.

        If a last validation is still due, the loops must not end before it. Lightning ends a loop when the loop's
        `done` is true, which depends on max_steps and should_stop. So this method changes these two values, and
        `_advance` restores them before any other code uses them.
        """
        self._entering = {
            "validation_due": validation_due,
            "should_stop": should_stop,
            "max_steps": self._epoch.max_steps,
        }
        self._trainer.should_stop = should_stop and not validation_due
        if validation_due and self._epoch.max_steps != -1:
            self._epoch.max_steps += 1 << 40

    def enter(self, *, mid_epoch: bool) -> None:
        """
        Continue within the epoch if `mid_epoch`, else start the next epoch. Called in on_train_start after a resume.
        """
        self._loaded_at = {}
        self._begins_epoch = not mid_epoch
        if self._entering is not None:  # after an epoch that a hook has cut short, Lightning counts one more
            self._entering["stepped"] = self._epoch._batches_that_stepped
        if not mid_epoch:
            self._forget_restart()
            for loop in (self._fit, self._epoch):
                loop.reset_restart_stage()

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        Call `on_train_epoch_start` of the module and of the script's own callbacks once for each of the first `epochs`
        epochs. So these hooks see every epoch start, as in an uninterrupted training.

        `training` is False if nothing is left to train. Lightning then does not call `on_train_start`, so this method
        calls it first.
        """
        trainer, current = self._trainer, self._fit.epoch_progress.current
        before = current.completed, trainer.accumulate_grad_batches
        if not training:
            self._call("on_train_start")
        for current.completed in range(epochs):
            self._call("on_train_epoch_start")
        current.completed, trainer.accumulate_grad_batches = before

    def _call(self, hook: str) -> None:
        module = self._trainer.lightning_module
        module._current_fx_name = hook
        for callback in self._trainer.callbacks:
            if _is_of_script(getattr(type(callback), hook)):
                getattr(callback, hook)(self._trainer, module)
        getattr(module, hook)()
        module._current_fx_name = None

    def _forget_restart(self) -> None:
        # Lightning's own checkpoints may be made in the middle of a step. To allow for that, while `restarting` is
        # True, Lightning does not step the plateau schedulers of the resumed epoch, and may skip or repeat a
        # validation. spotrun's snapshots are made between steps, so this would be wrong for them.
        self._fit._restarting = False
        self._epoch._restarting = False
        self._epoch.val_loop.restarting = False

    def _on_epoch_start(self, original: Callable[[], None]) -> None:
        self._hooks.epoch_begins()
        original()
        if self._begins_epoch:  # otherwise Lightning begins a pass after these hooks, which may change its samplers
            self._begins_epoch = False
            iter(self._fit._data_fetcher)

    def _advance(self, original: Callable[[Any], None], fetcher: Any) -> None:
        if self._entering is not None:
            entering, self._entering = self._entering, None
            self._forget_restart()
            self._lag_again()
            self._trainer.should_stop = entering["should_stop"]
            self._epoch.max_steps = entering["max_steps"]
            self._epoch._batches_that_stepped = entering["stepped"]
            if entering["validation_due"]:
                return  # the batch was trained before the snapshot; on_advance_end validates
        self._hooks.batch_begins()
        original(fetcher)

    def _on_batch_end(self, original: Callable[[Any], None], fetcher: Any) -> None:
        boundary = not self._epoch._should_accumulate()
        due = not self._epoch._skip_next_val and self._epoch._should_check_val_fx(fetcher)
        self._hooks.batch_ends(boundary=boundary, validation_due=due)
        original(fetcher)
        if boundary and not self._epoch.done:
            self._hooks.step_ends()

    def _on_epoch_end(self, original: Callable[[], None]) -> None:
        self._fit._restarting = False
        self._hooks.epoch_closes()
        original()
        self._hooks.epoch_ends()

    def _on_run_end(self, original: Callable[[], None]) -> None:
        original()
        self._hooks.finish()


def _all_loops(loop: Any) -> Iterator[Any]:
    yield loop
    for part in vars(loop).values():
        if hasattr(type(part), "on_iteration_done"):
            yield from _all_loops(part)


def _is_of_script(function: Any) -> bool:
    package = function.__module__.partition(".")[0]
    return package not in ("lightning", "pytorch_lightning", "spotrun")
