"""
`Loop`: exact resume for a script that owns its loop.

    loop = Loop(seed=1, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(best=0.0)
    for epoch in loop.epochs(10):
        for batch in loop.batches(train):
            …

Without an agent, the script trains with the same data order and the same random numbers, and `Loop` writes nothing
unless `Loop(local="folder/")` names a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from spotrun.loop.adapter import LoopFramework
from spotrun.loop.frames import Frames
from spotrun.loop.given import Given
from spotrun.loop.passes import Pass, Passes
from spotrun.training import unsupported
from spotrun.training.fit import claim
from spotrun.training.session import alone

_running: list[Passes] = []
"""The `Passes` of the loop that is running in this process; empty if none is."""


class Loop:
    """
    All objects that a training needs to continue, by name: models, optimizers, schedulers, scalers, averages, and any
    object of the script whose attributes are part of the state. `prepared` is a Fabric or an Accelerator.

    Code before the loop runs in every process; code inside the loop runs once. If a script resumes within an epoch, the
    epoch's code before its batches runs again, and then spotrun undoes the effect of that code.

    Without an agent, a training is saved in the folder `local`, if given, and resumed from there.

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

    def state(self, **values: Any) -> Any:
        """Return a namespace for the script's own counts. Checkpoints include it. `values` are the initial values."""
        for name, value in values.items():
            setattr(self._state, name, value)
        return self._state

    def epochs(self, count: int) -> Numbers:
        """Return those of `count` epochs that remain, numbered from 0. A second call starts another training."""
        return Numbers(self, count, count, Passes.epochs)

    def batches(self, loader: Any) -> Pass:
        """Return the remaining batches of `loader` in this epoch."""
        return Pass(self._open("batches"), loader, lambda _, batch: batch, counts=False)

    def enumerate(self, loader: Any, start: int = 0) -> Pass:
        """Return the remaining batches of `loader` in this epoch, each with its number in the pass."""
        return Pass(self._open("enumerate"), loader, lambda number, batch: (start + number, batch), counts=True)

    def steps(self, count: int) -> Any:
        """
        Return step numbers, for a script that draws its batches itself. The script calls this within an epoch, or
        without epochs, as one long epoch.
        """
        if self._passes is not None:
            return Pass(self._passes, range(count), lambda number, _: number, counts=True)
        return Numbers(self, count, 1, lambda passes: _steps(passes, count))

    def validation(self, loader: Any) -> Iterator[Any]:
        """
        Yield the batches of `loader`, in the same order despite interruptions. Snapshots may be made between batches.
        """
        return iter(loader) if self._passes is None else self._passes.validation(loader)

    def log(self, **figures: Any) -> None:
        """Log numbers of the training, by name, for `spotrun status`, the report and the ledger."""
        self._figures |= {name: float(value) for name, value in figures.items()}

    def _open(self, name: str) -> Passes:
        if self._passes is None:
            unsupported.reject(
                claim() or alone(),
                f"loop.{name} is called outside of loop.epochs",
                "for epoch in loop.epochs(10): for batch in loop.batches(loader): …",
            )
        return self._passes

    def begin(self, frames: Frames, epochs: int) -> Passes:
        if _running:
            _running[0].refuse(
                "a loop begins while another one runs",
                "train one after the other, or give all models and optimizers to one Loop",
            )
        framework = LoopFramework(self._given, self._state, frames, seed=self._seed, epochs=epochs)
        framework.figures = self._figures = {}
        passes = self._passes = Passes(framework, self._local)
        self._figures = framework.figures
        _running.append(passes)
        return passes

    def end(self) -> None:
        self._passes = None
        _running.clear()


class Numbers:
    """The numbers of a training's epochs or steps. Training runs while these are iterated, which works only once."""

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
    """Yield the steps of a training that is one epoch."""
    for _ in passes.epochs():
        for number, _ in passes.numbered(range(count)):
            yield number
