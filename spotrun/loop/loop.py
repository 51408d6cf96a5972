"""
Defines `Loop`, which makes a script's own training loop exactly resumable.

    loop = Loop(seed=1, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(best=0.0)
    for epoch in loop.epochs(10):
        for batch in loop.batches(train):
            …

If the script is started without an agent, it trains with the same data order and the same random numbers as under an
agent. But then `Loop` saves nothing, unless `Loop(local="folder/")` names a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from spotrun.loop.adapter import LoopFramework
from spotrun.loop.cycle import Cycle
from spotrun.loop.frames import Frames
from spotrun.loop.given import Given
from spotrun.loop.passes import Pass, Passes
from spotrun.training import unsupported
from spotrun.training.data import kept_iterators
from spotrun.training.fit import claim
from spotrun.training.session import alone

kept_iterators.install()

_running: list[Passes] = []
"""The `Passes` of the loop that is running in this process; empty if no loop is running."""


class Loop:
    """
    A training loop that can be resumed exactly.

    The script passes all objects that the training needs to continue, each under a name: models, optimizers,
    schedulers, scalers, averages, and any of its own objects whose attributes are part of the state. `prepared` is a
    Fabric or an Accelerator.

    When a training resumes, a new process runs the script from its first line, so code before the loop runs in every
    process. The loop continues at the snapshot, so code inside the loop runs only once for each epoch and batch. There
    is one exception: if the snapshot was made within an epoch, the code between the start of that epoch and its first
    batch runs again. After that, spotrun restores the state from the snapshot, which undoes the effects of this code.

    Without an agent, the training is saved in the folder `local` and resumed from there. If `local` is not given
    either, nothing is saved.

    Raises, when a loop begins:
        TrainingUnsupported: this training cannot be resumed exactly; the hint says what to change.
    """

    def __init__(self, prepared: Any = None, /, *, seed: int = 0, local: str | None = None, **given: Any) -> None:
        self._given = Given(prepared, given)
        self._seed = seed
        self._local = local
        self._state = SimpleNamespace()
        self._passes: Passes | None = None
        self._figures: dict[str, Any] = {}
        self._cycles: list[Cycle] = []

    def state(self, **values: Any) -> Any:
        """
        Return a namespace for values that the script itself counts or compares. `values` are their initial values.
        Checkpoints include the namespace.
        """
        for name, value in values.items():
            setattr(self._state, name, value)
        return self._state

    def epochs(self, count: int) -> Numbers:
        """
        Return the numbers of the epochs that remain to be trained, in a training of `count` epochs. A new training
        begins with epoch 0, and a resumed one with the epoch in which it was interrupted. After the script's loop over
        these numbers has ended, another call of `epochs` starts another training.
        """
        return Numbers(self, count, count, Passes.epochs)

    def batches(self, loader: Any) -> Pass:
        """Return the remaining batches of `loader` in this epoch."""
        return Pass(self._open("batches"), loader, lambda _, batch: batch, counts=False)

    def enumerate(self, loader: Any, start: int = 0) -> Pass:
        """
        Return the remaining batches of `loader` in this epoch, each with its number. Numbers count from `start` at the
        first batch of the pass, even after a resume.
        """
        return Pass(self._open("enumerate"), loader, lambda number, batch: (start + number, batch), counts=True)

    def steps(self, count: int) -> Any:
        """
        Return the numbers of the steps that remain to be trained, out of `count` steps. Use this in a script that draws
        its batches itself.

        Within an epoch of `Loop.epochs`, the steps form one pass of that epoch. In a script that does not use epochs,
        all steps form a single epoch.
        """
        if self._passes is not None:
            return Pass(self._passes, range(count), lambda number, _: number, counts=True)
        return Numbers(self, count, 1, lambda passes: _steps(passes, count))

    def micro_batches(self, batch: Any = None) -> Iterator[Any]:
        """
        Yield the parts of `batch` that this process trains, each before a backward pass. `batch` comes from `batches`
        or `enumerate`. After the last part, each parameter's gradient is the mean over the whole batch, with the same
        bits for any number of processes.

        If the job is elastic, the batch has a part for each virtual rank. Otherwise, the whole batch is the only part.
        Without `batch`, yield the number of each part, for a script that draws its batches itself.
        """
        return self._open("micro_batches").micro_batches(batch)

    def mean(self, value: Any) -> Any:
        """
        Return a tensor with the mean of `value`, such as the loss, over all parts of the batch. Call this in each of
        the `micro_batches`. The tensor is NaN until the last of them has ended.
        """
        return self._open("mean").mean(value)

    def cycle(self, loader: Any) -> Cycle:
        """
        Return an endless iterator over the batches of `loader`, for further data of the training, such as unlabelled
        samples: `batch = next(it)`. Call this before `epochs` or `steps`. Checkpoints include the iterator's place.
        """
        if self._passes is not None:
            self._passes.refuse(
                "loop.cycle was called while the loop was running",
                "call it before the loop: it = loop.cycle(loader); within the loop: batch = next(it)",
            )
        self._cycles.append(Cycle(loader))
        return self._cycles[-1]

    def validation(self, loader: Any) -> Iterator[Any]:
        """
        Yield the batches of `loader` for validation. An interruption does not change their order. spotrun may make a
        snapshot after each batch.
        """
        return iter(loader) if self._passes is None else self._passes.validation(loader)

    def log(self, **figures: Any) -> None:
        """Log named figures of the training, such as the loss, for `spotrun status`, the report and the ledger."""
        self._figures |= {name: float(value) for name, value in figures.items()}

    def _open(self, name: str) -> Passes:
        if self._passes is None:
            unsupported.reject(
                claim() or alone(),
                f"loop.{name} was called outside of loop.epochs",
                "for epoch in loop.epochs(10): for batch in loop.batches(loader): …",
            )
        return self._passes

    def begin(self, frames: Frames, epochs: int) -> Passes:
        if _running:
            _running[0].refuse(
                "a loop was started while another one was running",
                "train one after the other, or give all models and optimizers to one Loop",
            )
        framework = LoopFramework(self._given, self._state, frames, self._cycles, seed=self._seed, epochs=epochs)
        framework.figures = self._figures = {}
        passes = self._passes = Passes(framework, self._local)
        self._figures = framework.figures
        _running.append(passes)
        return passes

    def end(self) -> None:
        self._passes = None
        _running.clear()


class Numbers:
    """
    The numbers of the epochs or steps of one training. The training begins and ends with the script's iteration over
    them, which can be done only once.
    """

    def __init__(self, loop: Loop, count: int, epochs: int, numbers: Callable[[Passes], Iterator[int]]) -> None:
        self._loop = loop
        self._count = count
        self._epochs = epochs
        self._numbers = numbers

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        passes = self._loop.begin(Frames(), self._epochs)
        try:
            yield from self._numbers(passes)
        finally:
            self._loop.end()


def _steps(passes: Passes, count: int) -> Iterator[int]:
    """Yield the step numbers of a training that has a single epoch."""
    for _ in passes.epochs():
        for number, _ in passes.numbered(range(count)):
            yield number
