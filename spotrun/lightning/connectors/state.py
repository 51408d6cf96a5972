"""Saves and loads the state of a Trainer: Lightning's own checkpoint, and the metrics that it does not include."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from spotrun.lightning.connectors.names import OF_MODULES, RESULTS, module_of
from spotrun.training import weights
from spotrun.training.framework import OPTIMIZERS, SCHEDULERS, WEIGHTS, State
from spotrun.training.optimizer_parts import kind_of
from spotrun.training.revival import revived
from spotrun.training.weights import Weights

TYPES = ("hparams_type", "datamodule_hparams_type")
"""
Keys under which Lightning saves the classes of hyper-parameters. spotrun does not save these entries, so that Lightning
reads hyper-parameters as plain values.
"""
SCORE = "current_score"
RESTORED_LAST = ("loops", SCHEDULERS, OPTIMIZERS)
"""Entries that Lightning restores after on_fit_start."""


def dump(trainer: Any) -> State:
    """
    Return Lightning's own checkpoint. Tensors are not copied.

    Entries that the script's hooks have removed from the checkpoint are added again, except weights.
    """
    plugin, before_hooks = trainer.precision_plugin, State()
    original = plugin.on_save_checkpoint

    def on_save_checkpoint(checkpoint: State) -> None:
        original(checkpoint)
        optimizers = [dict(state) for state in checkpoint[OPTIMIZERS]]
        before_hooks.update(checkpoint | {OPTIMIZERS: optimizers})

    plugin.on_save_checkpoint = on_save_checkpoint
    try:
        state: State = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    finally:
        del plugin.on_save_checkpoint
    del before_hooks[WEIGHTS]
    whole = before_hooks | state | {OPTIMIZERS: before_hooks[OPTIMIZERS]}
    return {name: value for name, value in whole.items() if name not in TYPES}


def load(trainer: Any, state: State, kinds: list[str] | None) -> None:
    """
    Make Lightning restore `state` in the current fit(), instead of a checkpoint file that the script may pass as
    `ckpt_path`. Call this in `Callback.setup`.

    `kinds` are the classes of the saved schedulers. A scheduler of this fit() whose class differs from the saved one is
    not restored yet, because the script may still replace it with a scheduler of the saved class.
    """
    connector = trainer._checkpoint_connector

    def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
        del connector.resume_start  # once only: a later validate(ckpt_path=…) is the user's
        connector._ckpt_path = None
        connector._loaded_checkpoint = dict(state)

    connector.resume_start = resume_start
    _load_schedulers_living(trainer, kinds)


def _load_schedulers_living(trainer: Any, kinds: list[str] | None) -> None:
    """
    Make Lightning restore the schedulers in the current fit(). Objects that a checkpoint does not contain, such as
    functions, are taken from the new schedulers.
    """
    connector = trainer._checkpoint_connector
    original = connector.restore_lr_schedulers

    def restore_lr_schedulers() -> None:
        del connector.restore_lr_schedulers  # once only, as above
        saved = connector._loaded_checkpoint[SCHEDULERS]
        now = schedulers(trainer)
        known = kinds or list(map(kind_of, now))
        filled = [
            revived(state, scheduler.state_dict()) if kind_of(scheduler) == kind else scheduler.state_dict()
            for state, scheduler, kind in zip(saved, now, known, strict=False)
        ]
        connector._loaded_checkpoint[SCHEDULERS] = filled
        original()

    connector.restore_lr_schedulers = restore_lr_schedulers


def load_again(trainer: Any, state: State) -> None:
    """
    Add entries to the loaded checkpoint again: those that Lightning restores after on_fit_start. The script's
    `on_load_checkpoint` has already run, and may have removed them. Call this in on_fit_start.
    """
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = connector._loaded_checkpoint | {name: state[name] for name in RESTORED_LAST}


def load_scores(trainer: Any, state: State) -> None:
    """Restore each ModelCheckpoint's last score, which Lightning saves but does not load. Call this in on_fit_start."""
    saved = state.get("callbacks", {})
    for callback in trainer.callbacks:
        own = saved.get(callback.state_key)
        if isinstance(own, dict) and SCORE in own and hasattr(callback, SCORE):
            setattr(callback, SCORE, own[SCORE])


def load_weights(trainer: Any, saved: Weights) -> None:
    """
    Make Lightning load the weights in `saved` in the current fit(), except those whose names the module lacks. Call
    this in `Callback.setup`.

    If the module's class defines its own `load_state_dict`, that method gets everything that the module's `state_dict`
    returned when the snapshot was made.
    """
    strategy = trainer.strategy
    original = strategy.load_model_state_dict

    def load_model_state_dict(checkpoint: State, strict: bool = True) -> None:
        del strategy.load_model_state_dict  # once only, as above
        module = trainer.lightning_module
        if type(module).load_state_dict is not nn.Module.load_state_dict:
            original(checkpoint, strict=strict)
            return
        shown = checkpoint.get(WEIGHTS)
        others = {name: value for name, value in (shown or {}).items() if name not in saved.by_name}
        original({**checkpoint, WEIGHTS: others | weights.fitting(module, saved)}, strict=False)

    strategy.load_model_state_dict = load_model_state_dict


def load_optimizers_by(trainer: Any, load: Callable[[Sequence[Any]], None]) -> None:
    """
    Make this fit() restore its optimizers by calling `load` instead of Lightning's own code. Call this in
    `Callback.setup`.
    """
    strategy = trainer.strategy

    def load_optimizer_state_dict(checkpoint: State) -> None:
        del strategy.load_optimizer_state_dict  # once only, as above
        load(strategy.optimizers)

    strategy.load_optimizer_state_dict = load_optimizer_state_dict


def schedulers(trainer: Any) -> list[Any]:
    return [config.scheduler for config in trainer.lr_scheduler_configs]


def kinds_of_schedulers(trainer: Any) -> list[str]:
    return list(map(kind_of, schedulers(trainer)))


def load_new_schedulers(trainer: Any, saved: Sequence[State], before: Sequence[Any]) -> None:
    """
    Load the state of each scheduler that the script has added or replaced since Lightning restored the schedulers.
    `before` contains the schedulers that Lightning restored.
    """
    for number, (state, scheduler) in enumerate(zip(saved, schedulers(trainer), strict=False)):
        if number >= len(before) or scheduler is not before[number]:
            scheduler.load_state_dict(revived(state, scheduler.state_dict()))


def others_load_it(trainer: Any) -> bool:
    """
    Return True if the script, a callback or a plugin has an `on_load_checkpoint` hook. Such a hook may read the whole
    checkpoint.
    """
    holders = (trainer.lightning_module, trainer.datamodule, trainer.precision_plugin, *trainer.callbacks)
    return any(_has_hook(holder) for holder in holders if holder is not None)


def _has_hook(holder: Any) -> bool:
    hook = getattr(holder, "on_load_checkpoint", None)
    return hook is not None and hook.__qualname__ not in _EMPTY_HOOKS


_EMPTY_HOOKS = ("Callback.on_load_checkpoint", "CheckpointHooks.on_load_checkpoint")


def load_file(trainer: Any, path: str) -> None:
    """
    Make this fit() restore the Lightning checkpoint at `path`, even if the script names another. Call this in
    `Callback.setup`.
    """
    connector = trainer._checkpoint_connector
    original = connector.resume_start

    def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
        del connector.resume_start  # once only, as above
        original(path, weights_only=True)

    connector.resume_start = resume_start


def before_restoring(trainer: Any, call: Callable[[], None]) -> None:
    """
    Make Lightning run `call` once in the current fit(), after the model is configured and before anything is restored.
    Call this in `Callback.setup`, after `load` or `load_file`.
    """
    connector = trainer._checkpoint_connector
    ours = vars(connector).get("resume_start")

    def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
        del connector.resume_start  # once only, as above
        if ours is not None:
            connector.resume_start = ours
        call()
        connector.resume_start(checkpoint_path, weights_only)

    connector.resume_start = resume_start


def dump_metrics(trainer: Any) -> State:
    """Return the values logged so far in this epoch, and the newest metrics. Lightning saves neither."""
    logger = trainer._logger_connector
    return {
        "callback": dict(logger._callback_metrics),
        "logged": dict(logger._logged_metrics),
        "progress_bar": dict(logger._progress_bar_metrics),
        "first_loop_iter": logger._first_loop_iter,
        "current_fx": logger._current_fx,
        "results": {key: _dump_result(metric) for key, metric in trainer.fit_loop.epoch_loop._results.items()},
    }


def load_metrics(trainer: Any, state: State) -> None:
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


def last_metrics(trainer: Any) -> State:
    """Return the callback metrics that were last computed. Lightning's public property would compute them again."""
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


def _load_result(trainer: Any, saved: State) -> Any:
    module = module_of(trainer, RESULTS)
    result_metric, metadata, sync = (getattr(module, name) for name in OF_MODULES[RESULTS])
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
