"""The port between training and the framework that runs the loop: what each asks of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import nn
from torch.optim import Optimizer

from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Place
from spotrun.training.python_state.encoding import Lost
from spotrun.training.weights import Weights

State: TypeAlias = dict[str, Any]
Stage: TypeAlias = Literal["train", "validate"]

WEIGHTS = "state_dict"
OPTIMIZERS = "optimizer_states"
STEP = "global_step"
"""The three entries that every framework's state has: weights by name, one state an optimizer, the count of steps."""
SCHEDULERS = "lr_schedulers"
"""Of what is below this entry and OPTIMIZERS, a framework gives `load_state_dict` the script's own objects again."""


class Problem(NamedTuple):
    """Something that keeps a resumed training from being bit-identical, and what the user can do about it."""

    reason: str
    hint: str


class Framework(Protocol):
    """
    One training as its framework knows it: where it is, and what has to be saved.

    Epochs and batches count from 0. All ranks of a training make the same calls in the same order. Nothing here may
    draw random numbers, move a counter or change a weight, except for `load` and what follows from it.

    A fit begins in this order: `problems`; `load` or, on a fresh start, perhaps `load_file`; `open`. Then the framework
    calls `Hooks.built`; restores itself and calls `Hooks.restore`, in which `load_metrics` is called after a resume;
    makes its loaders; and calls `Hooks.start`, in which `enter` is called after a resume. `close` is last.
    """

    # --- what it is

    name: str
    """The package, and `version` is its version: in the first message to the agent and in each checkpoint."""
    version: str
    rank: int
    ranks: int
    """How many processes train together."""
    way_out: str
    """What the user can do if the models and optimizers of a training that resumes are not those of its checkpoint."""

    @property
    def seed(self) -> int:
        """What the script has seeded its generators with, 0 if it has not."""

    def problems(self) -> Sequence[Problem]:
        """Everything about this training that spotrun cannot resume exactly, before anything else is called."""

    # --- what is trained

    @property
    def module(self) -> nn.Module: ...

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...

    @property
    def steps_optimizers(self) -> bool:
        """`Hooks.optimizer_steps` comes before each step of an optimizer."""

    @property
    def leaves_gradients(self) -> bool:
        """Gradients may be pending at a boundary, and are carried."""

    @property
    def base(self) -> Mapping[str, str]:
        """
        Weights that the script makes in each process and nobody has written to since, by name, with a digest of each.
        No image holds them. Empty where all weights are trained.
        """

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """Modules beside `module` that hold averages of it, by names that stay the same."""

    @property
    def own_attributes(self) -> frozenset[str]:
        """Names of the module's attributes that belong to the framework and not to the script."""

    @property
    def own_objects(self) -> Sequence[object]:
        """
        Objects of the framework that a script may hold, which change as it trains. It carries by itself what of them
        matters.
        """

    def roots(self) -> Mapping[str, object]:
        """
        Objects besides `module` that the script gave to the training, by names that stay the same: callbacks, and
        loggers of its own classes.
        """

    def lost(self) -> Sequence[Lost]:
        """What the framework itself sees change, and no image holds; each time."""

    @property
    def loggers(self) -> Sequence[Any]:
        """The loggers that this process writes to: none on ranks other than 0."""

    # --- where it is

    @property
    def epoch(self) -> int:
        """The epoch that runs; after its end the next one."""

    @property
    def batch(self) -> int:
        """How many batches of this epoch were trained on."""

    @property
    def batches(self) -> int:
        """How many batches a whole epoch has, 0 if that is unknown."""

    @property
    def epochs(self) -> int:
        """How many epochs there will be at most, 0 if that is unknown."""

    @property
    def step(self) -> int:
        """How many optimizer steps were done, in all epochs."""

    @property
    def ends_epoch(self) -> bool:
        """The newest batch is the last of its epoch."""

    @property
    def is_done(self) -> bool:
        """Nothing is left to train."""

    @property
    def loss(self) -> Any:
        """The loss of the newest batch, None if there is none."""

    def metrics(self) -> Mapping[str, Any]:
        """The last known value of each metric, computed by nobody for this call."""

    def log(self, figures: Mapping[str, float]) -> None:
        """
        Give `figures` to the loggers of libraries and to nothing else; a name that the script uses stays its own. A
        logger of the script's class may keep all that it is given.
        """

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        """The loaders in use, each of which came out of `Hooks.exact`."""

    @property
    def cycles(self) -> bool:
        """Of several training loaders, a short one begins again until the longest ends."""

    @property
    def passes_before(self) -> int:
        """How many passes over training data the epoch has behind it, where an epoch may have several."""

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        """Epoch and batch with which a pass over the training data begins that would begin now."""

    def restart_pass(self) -> None:
        """
        Throw away the iterator over the training data and begin a new one at `pass_begins_at`. A framework whose passes
        begin with their first batch, and not before, has nothing to do.
        """

    # --- its state

    def dump(self) -> State:
        """
        The framework's own checkpoint, with WEIGHTS as the script shows them, OPTIMIZERS and STEP in it. Tensors are
        the living ones.
        """

    def dump_rest(self) -> State:
        """What that checkpoint leaves out and is the same on all ranks, under names that stay the same for good."""

    def dump_metrics(self) -> State:
        """What this rank has counted and logged so far."""

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Place, optimizers: OptimizerStates
    ) -> None:
        """
        Resume at `place`. `state` is an earlier `dump` without OPTIMIZERS, and `rest` holds what `dump_rest` gave. The
        framework takes them when it restores itself, and copies the weights, whose memory goes away. `optimizers`
        begins to load when the framework has its optimizers.

        `state[WEIGHTS]` is what the script showed of `weights`, the module's own, which are put back before the first
        batch whatever this makes of them. They are None for a state from before they were saved.
        """

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """
        After a resume: call the script's hooks of the beginning of each of the first `epochs` epochs once more, as they
        may make parts of the model and optimizers. What else they do is undone by what is put back after this. Without
        `training` nothing is left to train, and the hooks of the beginning of training have yet to be called too.
        """

    def misfit(self) -> str:
        """What of the framework's own is not what it was, so that the state of `load` is not its; "" if nothing is."""

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Train with these from now on, or say in `misfit` why not."""

    def load_metrics(self, metrics: State) -> None:
        """Restore a `dump_metrics` of the same rank."""

    def enter(self) -> None:
        """Put the loop where `load` said, so that the next thing it does is what came after the snapshot."""

    def load_file(self, path: str) -> None:
        """Begin with the framework's own checkpoint file at `path`, whatever the script says."""

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        """From now on the loop calls `hooks`."""

    def close(self) -> None:
        """The loop is as it was. Idempotent."""


class Hooks(Protocol):
    """
    What a framework calls, each after every callback and hook of the script had its turn.

    An epoch is `epoch_begins`, its batches, `epoch_closes`, the script's own hooks of its end, `epoch_ends`. A batch is
    `batch_begins`, for each backward pass `backward_begins` and `backward_ends`, before each step of an optimizer
    `optimizer_steps`, then `batch_ends`, its validation if one is due, and `step_ends`.

    Where the script owns the loop, its code of an epoch begins passes over data, each with `pass_begins` and, once no
    batch is left, `pass_ends`. A resume within a pass runs what the script has before it in the epoch once more, in
    between of `epoch_begins_again` and `epoch_begins`, which undoes it.
    """

    def exact(self, loader: Any, stage: Stage) -> Any:
        """What is to be read instead of `loader`, with the order and the position that the seed and the place give."""

    def loading(self, stage: Stage, epoch: int) -> AbstractContextManager[None]:
        """Around the making of loaders, which may be the script's own code."""

    def built(self) -> None:
        """
        The model is as the script has built it. Nothing has been restored: whatever the script makes from its weights
        later, such as a copy of them, is another one in a training that resumes.
        """

    def restore(self) -> None:
        """The framework has restored itself; its metrics may be loaded now."""

    def start(self) -> None:
        """Loaders and optimizers are there. Training begins next."""

    def epoch_begins_again(self) -> None:
        """The Python state is there; weights and all else come with `epoch_begins`."""

    def epoch_begins(self) -> None: ...

    def pass_begins(self) -> None:
        """The loader of the pass came out of `exact`, and is among `Framework.loaders`. Nothing is read of it yet."""

    def pass_ends(self, *, boundary: bool) -> None:
        """No batch is left. At a boundary a resume comes here, and the script goes on behind the pass."""

    def batch_begins(self) -> None: ...

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...

    def optimizer_steps(self) -> None:
        """An optimizer is about to write."""

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        """
        The batch is trained and counted; its validation, if due, comes next. `boundary`: no gradient is pending.
        """

    def step_ends(self) -> None:
        """As `batch_ends` on a boundary, with its validation done, and with more batches of this epoch to come."""

    def validation_batch_ends(self) -> None: ...

    def epoch_closes(self) -> None:
        """The batches and validations of an epoch are done; its end hooks come next."""

    def epoch_validates(self) -> None:
        """
        The script's own hooks of the epoch's end are done, and a validation comes after them. A framework that resumes
        there calls this again, and not those hooks.
        """

    def epoch_ends(self) -> None:
        """All that belongs to the epoch is done; `Framework.epoch` is the next one."""

    def finish(self) -> None:
        """Training is done, the script's hooks of its end included. Idempotent."""
