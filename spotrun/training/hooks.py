"""The port (interface) by which a framework tells spotrun what its loop does."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

Stage: TypeAlias = Literal["train", "validate"]


class Hooks(Protocol):
    """
    Methods that a framework calls, each after the script's own callbacks and hooks for the same event.

    The calls of an epoch: `epoch_begins`; the calls of each batch; `epoch_closes`; then, after the script's own
    epoch-end hooks, `epoch_ends`.

    The calls of a batch: `batch_begins`; `backward_begins` and `backward_ends` for each backward pass;
    `optimizer_steps` before each step of an optimizer; `batch_ends`; then, after the validation if one is due,
    `step_ends`.

    If the script has its own training loop, its code for an epoch makes one or more passes over data. The framework
    calls `pass_begins` before the first batch of a pass, and `pass_ends` after its last batch. After a resume within a
    pass, the script's code before that pass is run again. The framework then calls `epoch_begins_again` before this
    code, and `epoch_begins` after it. `epoch_begins` undoes the effects of the code, because the snapshot already
    contains them.
    """

    def exact(self, loader: Any, stage: Stage) -> Any:
        """
        Return an exact loader, which the framework reads instead of `loader`. Its order depends on the seed, and its
        next pass begins at the training's position.
        """

    def loading(self, stage: Stage, epoch: int) -> AbstractContextManager[None]:
        """
        Return a context manager for the time in which the framework creates loaders, perhaps by calling the script's
        code.
        """

    def built(self) -> None:
        """
        Called when the script has built the model, before anything is restored.

        This is the last moment at which the weights of a resumed training are the same as those of a fresh one. The
        same is true of copies of the weights, and of anything else that the script computes from them.
        """

    def restore(self) -> None:
        """Called when the framework has restored itself. spotrun then loads the framework's metrics."""

    def start(self) -> None:
        """Called when the loaders and optimizers exist, just before training begins."""

    def epoch_begins_again(self) -> None:
        """
        Called before the script's code for an epoch is rerun. Restores the Python state. `epoch_begins` restores all
        other state.
        """

    def epoch_begins(self) -> None: ...

    def pass_begins(self) -> None:
        """
        Called when a pass begins, before its first batch is read. Its loader was returned by `exact`, and
        `Framework.loaders` includes it.
        """

    def pass_ends(self, *, boundary: bool) -> None:
        """
        Called after the pass's last batch. If `boundary` is True, a snapshot can be taken now. A training that resumes
        from it continues with the script's code after the pass.
        """

    def batch_begins(self) -> None: ...

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...

    def optimizer_steps(self) -> None:
        """Called when an optimizer is about to change weights."""

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        """
        Called when the batch has been trained on and counted. `boundary` is True if an optimizer has used all
        gradients, and `validation_due` if a validation follows.
        """

    def step_ends(self) -> None:
        """
        Called at a boundary after a batch, and after the validation if one was due. More batches of this epoch follow.
        """

    def validation_batch_ends(self) -> None: ...

    def epoch_closes(self) -> None:
        """Called when the batches and validations of an epoch are done, before the script's epoch-end hooks."""

    def epoch_validates(self) -> None:
        """
        Called before a validation at the end of an epoch, after the script's own epoch-end hooks. If a training resumes
        at this point, the framework calls this method again, but not the epoch-end hooks.
        """

    def epoch_ends(self) -> None:
        """Called when the epoch is done. `Framework.epoch` already gives the next epoch."""

    def finish(self) -> None:
        """Called when training is done, and the script's end hooks have run. Idempotent."""
