"""Implements the interface `Framework` for one Trainer of transformers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from spotrun.training import weights as saved_weights
from spotrun.training.framework import OPTIMIZERS, STEP, WEIGHTS, Problem, State
from spotrun.training.hooks import Hooks, Stage
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.weights import Weights
from spotrun.transformers import refusals
from spotrun.transformers import state as trainer_state
from spotrun.transformers.base_model import BaseModel
from spotrun.transformers.loop import TrainerLoop

OURS = ("transformers", "accelerate", "spotrun")
OF_THE_SCRIPT = ("data_collator", "compute_metrics", "compute_loss_func", "preprocess_logits_for_metrics")
"""Attributes in which a Trainer keeps functions and objects that the script passed to it."""
REPORTING = "transformers.integrations"
"""The module that defines the callbacks that write to loggers."""
OUTPUT = "output"


def version() -> str:
    return str(importlib.import_module("transformers").__version__)


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] in OURS


def _holder(given: Any) -> object:
    """
    Return the object that holds the state of `given`, which the script passed to the Trainer. For a method, this is the
    method's object; for any other object, `given` itself. For a plain function, return None: it can change only
    variables of its module, which are saved anyway.
    """
    held = getattr(given, "__self__", given)
    return None if isinstance(held, FunctionType | ModuleType) else held


class TransformersFramework(TrainerLoop):
    """One train() of one Trainer. `module_of` is the module transformers.trainer."""

    name = "transformers"
    averages: Mapping[str, nn.Module] = MappingProxyType({})
    own_attributes = frozenset({"warnings_issued"})
    loggers: Sequence[Any] = ()
    steps_optimizers = True
    takes_whole_batches = True
    repeats_epoch_begins = True
    cycles = False
    passes_before = 0
    way_out = "train with the same script, model and arguments that made the checkpoint"

    def __init__(self, trainer: Any, module_of: ModuleType) -> None:
        super().__init__(trainer)
        self._module_of = module_of
        self._base: BaseModel | None = None
        self._saved: tuple[State, Weights | None, OptimizerStates] | None = None
        self._rest: State = {}
        self._sums: State = {}
        self.version = version()
        self.rank: int = trainer.args.process_index
        self.ranks: int = trainer.args.world_size
        self.seed: int = trainer.args.seed
        self.output: Any = None
        """The result of train(), once it has returned."""

    def problems(self) -> Sequence[Problem]:
        return refusals.problems(self._trainer, self._module_of, self.version)

    @property
    def is_resumed(self) -> bool:
        return self._place is not None

    # --- what is trained

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._trainer.model
        return module

    @property
    def base(self) -> Mapping[str, str]:
        if self._base is None:
            self._base = BaseModel(self.module)
        return self._base.digests()

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        outer = self._trainer.optimizer
        return [] if outer is None else [getattr(outer, "optimizer", outer)]  # accelerate wraps it

    @property
    def leaves_gradients(self) -> bool:
        """
        True if gradients accumulate and the data is a stream. A pass over a stream may end in the middle of a step, and
        the next pass then adds to the gradients of that step.
        """
        return self.batches == 0 and self._trainer.args.gradient_accumulation_steps > 1

    @cached_property
    def _set_by_libraries(self) -> frozenset[str]:
        return trainer_state.set_by_libraries(type(self._trainer))

    @property
    def own_objects(self) -> Sequence[object]:
        """
        The Trainer, its arguments, its accelerator, its callbacks and the model's configs. Objects whose classes the
        script defines are left out. (A Trainer of such a class is in `roots`.)
        """
        trainer = self._trainer
        held = [trainer, trainer.args, trainer.accelerator, *trainer.callback_handler.callbacks]
        return [one for one in held if _is_ours(one)] + trainer_state.configs(self.module)

    def roots(self) -> Mapping[str, object]:
        trainer = self._trainer
        found = {f"callbacks[{number}]": each for number, each in enumerate(trainer.callback_handler.callbacks)}
        found |= {"trainer": trainer} | {name: _holder(getattr(trainer, name, None)) for name in OF_THE_SCRIPT}
        return {name: one for name, one in found.items() if one is not None and not _is_ours(one)}

    def lost(self) -> Sequence[UntrackedChange]:
        return ()

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Log `figures` through the callbacks that write to loggers. The Trainer's own `log` is not used, because it would
        add the figures to the Trainer's history.
        """
        trainer = self._trainer
        logs = {name: value for name, value in figures.items() if name not in self._metrics}
        for callback in trainer.callback_handler.callbacks:
            if type(callback).__module__.startswith(REPORTING):
                callback.on_log(trainer.args, trainer.state, trainer.control, logs=dict(logs), model=self.module)

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        return self._loaders.of(stage)

    def restart_pass(self) -> None:
        """Do nothing. A pass begins only when its first batch is read."""

    # --- its state

    def dump(self) -> State:
        return {
            WEIGHTS: trainer_state.shown(self.module, self.base),
            OPTIMIZERS: [each.state_dict() for each in self.optimizers],
            STEP: self.step,
            **trainer_state.dump(self._trainer),
        }

    def dump_rest(self) -> State:
        """
        Return the state that has to be saved in addition to the result of `dump`. This includes attributes that a
        Trainer class of another library sets, such as sums of metrics that have not been logged yet.
        """
        trainer = self._trainer
        return {
            "callbacks": trainer_state.dump_callbacks(trainer, self._module_of),
            "configs": trainer_state.dump_configs(self.module),
            "log_folders": trainer_state.dump_log_folders(trainer),
            "metrics": dict(self._metrics),
            "trainer": trainer_state.dump_attributes(trainer, self._set_by_libraries),
            OUTPUT: None if self.output is None else self.output._asdict(),
            **self.dump_place(),
        }

    def dump_metrics(self) -> State:
        return trainer_state.dump_sums(self._trainer)

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        self._saved, self._rest = (state, weights, optimizers), rest
        self._metrics = rest["metrics"]
        self.load_place(place, rest)
        trainer_state.load_log_folders(self._trainer, rest["log_folders"])

    def _on_counters(self, original: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        def with_counts(*args: Any, **kwargs: Any) -> tuple[int, int]:
            found: tuple[int, int] = original(*args, **kwargs)
            if self._saved is not None:
                trainer_state.load_counts(self._trainer, self._saved[0])
            return found

        return super()._on_counters(with_counts, *args, **kwargs)

    def _on_prepared(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """
        Record which attributes accelerate sets on the model, such as a wrapped `forward`. They do not belong to the
        script, so checkpoints do not include them.
        """

        def noting(*args: Any, **kwargs: Any) -> Any:
            before = {*vars(self.module)} - {"forward"}
            prepared = original(*args, **kwargs)
            self.own_attributes |= {*vars(self.module)} - before
            return prepared

        return super()._on_prepared(noting, *args, **kwargs)

    def restored(self) -> None:
        if self._saved is None:
            return
        (state, weights, optimizers), self._saved = self._saved, None
        if weights is not None:
            now = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
            with torch.no_grad():
                for name, value in saved_weights.fitting(self.module, weights).items():
                    if now[name] is not value:  # a weight of the base must not be written to
                        now[name].copy_(value)
        optimizers.load(self.optimizers)
        trainer_state.load_helpers(self._trainer, state)

    def misfit(self) -> str:
        return ""

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        Call `on_epoch_begin` of the script's callbacks `epochs` times: once for each epoch that began before the
        snapshot. `training` is ignored, because the Trainer calls `on_train_begin` even if no step is left to train.
        """
        trainer = self._trainer
        for _ in range(epochs):
            for callback in trainer.callback_handler.callbacks:
                if not _is_ours(callback):
                    callback.on_epoch_begin(trainer.args, trainer.state, trainer.control, model=self.module)

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        (one,) = optimizers
        if one is not self.optimizers[0]:
            self._trainer.optimizer.optimizer = one

    def load_metrics(self, metrics: State) -> None:
        self._sums = metrics

    def enter(self) -> None:
        trainer_state.load_sums(self._trainer, self._sums)
        trainer_state.load_callbacks(self._trainer, self._module_of, self._rest["callbacks"])
        trainer_state.load_configs(self.module, self._rest["configs"])
        vars(self._trainer).update(self._rest["trainer"])

    def load_file(self, path: str) -> None:
        raise AssertionError(f"{path} was refused before")

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        self._base = self._base or BaseModel(self.module)
        super().open(hooks)
        self._taps.around(self._trainer, "_finalize_training", self._on_end)

    def _on_end(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """
        End the training. If it had already ended in an earlier process, do only what each process needs, such as
        closing files. In this case, the script's callbacks get no `on_train_end`: the checkpoint already includes the
        effects of the earlier call.
        """
        if self._place is None or not self._place.finished:
            return original(*args, **kwargs)
        trainer = self._trainer
        for callback in trainer.callback_handler.callbacks:
            if _is_ours(callback):  # libraries' callbacks close the files that they opened when training began
                callback.on_train_end(trainer.args, trainer.state, trainer.control, model=self.module)
        if trainer.neftune_noise_alpha is not None:
            self._module_of.deactivate_neftune(trainer.model, trainer.neftune_hook_handle, trainer.accelerator)
        trainer.is_in_train = False
        return self._module_of.TrainOutput(**self._rest[OUTPUT])
