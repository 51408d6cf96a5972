"""The port between training and the framework that runs the loop: what each calls on the other."""

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
"""The three entries that every framework's state has: weights by name, one state an optimizer, the count of steps."""
SCHEDULERS = "lr_schedulers"
"""The entry of schedulers. Below it and OPTIMIZERS, a framework gives `load_state_dict` the script's own objects."""


class Problem(NamedTuple):
    """A reason why a resumed training would not be bit-identical, and what the user can do about it."""

    reason: str
    hint: str


class Framework(Protocol):
    """
    One training as its framework knows it: its place, and the state to save.

    Epochs and batches count from 0. All ranks of a training make the same calls in the same order. Nothing here may
    draw random numbers, move a counter or change a weight, except for `load` and what follows from it.

    A fit begins in this order: `problems`; `load` or, on a fresh start, perhaps `load_file`; `open`. Then the framework
    calls `Hooks.built`; restores itself and calls `Hooks.restore`, which calls `load_metrics` after a resume; makes its
    loaders; and calls `Hooks.start`, which calls `enter` after a resume. `close` is last.
    """

    # --- what it is

    name: str
    """The package, whose version is `version`: in the first message to the agent and in each checkpoint."""
    version: str
    rank: int
    ranks: int
    """Number of processes that train together."""
    way_out: str
    """Advice for a user whose resumed training has other models and optimizers than its checkpoint."""

    @property
    def seed(self) -> int:
        """The seed that the script has given to its generators, 0 if none."""

    def problems(self) -> Sequence[Problem]:
        """Return all reasons why spotrun cannot resume this training exactly; the first call of all."""

    # --- what is trained

    @property
    def module(self) -> nn.Module: ...

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...

    @property
    def steps_optimizers(self) -> bool:
        """True if `Hooks.optimizer_steps` comes before each step of an optimizer."""

    @property
    def leaves_gradients(self) -> bool:
        """True if gradients may be pending at a boundary; then they are carried."""

    @property
    def base(self) -> Mapping[str, str]:
        """
        Unchanged weights that the script makes in each process, by name, with a digest of each. No image holds them.
        Empty where all weights are trained.
        """

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """Modules besides `module` that hold averages of it, by names that stay the same."""

    @property
    def own_attributes(self) -> frozenset[str]:
        """Names of the module's attributes that belong to the framework and not to the script."""

    @property
    def own_objects(self) -> Sequence[object]:
        """
        Objects of the framework that a script may hold, which change as it trains. The framework carries by itself what
        matters of them.
        """

    def roots(self) -> Mapping[str, object]:
        """
        Objects besides `module` that the script gave to the training, by names that stay the same: callbacks, and
        loggers of its own classes.
        """

    def lost(self) -> Sequence[UntrackedChange]:
        """Return the changes that the framework itself sees and no image holds; each time."""

    @property
    def loggers(self) -> Sequence[Any]:
        """The loggers that this process writes to: none on ranks other than 0."""

    # --- where it is

    @property
    def epoch(self) -> int:
        """The epoch that runs; after its end the next one."""

    @property
    def batch(self) -> int:
        """The number of batches of this epoch that were trained on."""

    @property
    def batches(self) -> int:
        """The number of batches of a whole epoch, 0 if that is unknown."""

    @property
    def epochs(self) -> int:
        """The maximum number of epochs, 0 if that is unknown."""

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
        """The loss of the newest batch, None if there is none."""

    def metrics(self) -> Mapping[str, Any]:
        """Return the last known value of each metric, without computing any for this call."""

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Give `figures` to the loggers of libraries and to nothing else; a name that the script uses stays its own. A
        logger of the script's class may keep all that it is given.
        """

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        """Return the loaders in use, each of which came out of `Hooks.exact`."""

    @property
    def cycles(self) -> bool:
        """True if a short one of several training loaders begins again until the longest ends."""

    @property
    def passes_before(self) -> int:
        """The number of passes over training data that the epoch has behind it, where it may have several."""

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        """Epoch and batch of the first batch of a pass over the training data that would begin now."""

    def restart_pass(self) -> None:
        """
        Throw away the iterator over the training data and begin a new one at `pass_begins_at`. A framework whose passes
        begin with their first batch, and not before, has nothing to do.
        """

    # --- its state

    def dump(self) -> State:
        """
        Return the framework's own checkpoint, with WEIGHTS as the script shows them, OPTIMIZERS and STEP in it. Tensors
        are the living ones.
        """

    def dump_rest(self) -> State:
        """Return what that checkpoint leaves out and is the same on all ranks, under names that never change."""

    def dump_metrics(self) -> State:
        """Return what this rank has counted and logged so far."""

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        """
        Resume at `place`. `state` is an earlier `dump` without OPTIMIZERS, and `rest` holds what `dump_rest` gave. The
        framework takes them when it restores itself, and copies the weights, whose memory goes away. `optimizers`
        begins to load when the framework has its optimizers.

        `state[WEIGHTS]` is what the script showed of `weights`, the module's own, which are restored before the first
        batch whatever this makes of them. They are None for a state from before they were saved.
        """

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        Call the script's hooks of the beginning of each of the first `epochs` epochs again after a resume, as they may
        make parts of the model and optimizers. Their other effects are undone by what is restored after this. Without
        `training` nothing is left to train, and the hooks of the beginning of training have yet to be called too.
        """

    def misfit(self) -> str:
        """Return which of the framework's own parts changed, so that `load`'s state does not fit; "" if none did."""

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Train with these from now on, or report in `misfit` why not."""

    def load_metrics(self, metrics: State) -> None:
        """Restore a `dump_metrics` of the same rank."""

    def enter(self) -> None:
        """Put the loop where `load` said, so that the next thing it does is what came after the snapshot."""

    def load_file(self, path: str) -> None:
        """Begin with the framework's own checkpoint file at `path`, whatever the script says."""

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        """Let the loop call `hooks` from now on."""

    def close(self) -> None:
        """Restore the loop as it was. Idempotent."""


class Hooks(Protocol):
    """
    Methods that a framework calls, each after every callback and hook of the script had its turn.

    An epoch is `epoch_begins`, its batches, `epoch_closes`, the script's own hooks of its end, `epoch_ends`. A batch is
    `batch_begins`, for each backward pass `backward_begins` and `backward_ends`, before each step of an optimizer
    `optimizer_steps`, then `batch_ends`, its validation if one is due, and `step_ends`.

    Where the script owns the loop, its code of an epoch begins passes over data, each with `pass_begins` and, once no
    batch is left, `pass_ends`. A resume within a pass runs again what the script has before it in the epoch, between
    `epoch_begins_again` and `epoch_begins`, which undoes it.
    """

    def exact(self, loader: Any, stage: Stage) -> Any:
        """Return the loader to read instead of `loader`, with the order and position that seed and place give."""

    def loading(self, stage: Stage, epoch: int) -> AbstractContextManager[None]:
        """Return a context for the making of loaders, which may be the script's own code."""

    def built(self) -> None:
        """
        Note that the model is as the script has built it. Nothing has been restored: whatever the script makes from its
        weights later, such as a copy of them, is another one in a training that resumes.
        """

    def restore(self) -> None:
        """Note that the framework has restored itself; its metrics may be loaded now."""

    def start(self) -> None:
        """Note that loaders and optimizers exist. Training begins next."""

    def epoch_begins_again(self) -> None:
        """Restore the Python state; weights and all else come with `epoch_begins`."""

    def epoch_begins(self) -> None: ...

    def pass_begins(self) -> None:
        """Note a pass: its loader came out of `exact`, is among `Framework.loaders`, and is still unread."""

    def pass_ends(self, *, boundary: bool) -> None:
        """Note that no batch is left. At a boundary a resume comes here, and the script goes on behind the pass."""

    def batch_begins(self) -> None: ...

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...

    def optimizer_steps(self) -> None:
        """Note that an optimizer is about to write."""

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        """
        Note that the batch is trained and counted; its validation, if due, comes next. `boundary`: no gradient is
        pending.
        """

    def step_ends(self) -> None:
        """Do as `batch_ends` on a boundary, with its validation done, and with more batches of this epoch to come."""

    def validation_batch_ends(self) -> None: ...

    def epoch_closes(self) -> None:
        """Note that the batches and validations of an epoch are done; its end hooks come next."""

    def epoch_validates(self) -> None:
        """
        Note that the script's own hooks of the epoch's end are done, and a validation comes after them. A framework
        that resumes there calls this again, and not those hooks.
        """

    def epoch_ends(self) -> None:
        """Note that all of the epoch is done; `Framework.epoch` is the next one."""

    def finish(self) -> None:
        """Note that training is done, the script's hooks of its end included. Idempotent."""
