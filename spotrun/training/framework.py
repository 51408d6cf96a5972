"""The port (interface) by which spotrun calls the framework that runs the training loop. The framework calls Hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import nn
from torch.optim import Optimizer

from spotrun.training.hooks import Hooks, Stage
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.weights import Weights

State: TypeAlias = dict[str, Any]

WEIGHTS = "state_dict"
OPTIMIZERS = "optimizer_states"
STEP = "global_step"
"""
The keys WEIGHTS, OPTIMIZERS and STEP are in the state of every framework. Their values are the weights by name, a list
with the state of each optimizer, and the number of steps.
"""
SCHEDULERS = "lr_schedulers"
"""
Entry with the states of the learning-rate schedulers. These states, and those in OPTIMIZERS, may contain objects of the
script. Before a framework calls `load_state_dict`, it replaces the saved objects with the script's current ones.
"""


class Problem(NamedTuple):
    """A reason why a resumed training would not be bit-identical, and advice for the user."""

    reason: str
    hint: str


class Framework(Protocol):
    """
    One framework's training: reports its position, and saves and restores its state.

    Epochs and batches are counted from 0. All ranks of a training make the same calls in the same order. No method may
    draw random numbers, or change a counter or a weight. Only `load` and the restore that it prepares may do so.

    The order of a fit:

    1. spotrun calls `problems`.
    2. On a resume, spotrun calls `load`. On a fresh start, it calls `load_file` if there is a file to start from.
    3. spotrun calls `open`.
    4. The framework calls `Hooks.built`.
    5. The framework restores its own state, and calls `Hooks.restore`. On a resume, that hook calls `load_metrics`.
    6. The framework creates its loaders, and calls `Hooks.start`. On a resume, that hook calls `enter`.
    7. At the end, spotrun calls `close`.
    """

    # --- what it is

    name: str
    """
    Name of the framework's package. It and `version` are in the first message to the agent and in each checkpoint.
    """
    version: str
    rank: int
    ranks: int
    """Number of processes that train together."""
    takes_whole_batches: bool
    """
    True if the framework gets the micro-batches of a batch at once, and not one after another as the script reads them.
    """
    repeats_epoch_begins: bool
    """True if a resume repeats what the script does at the beginning of each epoch, also of the earlier ones."""
    way_out: str
    """Advice for a user whose resumed training has a different model or optimizers from those in its checkpoint."""

    @property
    def seed(self) -> int:
        """The seed that the script gave to its random number generators; 0 if it gave none."""

    def problems(self) -> Sequence[Problem]:
        """
        Return all reasons why spotrun cannot resume this training exactly. spotrun calls this before any other method.
        """

    # --- what is trained

    @property
    def module(self) -> nn.Module: ...

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...

    @property
    def steps_optimizers(self) -> bool:
        """True if the framework calls `Hooks.optimizer_steps` before each step of an optimizer."""

    @property
    def leaves_gradients(self) -> bool:
        """
        True if, at a boundary, there can be gradients that no optimizer has used yet. Snapshots then include the
        gradients.
        """

    @property
    def base(self) -> Mapping[str, str]:
        """
        The digests of the weights that checkpoints leave out, keyed by the weights' names. These are weights that the
        script loads in each process and never trains, such as those of a pretrained base model. Empty if all weights
        are trained.
        """

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """Modules that hold averages of `module`'s weights, by name. The names must be the same in every process."""

    @property
    def own_attributes(self) -> frozenset[str]:
        """Names of the module's attributes that belong to the framework, not to the script."""

    @property
    def own_objects(self) -> Sequence[object]:
        """
        Objects of the framework that training changes. If the script's own objects refer to them, spotrun does not save
        them there, because the framework's own checkpoint contains the part of their state that matters.
        """

    def roots(self) -> Mapping[str, object]:
        """
        Objects besides `module` that the script gave to the training: callbacks, and loggers of the script's own
        classes. The names must be the same in each process.
        """

    def lost(self) -> Sequence[UntrackedChange]:
        """Return the changes that checkpoints do not contain, as far as the framework knows."""

    @property
    def loggers(self) -> Sequence[Any]:
        """The loggers that this process writes to; empty on ranks other than 0."""

    # --- where it is

    @property
    def epoch(self) -> int:
        """The number of the current epoch. As soon as an epoch has ended, this is the number of the next epoch."""

    @property
    def batch(self) -> int:
        """The number of this epoch's batches that have been trained on."""

    @property
    def batches(self) -> int:
        """The number of batches of a whole epoch; 0 if unknown."""

    @property
    def epochs(self) -> int:
        """The maximum number of epochs; 0 if unknown."""

    @property
    def step(self) -> int:
        """The number of optimizer steps so far, in all epochs."""

    @property
    def ends_epoch(self) -> bool:
        """True if the newest batch is the last of its epoch."""

    @property
    def is_done(self) -> bool:
        """True if nothing is left to train."""

    @property
    def loss(self) -> Any:
        """The loss of the newest batch; None if that batch has no loss."""

    def metrics(self) -> Mapping[str, Any]:
        """Return the newest known value of each metric, without computing any."""

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Send `figures` to the loggers whose classes come from libraries. Leave out a figure if the script logs a value
        under the same name.

        Loggers of the script's own classes do not get the figures. The figures depend on interruptions, and if such a
        logger stored them, the script's state would also depend on interruptions.
        """

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        """Return the loaders that the framework uses now. Each of them was returned by `Hooks.exact`."""

    @property
    def cycles(self) -> bool:
        """True if training reads several loaders, and shorter loaders restart until the longest ends."""

    @property
    def passes_before(self) -> int:
        """The number of completed passes over the training data in this epoch; 0 if an epoch has only one pass."""

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        """The epoch and batch at which a pass over the training data would start now."""

    def restart_pass(self) -> None:
        """
        Begin to read the training data again, with a new iterator that starts at `pass_begins_at`. If the framework
        creates its iterator only when it reads the first batch of a pass, do nothing.
        """

    # --- its state

    def dump(self) -> State:
        """
        Return the framework's own checkpoint, without copying its tensors. It contains WEIGHTS (with the names and
        tensors that the script's `state_dict` returns), OPTIMIZERS and STEP.
        """

    def dump_rest(self) -> State:
        """
        Return the part of the framework's state that `dump` leaves out. The result is equal on all ranks, and always
        has the same keys.
        """

    def dump_metrics(self) -> State:
        """Return this rank's counts and logged metrics so far."""

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        """
        Prepare to resume at `place`. The framework uses the arguments later, when it restores itself.

        `state` is the result of `dump` in an earlier process, without OPTIMIZERS, and `rest` is the result of
        `dump_rest`. The framework must copy the weights in `state`, because their memory is freed later. Once it has
        created its optimizers, it calls `optimizers` to load their states.

        `state[WEIGHTS]` is the result of the module's `state_dict`, which the script may have overridden; `weights` are
        the module's true weights. The framework restores `state[WEIGHTS]` as usual. Then, before the first batch,
        spotrun restores `weights`. `weights` is None if an earlier version of spotrun, which did not save them, made
        the checkpoint.
        """

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        Run the script's epoch-start hooks again after a resume, once for each of the first `epochs` epochs. The hooks
        may create parts of the model and optimizers, which a new process lacks. Their other effects do not matter,
        because spotrun restores the state afterwards.

        `training` is False if nothing is left to train. In that case, the framework has not called the script's hooks
        for the start of training, so call these hooks first.
        """

    def misfit(self) -> str:
        """
        Return the name of a part of the framework that has changed, so that the state given to `load` does not fit; ""
        if the state fits.
        """

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Train with `optimizers` from now on. If the framework cannot do this, `misfit` then returns the reason."""

    def load_metrics(self, metrics: State) -> None:
        """Restore the metrics that `dump_metrics` returned earlier on the same rank."""

    def enter(self) -> None:
        """Move the loop to the `place` that was given to `load`, so that the loop continues after the snapshot."""

    def load_file(self, path: str) -> None:
        """Start from the framework's own checkpoint file at `path`, even if the script names another file."""

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        """Make the loop call `hooks` from now on."""

    def close(self) -> None:
        """Restore the loop to its state before `open`. Idempotent."""
