"""Saves and loads the state of a Trainer other than its weights and optimizers: its counts, scheduler and scaler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from spotrun.exactness.same_everywhere import TIMES
from spotrun.training.data.samplers import copied, is_plain, same
from spotrun.training.framework import SCHEDULERS, State
from spotrun.training.python_state.script import Script, set_by
from spotrun.transformers import names

COUNTED = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
    "stateful_callbacks",
)
"""
The attributes of a TrainerState that are saved in addition to its `log_history`. All others are not saved, because a
new Trainer computes them from the training arguments.
"""
WANTED = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
LOG_FOLDER = "logging_dir"
"""Attribute of a callback that writes reports to files."""
SCALER = "scaler"
COUNTS = "trainer_state"


def dump(trainer: Any) -> State:
    """
    Return the entries of a Trainer's checkpoint other than weights and optimizers: its counts, the scheduler and the
    scaler.
    """
    state = trainer.state
    scheduler, scaler = trainer.lr_scheduler, trainer.accelerator.scaler
    return {
        COUNTS: {
            **{name: copy.copy(getattr(state, name)) for name in COUNTED},
            "log_history": list(state.log_history),  # entries never change
        },
        SCHEDULERS: [scheduler.state_dict()] if scheduler is not None else [],
        SCALER: None if scaler is None else scaler.state_dict(),
    }


def load_counts(trainer: Any, saved: State) -> None:
    """Load the step counts. Call this after the Trainer has created its new TrainerState."""
    for name, value in saved[COUNTS].items():
        setattr(trainer.state, name, value)


def load_helpers(trainer: Any, saved: State) -> None:
    """
    Load the states of the learning-rate scheduler and the gradient scaler. Call this after the Trainer has created
    them.
    """
    for state in saved[SCHEDULERS]:
        trainer.lr_scheduler.load_state_dict(state)
    if saved[SCALER] is not None and trainer.accelerator.scaler is not None:
        trainer.accelerator.scaler.load_state_dict(saved[SCALER])


def dump_sums(trainer: Any) -> State:
    """Return the sums of losses and of floating-point operations, since the start and since the last log."""
    return {name: getattr(trainer, name) for name in names.ATTRIBUTES}


def load_sums(trainer: Any, saved: State) -> None:
    for name, value in saved.items():
        setattr(trainer, name, value.to(trainer.args.device) if isinstance(value, Tensor) else value)


def dump_wanted(control: Any) -> State:
    return {name: getattr(control, name) for name in WANTED}


def load_wanted(control: Any, saved: State) -> None:
    for name, value in saved.items():
        setattr(control, name, value)


def dump_callbacks(trainer: Any, module: ModuleType) -> list[State]:
    """Return the states of the callbacks that can export their own state."""
    return [copy.deepcopy(each.state()["attributes"]) for each in _exportable(trainer, module)]


def load_callbacks(trainer: Any, module: ModuleType, saved: list[State]) -> None:
    for callback, state in zip(_exportable(trainer, module), saved, strict=False):
        for name, value in state.items():
            setattr(callback, name, value)


def _exportable(trainer: Any, module: ModuleType) -> Iterator[Any]:
    return (each for each in trainer.callback_handler.callbacks if isinstance(each, module.ExportableState))


def configs(model: nn.Module) -> list[Any]:
    """
    Return a transformers model's config and generation config. The script may change them, and the model writes both
    when it is saved to files.
    """
    found = (getattr(model, name, None) for name in ("config", "generation_config"))
    return [one for one in found if hasattr(one, "to_dict")]


def dump_configs(model: nn.Module) -> list[State]:
    return [{name: copied(value) for name, value in vars(one).items() if is_plain(value)} for one in configs(model)]


def load_configs(model: nn.Module, saved: list[State]) -> None:
    for one, values in zip(configs(model), saved, strict=False):
        now = vars(one)
        now.update({name: value for name, value in values.items() if name not in now or not same(now[name], value)})


def dump_log_folders(trainer: Any) -> list[str | None]:
    """
    Return each callback's log folder, or None if it has none. The folder has to be saved, because a new process would
    choose a folder with another name: the name of TensorBoard's folder contains its creation time.
    """
    found = (getattr(each, LOG_FOLDER, None) for each in trainer.callback_handler.callbacks)
    return [folder if isinstance(folder, str) else None for folder in found]


def load_log_folders(trainer: Any, saved: list[str | None]) -> None:
    """Set the log folders. Call this before the callbacks write into them."""
    for callback, folder in zip(trainer.callback_handler.callbacks, saved, strict=False):
        if folder is not None and hasattr(callback, LOG_FOLDER):
            setattr(callback, LOG_FOLDER, folder)


def set_by_libraries(cls: type) -> frozenset[str]:
    """
    Return the names of the attributes that other libraries add to a Trainer of class `cls`. A library adds attributes
    by defining a base class of `cls`; bases that transformers or the script defines do not count.
    """
    script = Script.of_this_process()
    between = (each for each in cls.__mro__ if each.__module__.partition(".")[0] not in ("transformers", "builtins"))
    return set_by(tuple(each for each in between if not script.owns(each)))


def dump_attributes(trainer: Any, names: frozenset[str]) -> State:
    """Return those attributes among `names` that hold plain values."""
    kept = vars(trainer)
    return {name: copied(kept[name]) for name in sorted(names) if name in kept and is_plain(kept[name])}


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logged numbers, except the epoch, the step and durations."""
    kinds = {name: value for name, value in logs.items() if name not in ("epoch", "step")}
    kinds = {name: value for name, value in kinds.items() if not name.endswith(TIMES)}
    return {name: value for name, value in kinds.items() if isinstance(value, int | float)}


def shown(model: nn.Module, without: Mapping[str, str]) -> State:
    """Return a model's weights, except those in `without`, by their names in `state_dict`."""
    return {name: weight for name, weight in model.state_dict().items() if name not in without}
