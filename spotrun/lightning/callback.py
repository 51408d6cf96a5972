"""
The callback that makes a training survive.

When what happens (epoch and batch count from 0; a *boundary* is a moment between two optimizer steps):

    setup              Hello; wait for Resume; hand the checkpoint to Lightning; exchange the loaders
    each batch         generators seeded by (seed, epoch, batch)
    batch end          Progress. A validation is due and a snapshot is wanted: taken here, and the resumed run validates
    within validation  the same snapshot, of the state before it, as soon as it is wanted
    boundary           a wanted snapshot, if an arena is free; with DrainWanted a final one, then no step any more
    epoch end          EpochEnded, then a wanted snapshot, which holds the whole epoch
    training's end     the final snapshot, then Finished

A snapshot after an epoch's last batch waits for the epoch's end, so the end is run once in every history. So does
the one at the very end of training, which is the final one.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import spotrun
from spotrun.checkpoint.layout import Unsavable
from spotrun.checkpoint.snapshot import Plan, plan_image, read_image
from spotrun.lightning import connectors, data_position, refusal, seeds, session, start
from spotrun.lightning.refusal import TrainingRefused
from spotrun.trainer_link import EpochEnded, Finished, Progress, Refused, Resume, SnapshotTaken

DRAIN_ARENA_WAIT_S = 30.0
FINAL_ARENA_WAIT_S = 600.0
PROGRESS_INTERVAL_S = 0.1

LENIENT = ("hyper_parameters", "datamodule_hyper_parameters")
KEY = "spotrun"


@dataclass(frozen=True)
class Place:
    """
    Where a snapshot was taken: after `batch` batches of `epoch`, perhaps before their validation, or after the
    epoch's end.
    """

    epoch: int
    batch: int
    validation_due: bool = False
    epoch_ended: bool = False
    finished: bool = False


class SpotrunCallback:
    """
    Snapshots, exact resume and exact data position for the one fit() that runs under a spotrun agent; elsewhere
    nothing.

    Mixed with the Callback of the Lightning package in use (see factory.py). Only the first of several in a Trainer
    acts.
    """

    _run: _Run | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._is_first(trainer):
            self._run = _Run.begin(trainer)

    def _is_first(self, trainer: Any) -> bool:
        return next(cb for cb in trainer.callbacks if isinstance(cb, SpotrunCallback)) is self

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.restore()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._run:
            self._run.loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self._run:
            self._run.validation_batch_ends()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run:
            self._run.finish()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._run:
            self._run.tell_where_it_failed()
        self._close()

    def _close(self) -> None:
        if self._run:
            self._run.close()
            self._run = None


class _Run:
    """One fit() under an agent. It is the tap on the loops (connectors.Tap)."""

    def __init__(self, trainer: Any, agent: session.Session) -> None:
        self._trainer = trainer
        self._agent = agent
        self._loops = connectors.Loops(trainer, self)
        self._resumed: dict[str, Any] | None = None
        self._place: Place | None = None
        self._seed = 0
        self._every_steps: int | None = None
        self._snapshot_step = 0
        self._told_at = float("-inf")
        self._before_validation: _Before | None = None
        self._trained = False
        self._finished = False
        self.loss: Any = None

    @classmethod
    def begin(cls, trainer: Any) -> _Run | None:
        """The run, ready for Lightning to restore and start it; None where no agent is."""
        try:
            agent = session.claim()
        except session.SecondFit:
            raise TrainingRefused(
                "a second fit() in one process cannot be resumed exactly",
                hint="split the script, one fit() in each; validate() and test() are free",
            ) from None
        if agent is None:
            return None
        run = cls(trainer, agent)
        run._refuse_unsupported()
        resume, image = agent.begin(f"{type(trainer).__module__.partition('.')[0]} {_lightning_version(trainer)}")
        run._open(resume, image)
        return run

    def _refuse_unsupported(self) -> None:
        names = connectors.moved(self._trainer)
        if names:
            self._refuse(
                f"Lightning {_lightning_version(self._trainer)} has moved {', '.join(names)}",
                "install pytorch-lightning 2.6.6, or a newer spotrun",
            )
        if problems := refusal.unsupported(self._trainer):
            self._refuse("; ".join(reason for reason, _ in problems), "; ".join(hint for _, hint in problems))

    def _refuse(self, reason: str, hint: str) -> None:
        self._agent.tell(Refused(reason=reason, hint=hint))
        self._agent.end()
        raise TrainingRefused(f"spotrun cannot resume this training exactly: {reason}", hint=hint)

    def _open(self, resume: Resume, image: Any) -> None:
        self._every_steps = resume.every_steps
        if image is None:
            # What the user seeded decides too, so that --seed 2 is another training.
            self._seed = seeds.derive(resume.seed, _user_seed())
            start.begin(self._trainer)
        else:
            self._load(image)
        connectors.on_loader(self._trainer, self._exchange)
        self._loops.open()

    def _load(self, image: Any) -> None:
        state, _ = read_image(image)
        self._resumed = _owned(state.pop(KEY))
        self._seed = self._resumed["seed"]
        self._place = Place(**self._resumed["place"])
        self._snapshot_step = state["global_step"]
        self._trainer.num_sanity_val_steps = 0  # it was run before the first step, and counts nothing
        # Weights are copied into the model, but optimizers and callbacks may keep what they are given.
        connectors.load(self._trainer, {k: v if k == "state_dict" else _owned(v) for k, v in state.items()})

    def close(self) -> None:
        if self._finished:  # what the script does next is then the same after any history
            seeds.seed_process(seeds.derive(self._seed, "run ends"))
        self._agent.end()
        self._loops.close()
        connectors.no_more_loaders(self._trainer)

    # --- data

    def _exchange(self, loader: Any, stage: str) -> Any:
        problem = data_position.why_inexact(loader)
        if stage == "validate":
            return loader if problem else data_position.exact_loader(loader, self._seed, self._validation_position)
        if problem:
            self._refuse(*problem)
        return data_position.exact_loader(loader, self._seed, self._train_position)

    def _train_position(self) -> tuple[tuple[object, ...], int]:
        epoch, batch = connectors.next_position(self._trainer)
        return ("train", epoch), batch

    def _begin_data_here(self) -> None:
        """
        Who reads `estimated_stepping_batches` in configure_optimizers has the loader begun before the loops are
        restored (Lightning#20550): begin again, at the right place.
        """
        orders = [order for order in map(data_position.order_of, connectors.train_loaders(self._trainer)) if order]
        if any(order.begun != self._train_position() for order in orders):
            connectors.restart_data(self._trainer)

    def _validation_position(self) -> tuple[tuple[object, ...], int]:
        return ("validate", *self._here()), 0

    def _here(self) -> tuple[int, int]:
        return connectors.epoch(self._trainer), connectors.batches_done(self._trainer)

    # --- entering

    def restore(self) -> None:
        """on_fit_start: after Lightning has put weights and callbacks back, and reset its metrics."""
        if self._resumed is None or self._place is None:
            return
        connectors.load_metrics(self._trainer, self._resumed["metrics"])
        connectors.load_module_extras(self._trainer.lightning_module, self._resumed["module"])
        self._loops.resume(validation_due=self._place.validation_due, should_stop=self._resumed["should_stop"])

    def start(self) -> None:
        """on_train_start."""
        if len(loaders := connectors.train_loaders(self._trainer)) > 1:
            self._refuse(f"there are {len(loaders)} training loaders", "make one Dataset of them, with one DataLoader")
        if any("dataloader_iter" in name for name in _step_arguments(self._trainer.lightning_module)):
            self._refuse("training_step takes dataloader_iter", "take batch and batch_idx")
        if self._resumed is not None and self._place is not None:
            connectors.load_gradients(self._trainer.lightning_module, self._resumed["module"])
            self._trainer.accumulate_grad_batches = self._resumed["accumulate_grad_batches"]
            self._loops.enter(mid_epoch=not self._place.epoch_ended)
        self._begin_data_here()
        plan = self._plan(self._state(Place(*self._here())))  # refuses what cannot be saved, before the first step
        if self._resumed is not None:
            self._agent.want_arenas(plan.size_bytes)
        self._resumed = None

    # --- the loops' tap

    def epoch_begins(self) -> None:
        seeds.seed_process(seeds.derive(self._seed, "epoch begins", connectors.epoch(self._trainer)))

    def batch_begins(self) -> None:
        seeds.seed_process(seeds.derive(self._seed, "batch", *self._here()))

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        last = connectors.batches_done(self._trainer) == connectors.batches(self._trainer)
        self._tell_progress("train", always=last or not self._trained)
        self._trained = True
        if boundary and validation_due:
            self._validation_comes()
        seeds.seed_process(seeds.derive(self._seed, "batch ends", *self._here()))

    def step_ends(self) -> None:
        self._before_validation = None
        if not self._agent.arenas_asked:  # only now optimizers have their state
            self._agent.want_arenas(self._plan(self._state(Place(*self._here()))).size_bytes)
        if self._wanted():
            self._snapshot(Place(*self._here()))

    def epoch_closes(self) -> None:
        self._before_validation = None
        seeds.seed_process(seeds.derive(self._seed, "epoch ends", connectors.epoch(self._trainer)))

    def epoch_ends(self) -> None:
        epoch, batches = connectors.epoch(self._trainer) - 1, connectors.batches_done(self._trainer)
        order = next(filter(None, map(data_position.order_of, connectors.train_loaders(self._trainer))), None)
        self._agent.tell(
            EpochEnded(
                epoch=epoch,
                step=self._trainer.global_step,
                batches=batches,
                samples=order.samples(batches) if order else 0,
                metrics=self._metrics(),
            )
        )
        if self._wanted() and not connectors.is_done(self._trainer):
            self._snapshot(Place(epoch, batches, epoch_ended=True))

    def run_ends(self) -> None:
        self.finish()

    def finish(self) -> None:
        """The final snapshot, once; also for a run that was resumed after its end and had nothing left to do."""
        if self._finished:
            return
        self._finished = True
        epoch = connectors.epoch(self._trainer)
        place = Place(epoch - 1, connectors.batches_done(self._trainer), epoch_ended=True, finished=True)
        self._take(place, final=True, wait_s=FINAL_ARENA_WAIT_S)
        self._agent.tell(Finished(step=self._trainer.global_step, epoch=epoch - 1))
        self._agent.end()

    # --- validation

    def _validation_comes(self) -> None:
        """Take what is wanted before a validation that may last; else keep what such a snapshot would have held."""
        started = time.perf_counter()
        place = Place(*self._here(), validation_due=True)
        if self._wanted() and self._agent.any_room():
            self._snapshot(place)
        self._before_validation = _Before.of(place, self._state(place), self._trainer.lightning_module, started)

    def validation_batch_ends(self) -> None:
        self._tell_progress("validate")
        before = self._before_validation
        if before is None or not self._wanted() or not self._agent.any_room():
            return
        if before.still_holds(self._trainer.lightning_module):  # an averaging callback swaps weights for the validation
            self._snapshot(before.place, before.state)

    # --- snapshots

    def _wanted(self) -> bool:
        if self._agent.closed.is_set():
            return False
        return self._agent.drain_wanted.is_set() or self._agent.snapshot_wanted.is_set() or self._interval_is_over()

    def _interval_is_over(self) -> bool:
        every = self._every_steps
        return every is not None and self._trainer.global_step // every > self._snapshot_step // every

    def _snapshot(self, place: Place, state: dict[str, Any] | None = None) -> None:
        """Take a wanted snapshot if an arena is free; else it stays wanted. When draining, wait, and never return."""
        if self._agent.drain_wanted.is_set():
            self._take(place, state, final=True, wait_s=DRAIN_ARENA_WAIT_S)
            self._stand_still()
        elif self._agent.any_room():
            self._take(place, state)

    def _stand_still(self) -> None:
        """Do no step any more; the agent ends the process group."""
        while True:
            threading.Event().wait(3600)

    def _take(
        self, place: Place, state: dict[str, Any] | None = None, *, final: bool = False, wait_s: float = 0.0
    ) -> None:
        started = time.perf_counter()
        plan = self._plan(state or self._state(place))
        waiting = time.perf_counter()
        if not self._agent.room_for(plan, wait_s):
            return
        waited_s = time.perf_counter() - waiting
        self._agent.snapshot_wanted.clear()
        self._snapshot_step = self._trainer.global_step
        arena = self._agent.stage(plan)
        finite = _is_finite(self.loss, self._trainer.lightning_module)
        self._agent.tell(
            SnapshotTaken(
                arena=arena,
                size_bytes=plan.size_bytes,
                epoch=place.epoch,
                batch=place.batch,
                step=self._trainer.global_step,
                stall_s=time.perf_counter() - started - waited_s,
                finite=finite,
                final=final,
                epoch_ended=place.epoch_ended,
                metrics=self._metrics(),
            )
        )

    def _plan(self, state: dict[str, Any]) -> Plan:
        place = state[KEY]["place"]
        meta = place | {
            "step": state["global_step"],
            "spotrun": spotrun.__version__,
            "torch": str(torch.__version__),
            "lightning": state["pytorch-lightning_version"],
        }
        try:
            return plan_image(state, meta, lenient=LENIENT)
        except Unsavable as problem:
            self._refuse(f"the state holds {problem}", f"leave {problem.where} out of the saved state")
            raise AssertionError from problem

    def _state(self, place: Place) -> dict[str, Any]:
        trainer = self._trainer
        state = connectors.dump(trainer)
        state[KEY] = {
            "place": vars(place).copy(),
            "seed": self._seed,
            "should_stop": bool(trainer.should_stop),
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "metrics": connectors.dump_metrics(trainer),
            "module": connectors.dump_module_extras(trainer.lightning_module),
        }
        return state

    # --- telling

    def tell_where_it_failed(self) -> None:
        """The exact step: one that fails twice ends the run."""
        self._tell_progress("train", always=True)

    def _tell_progress(self, phase: Any, *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = now
        epoch, batch = self._here()
        epochs = self._trainer.max_epochs
        self._agent.tell(
            Progress(
                epoch=epoch,
                batch=batch,
                batches=connectors.batches(self._trainer),
                step=self._trainer.global_step,
                epochs=epochs if epochs and epochs > 0 else 0,
                phase=phase,
                metrics=self._metrics(),
            )
        )

    def _metrics(self) -> dict[str, float]:
        values = {name: _number(value) for name, value in connectors.last_metrics(self._trainer).items()}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class _Before:
    """
    The state before a validation. Weights are the living ones: validation does not change them, which `norms`
    verifies.
    """

    place: Place
    state: dict[str, Any]
    norms: list[Tensor]

    @classmethod
    def of(cls, place: Place, state: dict[str, Any], module: torch.nn.Module, started: float) -> _Before:
        # Metrics go on counting, in place, while the validation runs.
        return cls(place, state | {KEY: _owned(state[KEY])}, _norms(module))

    def still_holds(self, module: torch.nn.Module) -> bool:
        return all(map(torch.equal, self.norms, _norms(module)))


def _owned(value: Any) -> Any:
    """The same tree with tensors of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        owned = copy.copy(value)  # an OrderedDict or Counter stays one
        for key, item in value.items():
            owned[key] = _owned(item)
        return owned
    if type(value) in (list, tuple):
        return type(value)(_owned(item) for item in value)
    return value


@torch.no_grad()
def _norms(module: torch.nn.Module) -> list[Tensor]:
    """The 2-norms of all floating-point parameters, in one pass: NaN and infinity show in them."""
    wide, narrow = [], []
    for parameter in module.parameters():
        if parameter.dtype is torch.float64:
            wide.append(parameter.detach())
        elif parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
            narrow.append(parameter.detach())
    # float16 would overflow in its own type
    norms = torch._foreach_norm(narrow, 2, dtype=torch.float32) if narrow else ()
    return [*norms, *(torch._foreach_norm(wide, 2) if wide else ())]


def _is_finite(loss: Any, module: torch.nn.Module) -> bool:
    values = _norms(module)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        values.append(loss.detach())
    return all(bool(torch.isfinite(value).all()) for value in values)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if number - number == 0 else None  # neither NaN nor infinite, which JSON cannot say


def _user_seed() -> int:
    """What the user gave to `seed_everything`, else 0."""
    text = os.environ.get("PL_GLOBAL_SEED", "0")
    return int(text) if text.isdecimal() else 0


def _lightning_version(trainer: Any) -> str:
    package = type(trainer).__module__.partition(".")[0]
    return str(getattr(importlib.import_module(package), "__version__", "?"))


def _step_arguments(module: Any) -> list[str]:
    return list(inspect.signature(module.training_step).parameters)
