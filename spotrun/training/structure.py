"""
Restores the model and its optimizers, after making sure that they have the same parts as in the snapshot.

A script may create parts of the model and of the optimizers late: in a start hook, at the beginning of an epoch, or in
a step. So a resumed process lacks these parts at first, and gets them in three stages. The start hooks run in every
process, and create their parts again. If a part is still missing, the epoch-start hooks are called, once for each epoch
that had begun. If the part is missing even then, it is copied from another part with the same structure. If there is no
such part, the training cannot be resumed, and ends with a message that names the missing part.
"""

from __future__ import annotations

from spotrun.training import weights
from spotrun.training.framework import OPTIMIZERS, WEIGHTS, Framework, State
from spotrun.training.image_memory import Memory
from spotrun.training.optimizer_parts import BY_NAME, Parts
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.weights import Misfit, Weights


class Structure:
    """
    The model and the optimizers that the resumed `state` describes. The constructor removes the entries that it uses
    from `state`.

    `described` is the result of `optimizer_parts.described` at the time of the snapshot. Snapshots of older versions of
    spotrun contain neither this description nor the names of their weights. On a resume from such a snapshot, the
    framework alone restores the model and the optimizers.

    Raises:
        Misfit: weights of the model's base differ from the checkpoint's.
    """

    def __init__(
        self, framework: Framework, state: State, described: list[State] | None, memory: Memory, epoch: int
    ) -> None:
        self._framework = framework
        self._epochs_begun = epoch + 1
        beside, by_name = state.pop(weights.BESIDE, None), memory.keep(state.pop(BY_NAME, None))
        weights.check_base((beside or {}).get("base", {}), framework.base)
        self.weights: Weights | None = None
        if beside:
            self.weights = weights.saved(state.get(WEIGHTS), beside, framework.module)
        self._parts = Parts(described, by_name, framework.module) if described else None
        self.optimizers = OptimizerStates(state.pop(OPTIMIZERS), memory, self._parts)

    def put_back(self, *, training: bool) -> None:
        """
        Restore the model and its optimizers. Call this once, after the script's start hooks have run. `training` is
        False if the checkpoint was made after the last step, and nothing is left to train.

        Raises:
            Misfit: the model or its optimizers differ from the snapshot's.
        """
        framework, parts = self._framework, self._parts
        if not self._fits() or (training and framework.misfit()):
            self._begin_epochs_again(training=training)
            if self.weights is not None and not self._fits():
                weights.copy_missing(framework.module, self.weights)
            if parts is not None:
                framework.exchange_optimizers(parts.made_as_they_were(framework.optimizers))
        if self.weights is not None:
            weights.put_back(framework.module, self.weights)
            self.weights = None
        self.optimizers.put_back(framework.optimizers)
        if training and (why := framework.misfit()):
            raise Misfit(why)

    def _begin_epochs_again(self, *, training: bool) -> None:
        try:
            self._framework.begin_epochs_again(self._epochs_begun, training=training)
        except Exception as error:
            raise Misfit(
                "model or optimizers differ from the checkpoint's, and on_train_epoch_start, which may make them,"
                f" cannot be called again: {type(error).__name__}: {error}"
            ) from error

    def _fits(self) -> bool:
        if self.weights is not None and not weights.fits(self._framework.module, self.weights):
            return False
        return self._parts is None or self._parts.are_kinds_of(self._framework.optimizers)
