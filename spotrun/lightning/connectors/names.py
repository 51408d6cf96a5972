"""The private names of Lightning that spotrun uses, and a check that this version has them."""

from __future__ import annotations

import importlib
import inspect
import operator
from typing import Any

from spotrun.lightning.connectors import averaging, pruning, saving
from spotrun.training.log_files import mlflow_files, text_logs

PRIVATE_NAMES = (
    "_val_check_time_interval",
    "_checkpoint_connector.dump_checkpoint",
    "_checkpoint_connector.resume_start",
    "_checkpoint_connector.restore_lr_schedulers",
    "_checkpoint_connector._loaded_checkpoint",
    "_checkpoint_connector._ckpt_path",
    "precision_plugin.on_save_checkpoint",
    "strategy.load_model_state_dict",
    "_data_connector._prepare_dataloader",
    "_logger_connector._callback_metrics",
    "_logger_connector._logged_metrics",
    "_logger_connector._progress_bar_metrics",
    "_logger_connector._first_loop_iter",
    "_logger_connector._current_fx",
    "fit_loop._combined_loader",
    "fit_loop._data_fetcher",
    "fit_loop._last_train_dl_reload_epoch",
    "fit_loop._restarting",
    "fit_loop.reset_restart_stage",
    "fit_loop.setup_data",
    "fit_loop.epoch_progress.current.completed",
    "fit_loop.epoch_progress.current.processed",
    "fit_loop.epoch_progress.current.ready",
    "fit_loop.on_advance_start",
    "fit_loop.on_advance_end",
    "fit_loop.on_iteration_done",
    "fit_loop.on_run_end",
    "fit_loop.done",
    "fit_loop.max_batches",
    "fit_loop.restarting",
    "fit_loop._skip_backward",
    "fit_loop.epoch_loop._restarting",
    "fit_loop.epoch_loop._batches_that_stepped",
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
    "fit_loop.epoch_loop.val_loop._combined_loader",
    "fit_loop.epoch_loop.val_loop._max_batches",
    "fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch",
    "fit_loop.epoch_loop.val_loop.restarting",
    "fit_loop.epoch_loop.val_loop.setup_data",
)


OF_THE_MODULE = ("_current_fx_name",)
"""Names of a LightningModule, which a Trainer has once it trains."""
RESULT_CLASSES = ("_ResultMetric", "_Metadata", "_Sync")
"""Names in trainer.connectors.logger_connector.result."""
MODE = "_mode"
"""Name in utilities.combined_loader.CombinedLoader."""


def moved(trainer: Any) -> list[str]:
    """Return the private names above that this Lightning does not have."""
    missing = [name for name in PRIVATE_NAMES if not _has(trainer, name)]
    try:
        result_classes(trainer)
    except (AttributeError, ImportError, KeyError):
        missing.append("trainer.connectors.logger_connector.result._ResultMetric")
    try:
        getattr(_combined_loader_class(trainer)([]), MODE)
    except (AttributeError, ImportError):
        missing.append(f"utilities.combined_loader.CombinedLoader.{MODE}")
    for parts, needed in (
        ([trainer.lightning_module] if trainer.lightning_module is not None else [], OF_THE_MODULE),
        (averaging.callbacks(trainer), averaging.PRIVATE_NAMES),
        (pruning.callbacks(trainer), pruning.PRIVATE_NAMES),
        (saving.callbacks(trainer), saving.PRIVATE_NAMES),
        (text_logs.writing_files(trainer.loggers), text_logs.PRIVATE_NAMES),
        (mlflow_files.of_mlflow(trainer.loggers), mlflow_files.PRIVATE_NAMES),
    ):
        missing += [f"{type(part).__name__}.{name}" for part in parts for name in needed if not hasattr(part, name)]
    return missing


def package(trainer: Any) -> str:
    """Return the Lightning in use: "pytorch_lightning" or "lightning"."""
    return type(trainer).__module__.partition(".")[0]


def version(trainer: Any) -> str:
    return str(getattr(importlib.import_module(package(trainer)), "__version__", "?"))


def _has(root: object, name: str) -> bool:
    owner, _, last = name.rpartition(".")
    try:
        holder = operator.attrgetter(owner)(root) if owner else root
        inspect.getattr_static(holder, last)  # reading `done` would fail before the run
    except AttributeError:
        return False
    return True


def _combined_loader_class(trainer: Any) -> Any:
    package = type(trainer).__module__.removesuffix(".trainer.trainer")
    return importlib.import_module(f"{package}.utilities.combined_loader").CombinedLoader


def result_classes(trainer: Any) -> tuple[Any, Any, Any]:
    module = importlib.import_module(type(trainer.fit_loop.epoch_loop._results).__module__)
    metric, metadata, sync = (getattr(module, name) for name in RESULT_CLASSES)
    return metric, metadata, sync
