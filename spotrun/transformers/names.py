"""Checks whether the installed version of transformers has the private names that spotrun uses."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

from spotrun.training.private_names import missing

FLOOR = (5, 10)
"""
Oldest supported version (major, minor). Older versions keep the sums of losses in local variables of one function,
where spotrun cannot reach them.
"""
KNOWN = "5.24"
"""The version with which the tests run."""
METHODS = {
    "_inner_training_loop": ("resume_from_checkpoint",),
    "_init_training_state": (),
    "_prepare_for_training": (),
    "_run_epoch": ("model", "epoch", "trial", "ignore_keys_for_eval", "start_time"),
    "_maybe_log_save_evaluate": ("tr_loss", "grad_norm", "learning_rate"),
    "_evaluate": ("skip_scheduler",),
    "_finalize_training": (),
    "_load_from_checkpoint": (),
    "get_batch_samples": (),
    "training_step": (),
}
"""The methods of Trainer that spotrun uses. Each has the names of the parameters that spotrun passes or reads."""
ATTRIBUTES = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
)
"""Attributes of a Trainer during training."""
OF_THE_MODULE = (
    "skip_first_batches",
    "get_last_checkpoint",
    "TrainOutput",
    "ExportableState",
    "CallbackHandler.on_train_begin",
    "CallbackHandler.on_epoch_begin",
    "CallbackHandler.on_pre_optimizer_step",
    "CallbackHandler.on_substep_end",
    "CallbackHandler.on_epoch_end",
    "CallbackHandler.on_prediction_step",
    "CallbackHandler.on_log",
)
"""Names in transformers.trainer."""


def moved(module: ModuleType) -> list[str]:
    """
    Return the names that are missing from the installed version of transformers. `module` is transformers.trainer.
    """
    found = missing(module, (*OF_THE_MODULE, *(f"Trainer.{name}" for name in (*METHODS, *ATTRIBUTES))))
    for name in (each for each in METHODS if f"Trainer.{each}" not in found):
        known = inspect.signature(getattr(module.Trainer, name)).parameters
        found += [f"Trainer.{name}({each})" for each in METHODS[name] if each not in known]
    return found


def is_too_old(version: str) -> bool:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return numbers < FLOOR
