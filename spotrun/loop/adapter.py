"""Implements the interface `Framework` for one fit of a script that has its own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from torch import distributed, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from spotrun.loop import prepared
from spotrun.loop.cycle import Cycle
from spotrun.loop.frames import Frames
from spotrun.loop.given import Given
from spotrun.training.framework import OPTIMIZERS, SCHEDULERS, STEP, WEIGHTS, Problem, State
from spotrun.training.hooks import Hooks, Stage
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.place import Boundary
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.stateful_objects import load_scaler
from spotrun.training.revival import revived
from spotrun.training.taps import Taps
from spotrun.training.tensors import owned
from spotrun.training.weights import Weights
from spotrun.version import __version__

FROM_EPOCH = (
    "a local variable that the beginning of the epoch computes from values that change within the epoch; keep it in "
    "loop.state(…)"
)


class LoopFramework:
    """
    One fit. passes.py advances its counters when the script reads batches.

    `epoch` and `step` count the completed epochs and steps. `batch` counts the batches that were completed in the
    current pass over the data or, between two passes, in the previous pass. `passes_before` counts the passes that were
    completed in this epoch.

    If optimizers step several times in one batch, these count as one step.
    """

    name, version = "loop", __version__
    way_out = "give Loop the same models, optimizers and data in each process, with all their parts before the loop"
    steps_optimizers = True
    takes_whole_batches = False
    repeats_epoch_begins = False
    leaves_gradients = True
    averages: Mapping[str, nn.Module] = MappingProxyType({})
    base: Mapping[str, str] = MappingProxyType({})
    own_attributes: frozenset[str] = frozenset()
    cycles = False
    loss: Any = None

    def __init__(
        self,
        given: Given,
        state: SimpleNamespace,
        frames: Frames,
        cycles: Sequence[Cycle] = (),
        *,
        seed: int,
        epochs: int,
    ) -> None:
        met = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if met else 0
        self.ranks = distributed.get_world_size() if met else 1
        self.given, self.frames = given, frames
        self.own_objects: Sequence[Cycle] = cycles
        self.module: nn.Module = given.module
        self.optimizers = list(given.optimizers.values())
        self.seed = seed
        self.epochs = epochs
        self.epoch = self.batch = self.batches = self.step = self.passes_before = 0
        self.ends_epoch = self.is_done = self.stepped = False
        self.figures: dict[str, Any] = {}
        self.train: list[Any] = []
        self.validate: list[Any] = []
        self.entering: Boundary | None = None
        self.entering_pass = self.entering_batches = 0
        self.script_state = state
        self.check_step: Callable[[], None] | None = None
        self._roots = {"state": state, "given": given.roots, frames.name: SimpleNamespace(**self._variables())}
        self._script = Script.of_this_process()
        self._loaded: State | None = None
        self._saved_figures: dict[str, Any] = {}
        self._misfit = ""
        self._before_pass: dict[str, str] = {}
        self._other: list[UntrackedChange] = []
        self._handles: list[Any] = []
        self._taps = Taps()

    def _variables(self) -> dict[str, Any]:
        """
        Return the local variables of the function that runs the loop. If a variable holds a loader, add the loader's
        dataset, because the dataset may not be in a variable of its own.
        """
        found = dict(self.frames.variables())
        loaders = {name: prepared.loader_in(value) for name, value in found.items()}
        return found | {f"{n}.dataset": vars(one)["dataset"] for n, one in loaders.items() if _has_dataset(one)}

    def problems(self) -> Sequence[Problem]:
        return list(self.given.problems())

    @property
    def loggers(self) -> Sequence[Any]:
        return () if self.rank else prepared.loggers_of(self.given.launcher)

    def roots(self) -> Mapping[str, object]:
        writing = {f"loggers[{number}]": one for number, one in enumerate(prepared.loggers_of(self.given.launcher))}
        return self._roots | self._script.own_of(writing)

    def lost(self) -> Sequence[UntrackedChange]:
        return [*self._other, *self.frames.lost(ended=self.ends_epoch or self.is_done)]

    def passes_locals(self, *, resumed: bool) -> None:
        """
        Note what the code before a pass has computed. If a resume has just repeated this code, note also which values
        differ from those of the snapshot: the code has computed them from values that change within the epoch.
        """
        before, self._before_pass = self._before_pass, self.frames.before_pass()
        if resumed:
            now = self._before_pass
            self._other = [UntrackedChange(path, FROM_EPOCH) for path in before if now.get(path) != before[path]]
            self._before_pass = before

    def metrics(self) -> Mapping[str, Any]:
        return self.figures

    def log(self, figures: Mapping[str, float]) -> None:
        """Do nothing: a script with its own loop writes its own logs."""

    # --- its data

    def loaders(self, stage: Stage) -> Sequence[Any]:
        return self.train if stage == "train" else self.validate

    @property
    def pass_begins_at(self) -> tuple[int, int]:
        return self.epoch, self.batch

    def restart_pass(self) -> None:
        """Do nothing: a pass begins when its first batch is read."""

    # --- its state

    def dump(self) -> State:
        return {
            WEIGHTS: self.module.state_dict(),
            OPTIMIZERS: [optimizer.state_dict() for optimizer in self.optimizers],
            SCHEDULERS: [owned(one.state_dict()) for one in self.given.asked.values()],
            STEP: self.step,
        }

    def dump_rest(self) -> State:
        return {
            "pass": self.passes_before,
            "batches": self.batches,
            "kinds": self.given.kinds(),
            "shapes": self.given.shapes(),
            "counters": prepared.counters(self.given.launcher),
            "before_pass": self._before_pass,
        }

    def dump_metrics(self) -> State:
        return dict(self.figures)

    def load(
        self, state: State, weights: Weights | None, rest: State, place: Boundary, optimizers: OptimizerStates
    ) -> None:
        self._loaded = {"asked": state[SCHEDULERS], "counters": rest["counters"]}
        self._misfit = _first_difference(rest["kinds"], self.given.kinds(), "a")
        before, now = rest["shapes"], self.given.shapes()
        both = before.keys() & now.keys()  # the others are in parts of the model, which are compared later
        shapes = [{name: each[name] for name in each if name in both} for each in (before, now)]
        self._misfit = self._misfit or _first_difference(shapes[0], shapes[1], "weights of shape")
        self.step, self.batch = state[STEP], place.batch
        self._before_pass = rest.get("before_pass", {})  # snapshots of earlier versions have none
        self.epoch = place.epoch + place.epoch_ended
        self.is_done = place.finished
        if not place.epoch_ended:
            self.entering, self.entering_pass, self.entering_batches = place, rest["pass"], rest["batches"]

    def misfit(self) -> str:
        return self._misfit

    def begin_epochs_again(self, epochs: int, *, training: bool) -> None:
        """Do nothing: the script has no epoch hooks."""

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """
        Check that `optimizers` are the script's own objects; if not, record that the checkpoint does not fit. Unlike
        the adapters of other frameworks, this class cannot replace the optimizers that the script's loop uses.
        """
        kinds = [type(one).__name__ for one in optimizers]
        if list(map(id, optimizers)) != list(map(id, self.optimizers)):
            self._misfit = self._misfit or f"the checkpoint's optimizers are {', '.join(kinds)}"

    def load_metrics(self, metrics: State) -> None:
        self._saved_figures = dict(metrics)
        self.figures.update(metrics)

    def enter(self) -> None:
        """Do nothing: passes.py moves to the restored position when the script begins a pass."""

    def restore(self) -> None:
        """Restore the state that was passed to `load`. This happens once, before `Hooks.epoch_begins`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None or self._misfit:
            return
        for one, state in zip(self.given.asked.values(), loaded["asked"], strict=True):
            saved = revived(owned(state), one.state_dict())
            if isinstance(one, GradScaler):
                load_scaler(one, saved)
            else:
                one.load_state_dict(saved)
        self.figures.clear()
        self.figures.update(self._saved_figures)
        prepared.load_counters(self.given.launcher, loaded["counters"])

    def load_file(self, path: str) -> None:
        """Do nothing: the script itself loads the file with which its training starts."""

    # --- its loop

    def open(self, hooks: Hooks) -> None:
        for optimizer in self.optimizers:
            try:
                self._handles.append(optimizer.register_step_pre_hook(lambda *_: self._step_begins(hooks)))
                self._handles.append(optimizer.register_step_post_hook(lambda *_: self._steps()))
            except AttributeError:  # its class does not call Optimizer.__init__, as some wrappers
                self._taps.around(optimizer, "step", partial(self._step, hooks))

    def _step(self, hooks: Hooks, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._step_begins(hooks)
        result = original(*args, **kwargs)
        self._steps()
        return result

    def _step_begins(self, hooks: Hooks) -> None:
        if self.check_step is not None:
            self.check_step()
        hooks.optimizer_steps()

    def _steps(self) -> None:
        self.stepped = True

    def close(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._taps.close()


def _has_dataset(loader: Any) -> bool:
    return type(loader).__module__.startswith(("torch.utils.data", "torchdata")) and "dataset" in vars(loader)


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any], what: str) -> str:
    """Describe the first difference between the checkpoint and this process; return "" if there is none."""
    for name in {**before, **now}:
        if name not in now:
            return f"the checkpoint has {name}, which was not given to Loop in this process"
        if name not in before:
            return f"Loop was given {name}, which the checkpoint lacks"
        if (then := before[name]) != (here := now[name]):
            return f"{name} was {what} {then}, and is {what} {here}"
    return ""
