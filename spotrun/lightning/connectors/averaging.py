"""
Saves and restores the part of StochasticWeightAveraging's state that this callback does not save itself.

The callback saves its average, but neither its learning rate schedule nor the number of models in the average. It
creates these two when an epoch starts. After a resume within an epoch, it would have no schedule until the next epoch,
and would count from 0 again. So this module restores both when the training resumes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.swa_utils import SWALR

from spotrun.lightning.connectors.names import module_of
from spotrun.training.by_name import is_a

State = dict[str, Any]


def dump(trainer: Any) -> list[State | None]:
    return [_dump(trainer, callback) for callback in callbacks(trainer)]


def _dump(trainer: Any, callback: Any) -> State | None:
    if not callback._initialized:
        return None
    return {
        "scheduler": callback._swa_scheduler.state_dict(),
        "averages": int(callback.n_averaged),
        "normalizing": _dump_normalizing(trainer, callback) if trainer.fit_loop._skip_backward else None,
    }


def _dump_normalizing(trainer: Any, callback: Any) -> State:
    """
    Return the state that the callback has only in its extra epoch, after the last epoch of the training. Nothing is
    trained in the extra epoch: the callback only updates the statistics of batch normalization.
    """
    names = {module: name for name, module in trainer.lightning_module.named_modules()}
    return {
        "accumulate_grad_batches": callback._accumulate_grad_batches,
        "momenta": {names[module]: momentum for module, momentum in callback.momenta.items()},
    }


def load(trainer: Any, saved: list[State | None]) -> None:
    """
    Restore the callbacks' schedules and counts. Call this in `on_train_start`, after the state of the optimizers was
    restored.
    """
    for callback, state in zip(callbacks(trainer), saved, strict=True):
        if state is not None:
            _set_up(trainer, callback, state)
            if state["normalizing"] is not None:
                _set_up_normalizing(trainer, callback, state["normalizing"])


def _set_up(trainer: Any, callback: Any, state: State) -> None:
    module, (optimizer,) = trainer.lightning_module, trainer.optimizers
    if isinstance(callback._swa_lrs, float):
        callback._swa_lrs = [callback._swa_lrs] * len(optimizer.param_groups)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    cosine = callback._annealing_strategy == "cos"
    scheduler = SWALR(
        optimizer,
        swa_lr=callback._swa_lrs,
        anneal_epochs=callback._annealing_epochs,
        anneal_strategy=callback._annealing_strategy,
        last_epoch=trainer.max_epochs if cosine else -1,
    )
    scheduler.load_state_dict(state["scheduler"])
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.update(before)  # the scheduler's constructor has taken a step
    trainer.lr_scheduler_configs[:] = [module_of(trainer, "utilities.types").LRSchedulerConfig(scheduler)]
    callback._swa_scheduler = scheduler
    callback._average_model = callback._average_model.to(callback._device or module.device)
    callback.n_averaged = torch.tensor(state["averages"], dtype=torch.long, device=module.device)
    callback._initialized = True


def _set_up_normalizing(trainer: Any, callback: Any, state: State) -> None:
    modules = dict(trainer.lightning_module.named_modules())
    callback._accumulate_grad_batches = state["accumulate_grad_batches"]
    callback.momenta = {modules[name]: momentum for name, momentum in state["momenta"].items()}
    for module in callback.momenta:
        module.momentum = None
    trainer.fit_loop.max_batches += 1
    trainer.fit_loop._skip_backward = True


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, "StochasticWeightAveraging")]
