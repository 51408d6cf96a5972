"""Lists the private names of Lightning that spotrun uses, and checks that the installed version has them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from spotrun.training.by_name import is_a
from spotrun.training.private_names import missing

RESULTS = "trainer.connectors.logger_connector.result"
"""Module with the classes that hold logged values."""
_TRAINER = ".trainer.trainer"
"""Module of Trainer, relative to Lightning's package."""
OF_TRAINER: Mapping[str, tuple[str, ...]] = {
    "": ("_val_check_time_interval",),
    "_checkpoint_connector": (  # restores a snapshot in place of a file
        *("dump_checkpoint", "resume_start", "restore_lr_schedulers", "_loaded_checkpoint", "_ckpt_path"),
    ),
    "precision_plugin": ("on_save_checkpoint", "backward", "convert_input"),
    "strategy": ("load_model_state_dict", "batch_to_device", "training_step"),
    "_accelerator_connector": ("use_distributed_sampler",),
    "_data_connector": ("_prepare_dataloader",),
    "_logger_connector": (  # the values logged so far
        *("_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter", "_current_fx"),
    ),
    "fit_loop": (
        *("_combined_loader", "_data_fetcher", "_last_train_dl_reload_epoch", "_restarting", "_skip_backward"),
        *("reset_restart_stage", "setup_data", "done", "max_batches", "restarting"),
        *("on_advance_start", "on_advance_end", "on_iteration_done", "on_run_end"),
    ),
    "fit_loop.epoch_progress.current": ("completed", "processed", "ready"),
    "fit_loop.epoch_loop": (
        *("_restarting", "_batches_that_stepped", "_results", "_should_accumulate", "_should_check_val_fx"),
        *("_skip_next_val", "advance", "done", "max_steps", "on_advance_end", "reset_restart_stage"),
    ),
    "fit_loop.epoch_loop.batch_progress": ("is_last_batch",),
    "fit_loop.epoch_loop.batch_progress.current": ("completed", "ready"),
    "fit_loop.epoch_loop.batch_progress.total": ("completed", "processed"),
    "fit_loop.epoch_loop.val_loop": (
        *("_combined_loader", "_max_batches", "_last_val_dl_reload_epoch", "restarting", "setup_data"),
    ),
}
"""
Private names that spotrun uses in a Trainer and its parts. A key is the path from the Trainer to the part that has
these names; "" is the Trainer itself.
"""
OF_MODULES: Mapping[str, tuple[str, ...]] = {
    RESULTS: ("_ResultMetric", "_Metadata", "_Sync"),
    "utilities.combined_loader": ("CombinedLoader._mode",),
}
OF_PARTS: Mapping[str, tuple[str, ...]] = {
    "LightningModule": ("_current_fx_name", "_on_before_batch_transfer"),
    "StochasticWeightAveraging": (  # sets it up within an epoch
        *("_annealing_epochs", "_annealing_strategy", "_average_model", "_device", "_initialized"),
        *("_latest_update_epoch", "_swa_lrs", "_swa_scheduler"),
    ),
    "ModelPruning": ("_original_layers", "_parameters_to_prune"),
    "ModelCheckpoint": ("_last_global_step_saved", "_last_checkpoint_saved"),
    "CSVLogger": ("_experiment", "_version"),
    "TensorBoardLogger": ("_experiment", "_version"),
    "MLFlowLogger": ("_experiment_id", "_log_batch_kwargs", "_prefix", "_run_id", "_tracking_uri"),
}
"""Private names that spotrun uses in modules, callbacks and loggers, keyed by the class that has them."""


def moved(trainer: Any) -> list[str]:
    """Return those of the private names above that the installed Lightning lacks."""
    found = missing(trainer, (f"{part}.{name}".lstrip(".") for part, names in OF_TRAINER.items() for name in names))
    for path, names in OF_MODULES.items():
        found += [f"{path}.{name}" for name in missing(module_of(trainer, path), names)]
    for part in (trainer.lightning_module, *trainer.callbacks, *trainer.loggers):
        names = tuple(name for cls in OF_PARTS if is_a(part, cls) for name in OF_PARTS[cls])
        found += [f"{type(part).__name__}.{name}" for name in missing(part, names)]
    return found


def root(trainer: Any) -> str:
    """
    Return the package from which the Trainer's class comes: "pytorch_lightning" or "lightning.pytorch". If the script
    derives its own class from Trainer, return the package of the base class.
    """
    modules = (cls.__module__ for cls in type(trainer).__mro__)
    return next((each for each in modules if each.endswith(_TRAINER)), "").removesuffix(_TRAINER)


def package(trainer: Any) -> str:
    """Return the name of the Lightning package in use: "pytorch_lightning" or "lightning"."""
    return root(trainer).partition(".")[0]


def version(trainer: Any) -> str:
    return str(getattr(importlib.import_module(package(trainer)), "__version__", "?"))


def module_of(trainer: Any, path: str) -> Any:
    """Import and return the module `path` of the Lightning package in use. Return None if there is no such module."""
    with suppress(ImportError):
        return importlib.import_module(f"{root(trainer)}.{path}")
    return None
