"""Implements the interface `Framework` for one Lightning Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from spotrun.lightning import unsupported
from spotrun.lightning.connectors import attributes, averaging, names, pruning, stopping
from spotrun.lightning.connectors import state as trainer_state
from spotrun.lightning.connectors.loaders import Loaders
from spotrun.lightning.connectors.loops import Loops
from spotrun.lightning.connectors.position import Position
from spotrun.training.framework import OPTIMIZERS, SCHEDULERS, Problem, State
from spotrun.training.hooks import Hooks
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.script import Script, set_by
from spotrun.training.weights import Weights

WAY_OUT = (
    "make parts of the model and optimizers in configure_model, setup or on_train_epoch_start; or train with the script"
    " that made the checkpoint"
)
OURS = ("pytorch_lightning", "lightning", "lightning_fabric", "spotrun")


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in OURS


class LightningFramework(Position, Loaders):
    """
    One Lightning Trainer, behind the interface `Framework`. `loss` is the loss of the newest batch; the callback sets
    it.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._state: State = {}
        self._schedulers: Sequence[State] = ()
        self._kinds: list[str] | None = None
        self._sanity_steps: int | float | None = None
        self._rest: State = {}
        self._place: Boundary
        self._script = Script.of_this_process()
        self.name = names.package(trainer)
        self.version = names.version(trainer)
        self.rank: int = trainer.global_rank
        self.ranks: int = trainer.world_size
        self.module: nn.Module = trainer.lightning_module
        self.loss: Any = None
        self.passes_before = 0
        self.way_out = WAY_OUT
        self.takes_whole_batches = self.repeats_epoch_begins = True

    @cached_property
    def _loops(self) -> Loops:
        """
        Lightning's loops, wrapped in `Loops`. The wrapper uses private names of Lightning, so it is made only at first
        use. Before that, `problems` checks that these names exist.
        """
        return Loops(self._trainer)

    @property
    def seed(self) -> int:
        """The seed that the script gave to `seed_everything`; 0 if the script did not call it."""
        text = os.environ.get("PL_GLOBAL_SEED", "0")
        return int(text) if text.isdecimal() else 0

    def problems(self) -> Sequence[Problem]:
        return unsupported.problems(self._trainer)

    # --- what is trained

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        optimizers: Sequence[Optimizer] = self._trainer.optimizers
        return optimizers

    @property
    def steps_optimizers(self) -> bool:
        return bool(self._trainer.lightning_module.automatic_optimization)

    @property
    def base(self) -> Mapping[str, str]:
        """The weights that checkpoints do not include: none, because Lightning's checkpoints hold all weights."""
        return {}

    @property
    def leaves_gradients(self) -> bool:
        """
        True in manual optimization, where the script itself steps the optimizers, so that gradients may remain between
        batches.
        """
        return not self.steps_optimizers

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """The averaged models that are attributes of the Trainer's callbacks."""
        return {
            f"callbacks[{number}].{name}": value
            for number, callback in enumerate(self._trainer.callbacks)
            for name, value in vars(callback).items()
            if isinstance(value, AveragedModel)
        }

    @cached_property
    def own_attributes(self) -> frozenset[str]:
        bases = type(self.module).__mro__
        base = next(cls for cls in bases if cls.__name__ == "LightningModule")
        return frozenset(vars(base())) | set_by(bases[bases.index(base) :])

    @property
    def own_objects(self) -> Sequence[object]:
        """
        The Trainer. HARMLESS in training/python_state/encoding.py names Lightning's packages, so further objects of
        these packages are not inspected anyway.
        """
        return (self._trainer,)

    def roots(self) -> Mapping[str, object]:
        """
        Return the objects in which the script can keep state: its own callbacks, data module, loggers and profiler, and
        the hyper-parameters that Lightning stores for the script.

        Callbacks and data modules that are part of Lightning are left out, because they export their state themselves.
        """
        found = {f"callbacks[{number}]": callback for number, callback in enumerate(self._trainer.callbacks)}
        found["datamodule"] = self._trainer.datamodule
        own = {name: one for name, one in found.items() if one is not None and not _is_ours(type(one))}
        writing = {f"loggers[{number}]": logger for number, logger in enumerate(self._trainer.loggers)}
        writing["profiler"] = self._trainer.profiler
        return own | self._script.own_of(writing) | dict(self._hyper_parameters())

    def _hyper_parameters(self) -> Iterator[tuple[str, object]]:
        for name, one in (("module", self.module), ("datamodule", self._trainer.datamodule)):
            kept = None if one is None else vars(one).get("_hparams")
            if isinstance(kept, dict):
                yield f"{name}.hparams", kept

    def lost(self) -> Sequence[UntrackedChange]:
        return ()

    @property
    def loggers(self) -> Sequence[Any]:
        return list(self._trainer.loggers) if self._trainer.is_global_zero else []

    # --- where it is: see also Position

    def metrics(self) -> Mapping[str, Any]:
        return trainer_state.last_metrics(self._trainer)

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Write `figures` to the loggers only. Lightning's `self.log` is not used, because it would also add the figures
        to the metrics that schedulers and early stopping read.
        """
        taken = self._trainer.logged_metrics
        metrics = {name: value for name, value in figures.items() if name not in taken}
        for logger in self._trainer.loggers:
            if _is_ours(type(logger)):
                logger.log_metrics(metrics=metrics, step=self.logged_step)
                logger.save()

    # --- its state

    def dump(self) -> State:
        return trainer_state.dump(self._trainer)

    def dump_rest(self) -> State:
        return {
            "should_stop": bool(self._trainer.should_stop),
            "accumulate_grad_batches": self._trainer.accumulate_grad_batches,
            "loaded_at": self._loops.loaded_at(),
            "lengths": self._loops.lengths(),
            "schedules": trainer_state.kinds_of_schedulers(self._trainer),
            "averaging": averaging.dump(self._trainer),
            "pruning": pruning.dump(self._trainer),
            "saving": attributes.dump(self._trainer, attributes.SAVING),
            "rates": attributes.dump(self._trainer, attributes.RATES),
        }

    def dump_metrics(self) -> State:
        return trainer_state.dump_metrics(self._trainer) | {"stopping": stopping.dump(self._trainer)}

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        """Resume from a snapshot. Called in `Callback.setup`."""
        self._rest, self._place = rest, place
        self._sanity_steps = self._trainer.num_sanity_val_steps
        self._trainer.num_sanity_val_steps = 0  # the first attempt ran these steps, and no counter includes them
        others_load_it = trainer_state.others_load_it(self._trainer)
        counted = self._loops.counting_the_epoch_as_begun(state, epoch_ended=place.epoch_ended)
        self._state = counted | {OPTIMIZERS: optimizers.take() if others_load_it else []}
        self._kinds = rest.get("schedules")  # None in a snapshot of an older version of spotrun
        trainer_state.load(self._trainer, self._state, self._kinds)
        trainer_state.load_optimizers_by(self._trainer, optimizers.load)
        if weights is not None:
            trainer_state.load_weights(self._trainer, weights)
        self._loops.make_loaders_as_in(rest["loaded_at"])

    def misfit(self) -> str:
        now = trainer_state.kinds_of_schedulers(self._trainer)
        if self._kinds is None or self._kinds == now:
            return ""
        return f"the checkpoint's schedules are {', '.join(self._kinds)}, and this training's are {', '.join(now)}"

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        schedulers = trainer_state.schedulers(self._trainer)
        metrics = trainer_state.dump_metrics(self._trainer)
        self._loops.begin_epochs_again(epochs, training=training)
        trainer_state.load_metrics(self._trainer, metrics)
        trainer_state.load_new_schedulers(self._trainer, self._schedulers, schedulers)

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        if any(one is not other for one, other in zip_longest(self._trainer.optimizers, optimizers)):
            self._trainer.optimizers = list(optimizers)

    def load_metrics(self, metrics: State) -> None:
        """
        Load the metrics. Called in on_fit_start. An earlier call would have no effect, because Lightning restores
        weights and callbacks and resets its metrics just before on_fit_start.
        """
        trainer_state.load_again(self._trainer, self._state)
        trainer_state.load_scores(self._trainer, self._state)
        if "saving" in self._rest:  # not in a snapshot of an older version of spotrun
            attributes.load(self._trainer, attributes.SAVING, self._rest["saving"])
        self._schedulers = self._state[SCHEDULERS]
        self._state = {}
        trainer_state.load_metrics(self._trainer, metrics)
        if "stopping" in metrics:  # not in a snapshot of an older version of spotrun
            stopping.load(self._trainer, metrics["stopping"])
        self._loops.resume(validation_due=self._place.validation_due, should_stop=self._rest["should_stop"])

    def enter(self) -> None:
        """Continue the training loop at the restored position. Called in on_train_start."""
        averaging.load(self._trainer, self._rest["averaging"])
        if "pruning" in self._rest:  # not in a snapshot of an older version of spotrun
            pruning.load(self._trainer, self._rest["pruning"])
        if "rates" in self._rest:
            attributes.load(self._trainer, attributes.RATES, self._rest["rates"])
        self._trainer.accumulate_grad_batches = self._rest["accumulate_grad_batches"]
        if "lengths" in self._rest:  # not in a snapshot of an older version of spotrun
            self._loops.have_lengths(self._rest["lengths"])
        self._loops.enter(mid_epoch=not self._place.epoch_ended)
        self._rest = {}

    def load_file(self, path: str) -> None:
        """Load Lightning's checkpoint file at `path`. Called in `Callback.setup`."""
        trainer_state.load_file(self._trainer, path)

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        self.exchange_loaders(hooks.exact)
        self._loops.open(hooks)
        trainer_state.before_restoring(self._trainer, hooks.built)

    def close(self) -> None:
        """
        Undo the changes that this adapter made for this fit(), so that the Trainer's next fit() finds the attributes
        that an uninterrupted training would have left.
        """
        self._loops.close()
        self._loops.forget_loading()
        self.exchange_loaders_no_more()
        if self._sanity_steps is not None:
            self._trainer.num_sanity_val_steps, self._sanity_steps = self._sanity_steps, None
        if self._rest:  # nothing was left to train
            if "rates" in self._rest:
                attributes.load(self._trainer, attributes.RATES, self._rest["rates"])
            self._trainer.accumulate_grad_batches = self._rest["accumulate_grad_batches"]
            self._rest = {}
