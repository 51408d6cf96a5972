"""
Every private name of Lightning that spotrun uses, in one place.

`moved(trainer)` names what a newer Lightning has moved; tests/test_lightning_exact.py fails with that list, and a
training under an agent is refused with it before it starts. Written against pytorch_lightning 2.6.6
(loops/fit_loop.py, loops/training_epoch_loop.py, trainer/connectors/*.py).

The loops are tapped by putting functions on the loop *objects* of the one Trainer that runs: what runs between two
batches has no public hook that comes after all others.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

Trainer = Any
State = dict[str, Any]

PRIVATE_NAMES = (
    "_checkpoint_connector.dump_checkpoint",
    "_checkpoint_connector.resume_start",
    "_checkpoint_connector._loaded_checkpoint",
    "_checkpoint_connector._ckpt_path",
    "_data_connector._prepare_dataloader",
    "_logger_connector._callback_metrics",
    "_logger_connector._logged_metrics",
    "_logger_connector._progress_bar_metrics",
    "_logger_connector._first_loop_iter",
    "_logger_connector._current_fx",
    "fit_loop._combined_loader",
    "fit_loop._data_fetcher",
    "fit_loop._restarting",
    "fit_loop.reset_restart_stage",
    "fit_loop.epoch_progress.current.processed",
    "fit_loop.epoch_progress.current.ready",
    "fit_loop.on_advance_start",
    "fit_loop.on_advance_end",
    "fit_loop.on_run_end",
    "fit_loop.done",
    "fit_loop.restarting",
    "fit_loop.epoch_loop._restarting",
    "fit_loop.epoch_loop._results",
    "fit_loop.epoch_loop._should_accumulate",
    "fit_loop.epoch_loop._should_check_val_fx",
    "fit_loop.epoch_loop._skip_next_val",
    "fit_loop.epoch_loop.advance",
    "fit_loop.epoch_loop.batch_progress.current.completed",
    "fit_loop.epoch_loop.batch_progress.current.ready",
    "fit_loop.epoch_loop.batch_progress.is_last_batch",
    "fit_loop.epoch_loop.batch_progress.total.completed",
    "fit_loop.epoch_loop.batch_progress.total.processed",
    "fit_loop.epoch_loop.done",
    "fit_loop.epoch_loop.max_steps",
    "fit_loop.epoch_loop.on_advance_end",
    "fit_loop.epoch_loop.reset_restart_stage",
    "fit_loop.epoch_loop.val_loop.restarting",
)


def moved(trainer: Trainer) -> list[str]:
    """The private names above that this Lightning does not have."""
    missing = [name for name in PRIVATE_NAMES if not _has(trainer, name)]
    try:
        _result_classes(trainer)
    except (AttributeError, ImportError, KeyError):
        missing.append("trainer.connectors.logger_connector.result._ResultMetric")
    return missing


def _has(root: object, name: str) -> bool:
    owner, _, last = name.rpartition(".")
    try:
        inspect.getattr_static(operator.attrgetter(owner)(root), last)  # static: `done` cannot be asked before the run
    except AttributeError:
        return False
    return True


# --- where training is -----------------------------------------------------------------------------------------------


def epoch(trainer: Trainer) -> int:
    """The epoch that runs, from 0; after its end, the next one."""
    return int(trainer.fit_loop.epoch_progress.current.processed)


def batches_done(trainer: Trainer) -> int:
    """Batches of this epoch that were trained on."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def batches(trainer: Trainer) -> int:
    """Batches of a whole epoch, 0 where that is unknown."""
    number = trainer.num_training_batches
    return int(number) if number != float("inf") else 0


def is_done(trainer: Trainer) -> bool:
    """Nothing is left to train."""
    return bool(trainer.fit_loop.done)


def next_position(trainer: Trainer) -> tuple[int, int]:
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


# --- hooks that Lightning does not have ------------------------------------------------------------------------------


class Tap(Protocol):
    """Called by the loops, after every callback and every hook of the module had its turn."""

    def epoch_begins(self) -> None: ...

    def batch_begins(self) -> None: ...

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        """
        The batch is trained and counted; its validation, if due, comes next. `boundary`: no gradient is pending.
        """

    def step_ends(self) -> None:
        """As `batch_ends` on a boundary, with its validation done, and with more batches of this epoch to come."""

    def epoch_closes(self) -> None:
        """The batches and validations of an epoch are done; its end hooks come next."""

    def epoch_ends(self) -> None:
        """All that belongs to the epoch is done; `epoch()` is the next one."""

    def run_ends(self) -> None:
        """Training is done, all `on_train_end` hooks included."""


class Loops:
    """The loops of one Trainer, with a tap on them; `resume` says how to enter them."""

    def __init__(self, trainer: Trainer, tap: Tap) -> None:
        self._trainer = trainer
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._tap = tap
        self._entering: dict[str, Any] | None = None
        self._tapped: list[tuple[object, str]] = []

    def open(self) -> None:
        for loop, name, function in (
            (self._fit, "on_advance_start", self._on_epoch_start),
            (self._epoch, "advance", self._advance),
            (self._epoch, "on_advance_end", self._on_batch_end),
            (self._fit, "on_advance_end", self._on_epoch_end),
            (self._fit, "on_run_end", self._on_run_end),
        ):
            setattr(loop, name, _around(function, getattr(loop, name)))
            self._tapped.append((loop, name))

    def close(self) -> None:
        for loop, name in self._tapped:
            with suppress(AttributeError):
                delattr(loop, name)
        self._tapped = []

    def resume(self, *, validation_due: bool, should_stop: bool) -> None:
        """
        Before the loops run (on_fit_start): keep them from ending at once where a last validation is still due.

        `done` looks at max_steps and should_stop first; both get their true values back before anything acts on them.
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
        """In on_train_start, after a resume: restart in the middle of an epoch, or start the next epoch afresh."""
        if not mid_epoch:
            self._forget_restart()
            for loop in (self._fit, self._epoch):
                loop.reset_restart_stage()

    def _forget_restart(self) -> None:
        # `restarting` would step the plateau schedulers of the resumed epoch not at all, and would skip or repeat a
        # validation: Lightning cannot know where in a step its own checkpoints were written. Ours lie between steps.
        self._fit._restarting = False
        self._epoch._restarting = False
        self._epoch.val_loop.restarting = False

    def _on_epoch_start(self, original: Callable[[], None]) -> None:
        self._tap.epoch_begins()
        original()

    def _advance(self, original: Callable[[Any], None], fetcher: Any) -> None:
        if self._entering is not None:
            entering, self._entering = self._entering, None
            self._forget_restart()
            self._trainer.should_stop = entering["should_stop"]
            self._epoch.max_steps = entering["max_steps"]
            if entering["validation_due"]:
                return  # its batch was trained before; on_advance_end validates
        self._tap.batch_begins()
        original(fetcher)

    def _on_batch_end(self, original: Callable[[Any], None], fetcher: Any) -> None:
        boundary = not self._epoch._should_accumulate()
        due = not self._epoch._skip_next_val and self._epoch._should_check_val_fx(fetcher)
        self._tap.batch_ends(boundary=boundary, validation_due=due)
        original(fetcher)
        if boundary and not self._epoch.done:
            self._tap.step_ends()

    def _on_epoch_end(self, original: Callable[[], None]) -> None:
        self._fit._restarting = False
        self._tap.epoch_closes()
        original()
        self._tap.epoch_ends()

    def _on_run_end(self, original: Callable[[], None]) -> None:
        original()
        self._tap.run_ends()


def _around(function: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    return lambda *args: function(original, *args)


# --- loaders ---------------------------------------------------------------------------------------------------------


def on_loader(trainer: Trainer, exchange: Callable[[Any, str], Any]) -> None:
    """Every loader that fit() makes ready goes through `exchange(loader, "train" or "validate")`."""
    original = trainer._data_connector._prepare_dataloader

    def prepare(dataloader: Any, shuffle: bool, mode: Any) -> Any:
        stage = "train" if mode.value == "train" else "validate"
        return exchange(original(dataloader, shuffle=shuffle, mode=mode), stage)

    trainer._data_connector._prepare_dataloader = prepare


def no_more_loaders(trainer: Trainer) -> None:
    trainer._data_connector.__dict__.pop("_prepare_dataloader", None)


def train_loaders(trainer: Trainer) -> list[Any]:
    combined = trainer.fit_loop._combined_loader
    return list(combined.flattened) if combined is not None else []


def restart_data(trainer: Trainer) -> None:
    """Throw the iterator over the training data away, and begin a new one at `next_position`."""
    iter(trainer.fit_loop._data_fetcher)


# --- state -----------------------------------------------------------------------------------------------------------


def dump(trainer: Trainer) -> State:
    """What Lightning would save. Tensors are the living ones, not copies."""
    state: State = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return state


def load(trainer: Trainer, state: State) -> None:
    """In `Callback.setup`: let this fit() restore `state`, whatever path it was given."""
    connector = trainer._checkpoint_connector

    def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
        del connector.resume_start  # once only: a later validate(ckpt_path=…) is the user's
        connector._ckpt_path = None
        connector._loaded_checkpoint = state

    connector.resume_start = resume_start


def dump_metrics(trainer: Trainer) -> State:
    """What was logged so far in this epoch, and the last known metrics: Lightning forgets both."""
    logger = trainer._logger_connector
    return {
        "callback": dict(logger._callback_metrics),
        "logged": dict(logger._logged_metrics),
        "progress_bar": dict(logger._progress_bar_metrics),
        "first_loop_iter": logger._first_loop_iter,
        "current_fx": logger._current_fx,
        "results": {key: _dump_result(metric) for key, metric in trainer.fit_loop.epoch_loop._results.items()},
    }


def load_metrics(trainer: Trainer, state: State) -> None:
    logger = trainer._logger_connector
    logger._callback_metrics = dict(state["callback"])
    logger._logged_metrics = dict(state["logged"])
    logger._progress_bar_metrics = dict(state["progress_bar"])
    logger._first_loop_iter = state["first_loop_iter"]
    logger._current_fx = state["current_fx"]
    results = trainer.fit_loop.epoch_loop._results
    for key, saved in state["results"].items():
        results[key] = _load_result(trainer, saved)
    results.to(trainer.strategy.root_device)


def last_metrics(trainer: Trainer) -> State:
    """The callback metrics as they were last computed; the public property computes, which a bystander should not."""
    metrics: State = trainer._logger_connector._callback_metrics
    return metrics


_META = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
)


def _result_classes(trainer: Trainer) -> tuple[Any, Any, Any]:
    module = __import__(type(trainer.fit_loop.epoch_loop._results).__module__, fromlist=["_ResultMetric"])
    return module._ResultMetric, module._Metadata, module._Sync


def _dump_result(metric: Any) -> State:
    saved = {name: getattr(metric.meta, name) for name in _META} | {
        "reduce": metric.meta.reduce_fx.__name__,
        "attribute": metric.meta.metric_attribute,
        "sync": metric.meta.sync.should,
        "rank_zero_only": metric.meta.sync.rank_zero_only,
        "is_tensor": metric.is_tensor,
        "has_reset": metric.has_reset,
    }
    if metric.is_tensor:
        saved["states"] = {name: getattr(metric, name) for name in metric._defaults}
        saved["updates"] = metric._update_count
        saved["step"] = metric._forward_cache
    return saved


def _load_result(trainer: Trainer, saved: State) -> Any:
    result_metric, metadata, sync = _result_classes(trainer)
    meta = metadata(
        **{name: saved[name] for name in _META}, reduce_fx=saved["reduce"], metric_attribute=saved["attribute"]
    )
    meta.sync = sync(_should=saved["sync"], fn=trainer.strategy.reduce, rank_zero_only=saved["rank_zero_only"])
    metric = result_metric(meta, saved["is_tensor"])
    metric.has_reset = saved["has_reset"]
    if saved["is_tensor"]:
        for name, value in saved["states"].items():
            setattr(metric, name, value)
        metric._update_count = saved["updates"]
        metric._forward_cache = saved["step"]
    else:
        metric.value = operator.attrgetter(saved["attribute"])(trainer.lightning_module)
        metric._forward_cache = metric.value._forward_cache
    return metric


# --- what modules hold and state_dict() leaves out -------------------------------------------------------------------


def dump_module_extras(module: torch.nn.Module) -> State:
    """Buffers that are not persistent, torchmetrics' running states, and gradients kept by manual optimisation."""
    return {
        "buffers": dict(_hidden_buffers(module)),
        "metrics": {
            name: {
                "states": {state: _flat(getattr(metric, state)) for state in metric._defaults},
                "updates": metric._update_count,
            }
            for name, metric in _metrics(module)
        },
        "gradients": {}
        if getattr(module, "automatic_optimization", True)
        else {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None},
    }


def _flat(state: Any) -> Any:
    return list(state) if isinstance(state, list) else state


def load_module_extras(module: torch.nn.Module, state: State) -> None:
    buffers = dict(_hidden_buffers(module))
    for name, value in state["buffers"].items():
        if name in buffers and buffers[name].shape == value.shape:
            with torch.no_grad():
                buffers[name].copy_(value)
    metrics = dict(_metrics(module))
    for name, saved in state["metrics"].items():
        metric: Any = metrics[name]
        for field, value in saved["states"].items():
            setattr(metric, field, _to(value, metric.device))
        metric._update_count = saved["updates"]
        metric._computed = None


def load_gradients(module: torch.nn.Module, state: State) -> None:
    parameters = dict(module.named_parameters())
    for name, gradient in state["gradients"].items():
        parameters[name].grad = gradient.to(parameters[name].device)


def _to(value: Any, device: torch.device) -> Any:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)


def _hidden_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{prefix}.{name}", part._buffers[name])
        for prefix, part in module.named_modules()
        for name in sorted(part._non_persistent_buffers_set)
        if part._buffers.get(name) is not None
    ]


def _metrics(module: torch.nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, part)
        for name, part in module.named_modules()
        if any(cls.__name__ == "Metric" and cls.__module__.startswith("torchmetrics") for cls in type(part).__mro__)
    ]
