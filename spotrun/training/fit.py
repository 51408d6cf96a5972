"""
One fit() under an agent.

When what happens (epoch and batch count from 0; a *boundary* is a moment between two optimizer steps):

    setup              Hello; wait for Resume and the weights; hand the checkpoint to Lightning; exchange the loaders
    each batch         generators seeded by (seed, epoch, batch)
    first step         wait for what optimizers keep
    batch end          Progress. A validation is due and a snapshot is wanted: taken here, and the resumed run validates
    within validation  the same snapshot, of the state before it, as soon as it is wanted
    boundary           a wanted snapshot, if an arena is free; with DrainWanted a final one, then no step any more
    next backward      what of that snapshot only optimizers write to was copied meanwhile: the agent is told of it
    epoch end          EpochEnded, then a wanted snapshot, which holds the whole epoch
    training's end     the final snapshot, then Finished

A snapshot after an epoch's last batch waits for the epoch's end, so the end is run once in every history. So does
the one at the very end of training, which is the final one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spotrun.checkpoint.snapshot import read_image
from spotrun.folder import start_file
from spotrun.lightning import figures, unsupported
from spotrun.lightning.connectors import averaging, names, position
from spotrun.lightning.connectors import state as lightning_state
from spotrun.lightning.connectors.loops import Loops
from spotrun.lightning.connectors.state import OPTIMIZERS
from spotrun.lightning.training_data import TrainingData
from spotrun.lightning.unsupported import TrainingRefused, refuse
from spotrun.trainer_link import Finished, Resume
from spotrun.training import machine, module_state, seeds, session, tensors
from spotrun.training.data import generators
from spotrun.training.due_validation import DueValidation
from spotrun.training.image_memory import Memory
from spotrun.training.log_files import mlflow_client, mlflow_files, text_logs
from spotrun.training.optimizer_states import OptimizerStates
from spotrun.training.progress import Story
from spotrun.training.python_state.attributes import Attributes
from spotrun.training.ranks import Follower, Ranks
from spotrun.training.snapshots import KEY, LAST_ARENA_WAIT_S, Place, Snapshots

RUN_UID_VARIABLE = "SPOTRUN_RUN_UID"


class Run:
    """It is the tap on the loops (connectors.loops.Tap), and decides what happens when."""

    def __init__(self, trainer: Any, agent: session.Agent, ranks: Ranks, resume: Resume, memory: Memory | None) -> None:
        self._trainer = trainer
        self._agent = agent
        self._ranks = ranks
        self._loops = Loops(trainer, self)
        state = self._read(memory) if memory is not None else None
        self._resumed: dict[str, Any] | None = state.pop(KEY) if state else None
        self._own: dict[str, Any] = self._resumed["ranks"][ranks.rank] if self._resumed else {}
        # What the user seeded decides too, so that --seed 2 is another training.
        self._seed = self._resumed["seed"] if self._resumed else seeds.derive(resume.seed, seeds.of_user())
        if state is None and start_file.VARIABLE in os.environ:
            lightning_state.load_file(trainer, os.environ[start_file.VARIABLE])
        self._story = Story(trainer, agent)
        self._data = TrainingData(trainer, agent, self._seed, self._own.get("data"))
        self.snapshots = Snapshots(
            trainer, agent, ranks, self._data, self._loops, seed=self._seed, every_steps=resume.every_steps
        )
        self._generators: generators.Own = {}
        self._validation = DueValidation(trainer, agent, ranks, self.snapshots)
        self._resumed_bytes = resume.size_bytes
        self._optimizers: OptimizerStates | None = None
        self._trained = False
        self._finished = False
        if state and memory:
            self._load(state, memory)
        elif RUN_UID_VARIABLE in os.environ:
            text_logs.begin(trainer, os.environ[RUN_UID_VARIABLE])
            mlflow_files.begin(trainer, os.environ[RUN_UID_VARIABLE])
            mlflow_client.begin(trainer, os.environ[RUN_UID_VARIABLE])
        self._data.open()
        self._loops.open()

    @classmethod
    def begin(cls, trainer: Any) -> Run | None:
        """The run, ready for Lightning to restore and start it; None where no agent is."""
        ranks = Ranks(trainer)
        agent = _claim() if ranks.rank == 0 else Follower()
        if not ranks.agree(agent is not None) or agent is None:
            return None
        unsupported.check_trainer(trainer, agent)
        resume, own = None, None
        if isinstance(agent, session.Session):
            resume, own = agent.begin(f"{names.package(trainer)} {names.version(trainer)}")
        resume = ranks.share(resume)
        assert resume is not None
        memory = ranks.share_image(own, resume.size_bytes) if resume.size_bytes else None
        return cls(trainer, agent, ranks, resume, memory)

    def _read(self, memory: Memory) -> dict[str, Any]:
        """The state, all of it there but for what optimizers keep."""
        image: Any = memory.image
        state: dict[str, Any]
        state, meta = read_image(image, memory.need)
        memory.need_all_of({key: value for key, value in state.items() if key != OPTIMIZERS})
        state[KEY] = tensors.owned(state[KEY])
        if len(state[KEY]["ranks"]) != self._ranks.size:
            refuse(
                self._agent,
                f"the checkpoint is of {len(state[KEY]['ranks'])} processes, and the Trainer has {self._ranks.size}",
                f"Trainer(devices={len(state[KEY]['ranks'])}), as before",
            )
        if changed := machine.differences(meta, machine.facts() | {"lightning": names.version(self._trainer)}):
            print(
                f"spotrun: equivalent from here on, not identical, as this differs: {'; '.join(changed)}",
                file=sys.stderr,
                flush=True,
            )
        return state

    def _load(self, state: dict[str, Any], memory: Memory) -> None:
        self.snapshots.resumed_at(state["global_step"])
        self._trainer.num_sanity_val_steps = 0  # it was run before the first step, and counts nothing
        optimizers = OptimizerStates(state.pop(OPTIMIZERS), memory)
        # Weights are copied into the model, but optimizers and callbacks may keep what they are given.
        kept = memory.keep({key: value for key, value in state.items() if key != "state_dict"})
        state = {**state, **kept}
        if lightning_state.others_load_it(self._trainer):
            lightning_state.load(self._trainer, state | {OPTIMIZERS: optimizers.take()})
        else:
            lightning_state.load(self._trainer, state | {OPTIMIZERS: []})
            lightning_state.load_optimizers_by(self._trainer, optimizers.load)
            self._optimizers = optimizers
        assert self._resumed is not None
        self._loops.make_loaders_as_in(self._resumed["loaded_at"])
        text_logs.continue_version(self._trainer, self._resumed["logs"])
        mlflow_files.continue_run(self._trainer, self._resumed["mlflow"])
        mlflow_client.continue_run(self._trainer, self._resumed.get("mlflow_client", []))

    def close(self) -> None:
        if self._finished:  # what the script does next is then the same after any history
            seeds.seed_process(seeds.derive(self._seed, "run ends"))
        self._agent.end()
        self._loops.close()
        self._data.close()

    # --- entering

    def restore(self) -> None:
        """on_fit_start: after Lightning has put weights and callbacks back, and reset its metrics."""
        self.snapshots.attributes = Attributes(self._trainer.lightning_module)
        if self._resumed is None:
            return
        lightning_state.load_metrics(self._trainer, self._own["metrics"])
        module_state.load(self._trainer.lightning_module, self._own["module"])
        module_state.load_buffers(self._trainer.lightning_module, self._own["buffers"])
        kept = module_state.of_callbacks(self._trainer.callbacks)
        for module, state in zip(kept, self._own["callbacks"], strict=True):
            module_state.load(module, state)
        place = Place(**self._resumed["place"])
        self._loops.resume(validation_due=place.validation_due, should_stop=self._resumed["should_stop"])

    def start(self) -> None:
        """on_train_start."""
        self._data.check()
        unsupported.check_step(self._trainer.lightning_module, self._agent)
        if self._resumed is not None:
            module_state.load_gradients(self._trainer.lightning_module, self._own["module"])
            averaging.load(self._trainer, self._resumed["averaging"])
            text_logs.load(self._trainer, self._resumed["logs"])
            mlflow_files.load(self._trainer, self._resumed["mlflow"])
            self._trainer.accumulate_grad_batches = self._resumed["accumulate_grad_batches"]
            self._loops.enter(mid_epoch=not self._resumed["place"]["epoch_ended"])
        self._data.begin_here()
        self._generators = generators.kept_by_modules(self._trainer.lightning_module)
        if self._resumed is not None:
            self._agent.want_arenas(self._resumed_bytes)
        else:
            self._size_bytes()  # refuses what cannot be saved, before the first step
        self._resumed = None

    def _size_bytes(self) -> int:
        return self.snapshots.plan(self.snapshots.state(self._here())).size_bytes

    def complete_optimizers(self) -> None:
        """Before the first step: what is left of the checkpoint has come."""
        if self._optimizers is not None:
            self._optimizers.arrive()
            self._optimizers = None

    def _here(self, *, validation_due: bool = False) -> Place:
        epoch, batch = position.epoch(self._trainer), position.batches_done(self._trainer)
        return Place(epoch, batch, validation_due=validation_due)

    def _seed_here(self, what: str) -> None:
        here = self._here()
        self._seed_at(what, here.epoch, here.batch, self._ranks.rank)

    def _seed_at(self, *place: object) -> None:
        seed = seeds.derive(self._seed, *place)
        seeds.seed_process(seed)
        generators.seed(self._generators, seed)

    # --- the loops' tap

    @contextmanager
    def loading(self, stage: str, epoch: int) -> Iterator[None]:
        with seeds.kept():
            seeds.seed_cpu(seeds.derive(self._seed, "loaders", stage, epoch))
            yield

    def epoch_begins(self) -> None:
        if self._own:  # only now, as on_train_start of the module may set them
            self.snapshots.attributes.load(self._own["attributes"])
            self._own = {}
        self._seed_at("epoch begins", position.epoch(self._trainer))

    def batch_begins(self) -> None:
        self._seed_here("batch")
        self.snapshots.batch_begins()

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        self.complete_optimizers()
        self.snapshots.settle()  # an optimizer that wrote without any hook was seen
        last = position.batches_done(self._trainer) == position.batches(self._trainer)
        self._story.progress("train", always=last or not self._trained)
        self._trained = True
        figures.log(self._trainer, self._agent.figures)
        if boundary and validation_due:
            self._validation.comes(self._here(validation_due=True))
        self._seed_here("batch ends")

    def step_ends(self) -> None:
        self._validation.is_over()
        if not self._agent.arenas_asked:  # only now optimizers have their state
            self._agent.want_arenas(self._size_bytes())
        self.snapshots.take_if_wanted(self._here())

    def epoch_closes(self) -> None:
        self.snapshots.settle()
        self._validation.is_over()
        self._seed_at("epoch ends", position.epoch(self._trainer))

    def epoch_ends(self) -> None:
        epoch, batches = position.epoch(self._trainer) - 1, position.batches_done(self._trainer)
        self._story.epoch_ended(epoch, batches, self._data.samples(batches) * self._ranks.size)
        if not position.is_done(self._trainer):
            self.snapshots.take_if_wanted(Place(epoch, batches, epoch_ended=True))

    def run_ends(self) -> None:
        self.finish()

    def finish(self) -> None:
        """The final snapshot, once; also for a run that was resumed after its end and had nothing left to do."""
        if self._finished:
            return
        self._finished = True
        figures.log_last(self._trainer, self._agent.figures)
        epoch = position.epoch(self._trainer)
        place = Place(epoch - 1, position.batches_done(self._trainer), epoch_ended=True, finished=True)
        self.snapshots.take(place, final=True, wait_s=LAST_ARENA_WAIT_S)
        self._agent.tell(Finished(step=self._trainer.global_step, epoch=epoch - 1))
        self._agent.end()

    def tell_where_it_failed(self) -> None:
        """The exact step: one that fails twice ends the run."""
        self.snapshots.settle()
        self._story.progress("train", always=True)

    def validation_batch_ends(self) -> None:
        self._story.progress("validate")
        self._validation.batch_ends()


def _claim() -> session.Session | None:
    try:
        return session.claim()
    except session.SecondFit:
        raise TrainingRefused(
            "a second fit() in one process cannot be resumed exactly",
            hint="split the script, one fit() in each; validate() and test() are free",
        ) from None
