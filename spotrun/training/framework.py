"""The port between spotrun and the framework that runs the training loop: the calls in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import nn
from torch.optim import Optimizer

from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.weights import Weights

State: TypeAlias = dict[str, Any]
Stage: TypeAlias = Literal["train", "validate"]

WEIGHTS = "state_dict"
OPTIMIZERS = "optimizer_states"
STEP = "global_step"
"""The entries that every framework's state has: the weights by name, one state per optimizer, the step count."""
SCHEDULERS = "lr_schedulers"
"""
Entry with the schedulers' states. Before a framework calls `load_state_dict`, it replaces the saved objects in this
entry and in OPTIMIZERS by the script's objects.
"""


class Problem(NamedTuple):
    """A reason why a resumed training would not be bit-identical, and advice for the user."""

    reason: str
    hint: str


class Framework(Protocol):
    """
    Reports the position of a training, and saves and restores its state.

    Epochs and batches count from 0. All ranks of a training make the same calls in the same order. Only `load`, and
    the restore that follows from it, may draw random numbers, change a counter or change a weight.

    The order of a fit:

    1. spotrun calls `problems`.
    2. On a resume, it calls `load`. On a fresh start, it calls `load_file` if there is a file to start from.
    3. It calls `open`.
    4. The framework calls `Hooks.built`.
    5. The framework restores its own state, and calls `Hooks.restore`, which on a resume calls `load_metrics`.
    6. The framework makes its loaders, and calls `Hooks.start`, which on a resume calls `enter`.
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
    way_out: str
    """Advice for a user whose resumed training has a different model or different optimizers than its checkpoint."""

    @property
    def seed(self) -> int:
        """The seed that the script gave to its generators; 0 if it gave none."""

    def problems(self) -> Sequence[Problem]:
        """Return all reasons why spotrun cannot resume this training exactly. Called before every other method."""

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
        """True if gradients may be pending at a boundary. Snapshots then hold these gradients."""

    @property
    def base(self) -> Mapping[str, str]:
        """
        Digests, by name, of the weights that the script makes in each process and never trains. No image holds these
        weights. Empty if all weights are trained.
        """

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """Modules that hold averages of `module`, by constant names."""

    @property
    def own_attributes(self) -> frozenset[str]:
        """Names of the module's attributes that belong to the framework, not to the script."""

    @property
    def own_objects(self) -> Sequence[object]:
        """
        Objects of the framework that a script may hold and that training changes. The framework's own checkpoint
        contains the part of their state that matters.
        """

    def roots(self) -> Mapping[str, object]:
        """
        Objects besides `module` that the script gave to the training, by constant names: callbacks, and loggers of its
        own classes.
        """

    def lost(self) -> Sequence[UntrackedChange]:
        """Return all changes that no image holds, as far as the framework knows."""

    @property
    def loggers(self) -> Sequence[Any]:
        """The loggers that this process writes to; empty on ranks other than 0."""

    # --- where it is

    @property
    def epoch(self) -> int:
        """The current epoch; after its end, the next epoch."""

    @property
    def batch(self) -> int:
        """The number of batches of this epoch that have been trained."""

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
        """Return the newest value of each metric, without computing it."""

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Send `figures` to the loggers of libraries, and nowhere else. A name that the script itself logs keeps the
        script's value. Loggers of the script's own classes do not get the figures, because they may keep every value
        that they get.
        """

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        """Return the loaders in use, all of which `Hooks.exact` returned."""

    @property
    def cycles(self) -> bool:
        """True if training reads several loaders, and shorter loaders restart until the longest ends."""

    @property
    def passes_before(self) -> int:
        """
        The number of passes over the training data that this epoch has completed; 0 if an epoch has only one pass.
        """

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        """The epoch and batch at which a pass over the training data would begin now."""

    def restart_pass(self) -> None:
        """
        Replace the iterator over the training data by a new iterator that starts at `pass_begins_at`. Does nothing in a
        framework that makes the iterator only when it reads the first batch of a pass.
        """

    # --- its state

    def dump(self) -> State:
        """
        Return the framework's own checkpoint. It contains WEIGHTS (as the script's `state_dict` shows them), OPTIMIZERS
        and STEP. Its tensors are not copied.
        """

    def dump_rest(self) -> State:
        """
        Return the framework's state that `dump` does not contain. It is equal on all ranks, and always has the same
        names.
        """

    def dump_metrics(self) -> State:
        """Return this rank's counts and logged metrics so far."""

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        """
        Resume at `place`. `state` is an earlier `dump` without OPTIMIZERS, and `rest` an earlier `dump_rest`. The
        framework uses both when it restores itself. The framework must copy the weights, because their memory is freed
        later. Once it has its optimizers, the framework has `optimizers` load their states.

        `weights` are the module's own weights, and `state[WEIGHTS]` is the script's view of them. Whatever the
        framework restores from that view, spotrun restores the module's own weights before the first batch. `weights`
        is None if the spotrun version that saved the state did not save them.
        """

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        After a resume, rerun the script's epoch-start hooks for each of the first `epochs` epochs, because these hooks
        may make parts of the model and optimizers. The restore that follows undoes their other effects. Without
        `training`, nothing is left to train; then also call the script's hooks for the start of training, which have
        not run.
        """

    def misfit(self) -> str:
        """
        Name the part of the framework that has changed, so that the state given to `load` does not fit; "" if the state
        fits.
        """

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Train with `optimizers` from now on. If that is impossible, `misfit` names the reason afterwards."""

    def load_metrics(self, metrics: State) -> None:
        """Restore an earlier result of `dump_metrics` of the same rank."""

    def enter(self) -> None:
        """Move the loop to the `place` that was given to `load`, so that the loop continues after the snapshot."""

    def load_file(self, path: str) -> None:
        """Start from the framework's own checkpoint file at `path`, even if the script names another file."""

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        """Make the loop call `hooks` from now on."""

    def close(self) -> None:
        """Restore the loop to its state before `open`. Idempotent."""


class Hooks(Protocol):
    """
    Methods that a framework calls, each after the script's own callbacks and hooks for the same event have run.

    An epoch is `epoch_begins`, its batches, `epoch_closes`, the script's own epoch-end hooks, `epoch_ends`. A batch is
    `batch_begins`; `backward_begins` and `backward_ends` for each backward pass; `optimizer_steps` before each step of
    an optimizer; `batch_ends`; a validation if one is due; and `step_ends`.

    If the script owns the loop, its epoch code makes passes over data. Each pass begins with `pass_begins` and ends,
    after its last batch, with `pass_ends`. On a resume within a pass, the epoch's code that precedes the pass runs
    first, between `epoch_begins_again` and `epoch_begins`. Then `epoch_begins` undoes the effects of that code.
    """

    def exact(self, loader: Any, stage: Stage) -> Any:
        """
        Return the loader to read instead of `loader`. The seed and the training's place determine its order and
        position.
        """

    def loading(self, stage: Stage, epoch: int) -> AbstractContextManager[None]:
        """Return a context in which the framework makes loaders, perhaps by calling the script's own code."""

    def built(self) -> None:
        """
        The script has built the model, and nothing has been restored yet. If the script later copies the weights, or
        makes anything else from them, the result differs in a training that resumes.
        """

    def restore(self) -> None:
        """The framework has restored itself, so that spotrun may now load the framework's metrics."""

    def start(self) -> None:
        """Loaders and optimizers exist. Training begins next."""

    def epoch_begins_again(self) -> None:
        """
        The script's epoch code is about to be rerun. Restores only the Python state; `epoch_begins` restores the rest.
        """

    def epoch_begins(self) -> None: ...

    def pass_begins(self) -> None:
        """A pass begins. `exact` returned its loader, which is among `Framework.loaders` and still unread."""

    def pass_ends(self, *, boundary: bool) -> None:
        """
        The pass has no batch left. If this is a boundary, a resume can continue with the script's code after the pass.
        """

    def batch_begins(self) -> None: ...

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...

    def optimizer_steps(self) -> None:
        """An optimizer is about to change weights."""

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        """The batch is trained and counted; its validation, if due, comes next. `boundary`: no gradient is pending."""

    def step_ends(self) -> None:
        """A boundary after a batch and its validation, if one was due. More batches of this epoch follow."""

    def validation_batch_ends(self) -> None: ...

    def epoch_closes(self) -> None:
        """The batches and validations of an epoch are done; its end hooks come next."""

    def epoch_validates(self) -> None:
        """
        The script's own epoch-end hooks are done, and a validation follows. A framework that resumes here calls this
        method again, but not those hooks.
        """

    def epoch_ends(self) -> None:
        """The epoch is done. `Framework.epoch` is already the next epoch."""

    def finish(self) -> None:
        """Training is done, including the script's end hooks. Idempotent."""
