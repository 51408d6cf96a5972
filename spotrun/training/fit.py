"""
Runs one fit() under an agent. A process may run several fits, one after another.

The table shows the order of events. Epochs and batches are counted from 0. A *boundary* is a point between two
optimizer steps. A *requested* snapshot is one that the agent has requested and that has not been taken yet. A
validation is *due* if it is about to start.

    setup              send Hello (FitBegins for a later fit()). Wait for Resume and the weights. Give the framework
                       its checkpoint. Replace the loaders by exact loaders.
    the model is built record the Python objects that exist. After a restart, the script creates these objects again. So
                       snapshots contain only changes to them, and objects that are created later.
    each batch         seed the random number generators with (seed, epoch, batch)
    first step         wait for the states of the optimizers
    batch end          send Progress. If a validation is due, take a requested snapshot first; after a resume from this
                       snapshot, that validation runs first. Before the training's last validation, only a final
                       snapshot is taken.
    within validation  take a requested snapshot immediately. It contains the state from before the validation.
    boundary           take a requested snapshot if an arena is free. After DrainWanted, take a final snapshot, and
                       stop training.
    next backward      copy the remaining part of that snapshot (tensors that only optimizers change), and tell the
                       agent
    epoch end          send EpochEnded, then take a requested snapshot, which contains the whole epoch
    training's end     take the final snapshot (unless the training resumed from it), then send Finished

The script's code for the end of an epoch must run exactly once per epoch, however often the training is interrupted. A
snapshot that is requested after an epoch's last batch is therefore taken only after this code. So is the training's
final snapshot.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from spotrun.checkpoint.snapshot import read_image
from spotrun.folder import start_file
from spotrun.trainer_link import AGENT, GANG, Finished, LinkLost, Resume
from spotrun.training import (
    figures,
    local_folder,
    machine,
    module_state,
    seeds,
    session,
    tensors,
    trained_weights,
    unsupported,
)
from spotrun.training.counting import Counting
from spotrun.training.data import generators, kept_iterators
from spotrun.training.data.training_data import Cycled, TrainingData
from spotrun.training.due_validation import DueValidation
from spotrun.training.elastic import refusals as elastic
from spotrun.training.framework import OPTIMIZERS, STEP, WEIGHTS, Framework, State
from spotrun.training.hooks import Stage
from spotrun.training.image_memory import Memory
from spotrun.training.late_parts import LateParts
from spotrun.training.log_files import every_kind
from spotrun.training.place import Boundary
from spotrun.training.progress import ProgressReporter
from spotrun.training.python_state import attributes
from spotrun.training.python_state.state import PythonState
from spotrun.training.ranks import Ranks
from spotrun.training.revival import revived
from spotrun.training.snapshots import KEY, LAST_ARENA_WAIT_S, Snapshots
from spotrun.training.structure import Structure
from spotrun.training.unsupported import TrainingUnsupported
from spotrun.training.untracked_report import UntrackedReporter
from spotrun.training.weights import Misfit
from spotrun.training.work_folder.work_files import WorkFiles

SIZE_WAY_OUT = (
    "start a process on each accelerator of each node, as torchrun does (docs/gangs.md); Lightning's Trainer does "
    "so if it gets no num_nodes and the devices of one node"
)
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for each process that it starts, in addition to RANK and WORLD_SIZE."""
ALONE_WAY_OUT = (
    "without a GPU, transformers needs TrainingArguments(use_cpu=True), and accelerate Accelerator(cpu=True); "
    'Lightning needs Trainer(strategy="ddp") with as many devices as torchrun starts processes on a node; '
    "a loop of your own needs torch.distributed.init_process_group(); to train in one process, leave out torchrun"
)
OTHERS_WAIT_S = 30.0
"""Seconds that ranks other than 0 wait before they fail: torchrun ends all as soon as one has failed."""
RUN_UID_VARIABLE = "SPOTRUN_RUN_UID"


class Fit:
    """Implements `Hooks` for one training."""

    def __init__(
        self, framework: Framework, agent: session.Agent, ranks: Ranks, resume: Resume, memory: Memory | None
    ) -> None:
        self._framework = framework
        self._agent = agent
        self.ranks = ranks
        self._files = WorkFiles(agent, ranks, resume.files)
        state = self._read(memory) if memory is not None else None
        self._resumed: State | None = state.pop(KEY) if state else None
        self._own: State = self._resumed["ranks"][ranks.place] if self._resumed else {}
        self._structure: Structure | None = None
        self._logs = self._resumed
        opened = self._own.get("files", {}) if ranks.elastic is None or ranks.rank == 0 else {}
        self._positions: dict[str, int] | None = opened if self._resumed else None
        self._seed = self._resumed["seed"] if self._resumed else _seed_of(resume, framework.seed)
        if state is None and resume.fit == 1 and start_file.VARIABLE in os.environ:
            framework.load_file(os.environ[start_file.VARIABLE])
        there = (self._resumed["place"]["epoch"], state[STEP]) if state and self._resumed else None
        self._counting = Counting(framework, resume, there)
        self._reporter = ProgressReporter(
            framework,
            agent,
            self._counting,
            lambda: self._data.waited_s,
            lambda batches: self._data.samples_by_size(batches) * self.ranks.reads,
        )
        self._python = PythonState(framework, work=self._files.folder)
        own = self._own.get("data")
        self._data = TrainingData(framework, agent, self._seed, own, self._python.knows, ranks.elastic, self._rereading)
        self._untracked = UntrackedReporter(agent, ranks, required=resume.exact == "require")
        self.how_exact = resume.exact
        self._late = LateParts(framework.module, repeats=framework.repeats_epoch_begins)
        self._loaders_made = 0
        self._loads_late = False
        self._started = False
        self._snapshots = Snapshots(
            framework,
            agent,
            ranks,
            self._data,
            self._python,
            self._untracked,
            self._files,
            self._late,
            self._counting,
            seed=self._seed,
            every_steps=resume.every_steps,
        )
        self._generators: generators.OwnGenerators = {}
        self._validation = DueValidation(framework, agent, ranks, self._snapshots)
        self._resumed_bytes = resume.size_bytes
        self._trained = False
        self._finished = False
        self._resumed_at_end = False
        if state and memory:
            self._load(state, memory)
        elif RUN_UID_VARIABLE in os.environ:
            every_kind.begin(framework.loggers, os.environ[RUN_UID_VARIABLE], resume.fit)
        framework.open(self)

    @classmethod
    def begin(cls, framework: Framework) -> Fit | None:
        """
        Create the fit of a training. The framework then calls the fit's methods to restore and start the training.
        Return None if there is no agent.
        """
        ranks, agent = _agent_of(framework)
        return None if agent is None else cls.under(framework, ranks, agent)

    @classmethod
    def begin_anyway(cls, framework: Framework, local: str | None = None) -> Fit:
        """
        Create the fit of a training, even if there is no agent. The order of data and the random numbers are the same
        with and without an agent. Without an agent, the training is saved in the folder `local`, if that is given.
        """
        ranks, agent = _agent_of(framework)
        if agent is None and local is not None:
            agent = local_folder.in_folder(os.path.realpath(local)) if ranks.rank == 0 else session.Follower()
        return cls.under(framework, ranks, session.alone() if agent is None else agent)

    @classmethod
    def under(cls, framework: Framework, ranks: Ranks, agent: session.Agent) -> Fit:
        """
        Return a fit that uses `agent` and is ready to start. If spotrun cannot run this training, end the process
        before the first step.
        """
        if agent.unfinished:
            unsupported.reject(
                agent,
                "a fit() begins before the previous fit() has finished",
                "run one fit() after another; after a fit() that an exception has ended, no further fit() can begin",
            )
        unsupported.check(framework, agent)
        kept_iterators.install()
        if ranks.misfit:
            unsupported.reject(agent, ranks.misfit, SIZE_WAY_OUT)
        if problem := elastic.of_training(framework.name, ranks.elastic):
            unsupported.reject(agent, *problem)
        resume, own = None, None
        if isinstance(agent, session.Session):
            resume, own = agent.begin(f"{framework.name} {framework.version}")
        elif isinstance(agent, session.Alone):
            resume, own = agent.begin()
        resume = ranks.share(Resume, resume)
        assert resume is not None
        memory = ranks.share_image(own, resume.size_bytes) if resume.size_bytes else None
        return cls(framework, agent, ranks, resume, memory)

    def _read(self, memory: Memory) -> State:
        """Return the checkpoint's state, as soon as all of it except the optimizer states has arrived."""
        image: Any = memory.image
        state: State
        state, meta = read_image(image, memory.need, self._files.of_checkpoints)
        memory.need_all_of({key: value for key, value in state.items() if key != OPTIMIZERS})
        state[KEY] = revived(tensors.owned(state[KEY]))
        if misfit := elastic.of_checkpoint(state[KEY], self.ranks.size, self.ranks.elastic):
            unsupported.reject(self._agent, *misfit)
        if changed := machine.differences(meta, self._machine()):
            print(
                f"spotrun: from here on equivalent, but not bit-identical, because this differs: {'; '.join(changed)}",
                file=sys.stderr,
                flush=True,
            )
        return state

    def _machine(self) -> machine.Facts:
        """
        Return facts about this machine and its software. A resume compares them with the facts in the checkpoint's
        meta, which are about the machine that saved it. (Checkpoints of spotrun 0.1 have the framework's version under
        the key `lightning`.)
        """
        version = self._framework.version
        return machine.facts() | {"framework": f"{self._framework.name} {version}", "lightning": version}

    def _load(self, state: State, memory: Memory) -> None:
        assert self._resumed is not None
        self._snapshots.resumed_at(state[STEP])
        place = Boundary(**self._resumed["place"])
        described = self._resumed.get("optimizers")
        try:
            structure = self._structure = Structure(self._framework, state, described, memory, place.epoch)
        except Misfit as misfit:
            unsupported.reject(self._agent, str(misfit), misfit.hint or self._framework.way_out)
        # The checkpoint's memory is freed later. The framework copies the weights, but optimizers and callbacks may
        # keep other tensors without copying them. So `keep` makes sure that all other tensors remain valid.
        kept = revived(memory.keep({key: value for key, value in state.items() if key != WEIGHTS}))
        self._resumed_at_end = place.finished
        whole = {**revived(state), **kept}
        self._framework.load(whole, structure.weights, self._resumed, place, structure.optimizers)
        every_kind.continue_run(self._framework.loggers, self._resumed)

    def refuse(self, reason: str, hint: str) -> NoReturn:
        """
        End a training that cannot be resumed exactly.

        Raises:
            TrainingUnsupported: always.
        """
        unsupported.reject(self._agent, reason, hint)

    def close(self) -> None:
        if self._finished:  # so that the rest of the script is the same with and without interruptions
            seeds.seed_process(seeds.derive(self._seed, "run ends"))
        self._agent.end()
        self._framework.close()

    # --- entering

    def built(self) -> None:
        self._python.begins()

    def restore(self) -> None:
        self._python.moved()
        if self._resumed is None:
            return
        self._framework.load_metrics(self._own["metrics"])

    def _put_back(self) -> None:
        """
        Restore the state. Call this after the script's start hooks have run: before that, the hooks could overwrite
        restored values, and parts of the model that the hooks create would not exist yet.
        """
        self._put_files_back()
        if not self._started:
            self._started = True
            self._python.starts()
        if not self._own:
            return
        own, self._own = self._own, {}
        module = self._framework.module
        assert self._structure is not None
        try:
            self._structure.put_back(training=not self._finished)
        except Misfit as misfit:
            unsupported.reject(self._agent, str(misfit), misfit.hint or self._framework.way_out)
        module_state.load_buffers(module, own["buffers"])
        module_state.load(module, own["module"])
        module_state.load_gradients(module, own["module"])
        self._load_averages(own)
        self._data.put_cycles_back()
        if "python" in own:
            self._python.load(own["python"], last=True)
            self._untracked.say(self._python.news(), self._counting.step(self._framework.step))
        else:  # a checkpoint of spotrun 0.1
            attributes.load(module, own["attributes"])

    @contextmanager
    def _rereading(self) -> Iterator[None]:
        """Undo what the script's collate function changes while a stream's batches are read again."""
        before = self._python.dump()
        yield
        self._python.load(before, last=False)

    def _load_averages(self, own: State) -> None:
        """
        Restore the averages of weights. An average that the script creates only during a batch does not exist yet, and
        is not restored here. `PythonState` reports to the user what cannot be restored.
        """
        averages = self._framework.averages
        older = dict(zip(averages, own.get("callbacks", ()), strict=False))  # an older snapshot has a list
        for name, state in own.get("averages", older).items():
            if name in averages:
                module_state.load(averages[name], state)

    def start(self) -> None:
        self._counting.begins()
        self._data.check()
        if self._resumed is not None:
            self._framework.enter()
        self._snapshots.begin(self._resumed)
        self._data.begin_here()
        self._generators = generators.kept_by_modules(self._framework.module)
        if self._resumed is not None:
            self._agent.want_arenas(self._resumed_bytes)
        else:
            self._refuse_what_no_image_holds()
        self._resumed = None

    def _refuse_what_no_image_holds(self) -> None:
        state = self._snapshots.state(self._here())
        self._snapshots.plan(state)
        others = {key: value for key, value in state.items() if key != OPTIMIZERS}
        if names := trained_weights.left_out(self._framework.module, self._framework.optimizers, others):
            unsupported.reject(
                self._agent,
                f"an optimizer trains weights that are not in the model: {trained_weights.in_words(names)}",
                "put them into an nn.ModuleList, nn.ModuleDict or nn.ParameterList instead of a list or dict",
            )

    def _put_files_back(self) -> None:
        """
        Restore files and loggers at the first call; do nothing at further calls. The loggers then write to the restored
        files.
        """
        if self._positions is not None:
            self._files.put_back(self._positions)
            self._positions = None
        if self._logs is not None:
            every_kind.load(self._framework.loggers, self._logs)
            self._logs = None

    def _size_bytes(self) -> int:
        return self._snapshots.plan(self._snapshots.state(self._here())).size_bytes

    def _complete_optimizers(self) -> None:
        """Wait for the optimizer states, the last part of the checkpoint to arrive. Called before the first step."""
        if self._structure is not None:
            self._structure.optimizers.arrive()
            self._structure = None

    def _here(self, *, validation_due: bool = False) -> Boundary:
        return Boundary(self._framework.epoch, self._framework.batch, validation_due=validation_due)

    def _seed_here(self, what: str) -> None:
        self.seed_at(what, self._framework.epoch, self._framework.batch, self.ranks.place)

    def seed_at(self, *place: object) -> None:
        """Seed all random number generators of the training for `place`."""
        seed = seeds.derive(self._seed, *place)
        seeds.seed_process(seed)
        generators.seed(self._generators, seed)

    def seed_all_at(self, *place: object) -> None:
        """
        Seed the script's own generators, too. How many numbers these draw in a step of an elastic training would depend
        on the number of processes.
        """
        self.seed_at(*place)
        generators.seed(self._python.generators(), seeds.derive(self._seed, *place, "own"))

    # --- data

    def exact(self, loader: Any, stage: Stage) -> Any:
        self._python.reads(loader, stage, self._loaders_made)
        self._loaders_made += 1
        if stage == "train" and "python" in self._own:  # before workers start, because each gets a copy of this state
            self._python.load(self._own["python"], last=False)
        return self._data.exact(loader, stage, late=self._loads_late)

    def read_beside(self, cycle: Cycled) -> None:
        """Include the place of `cycle` in each snapshot. Call this before `start`."""
        self._python.reads(cycle.loader, "train", self._loaders_made)
        self._loaders_made += 1
        self._data.read_beside(cycle)

    @contextmanager
    def loading(self, stage: Stage, epoch: int) -> Iterator[None]:
        self._loaders_made = 0
        self._loads_late = epoch > 0
        if self._loads_late and "python" in self._own:  # the script made these loaders from that epoch's state
            self._python.load(self._own["python"], last=False)
        with seeds.kept():
            seeds.seed_cpu(seeds.derive(self._seed, "loaders", stage, epoch))
            yield

    # --- the loop

    def epoch_begins_again(self) -> None:
        self.seed_at("epoch begins", self._framework.epoch)
        if "python" in self._own:
            self._python.load(self._own["python"], last=False)

    def epoch_begins(self) -> None:
        self._put_back()
        self._late.epoch_begins()
        self.seed_at("epoch begins", self._framework.epoch)

    def pass_begins(self) -> None:
        self._validation.is_over()
        self._data.check()
        self._data.begin_here()

    def pass_ends(self, *, boundary: bool) -> None:
        self._snapshots.settle()
        if boundary:
            self._validation.comes(self._here(validation_due=True), last=self._is_last_batch)
        self.seed_at("pass ends", self._framework.epoch, self._framework.passes_before, self._framework.batch)

    def batch_begins(self) -> None:
        self._late.batch_begins()
        self._seed_here("batch")
        self._snapshots.batch_begins()

    def backward_begins(self) -> None:
        self._snapshots.settle(wait=False)

    def backward_ends(self) -> None:
        self._snapshots.settle()

    def optimizer_steps(self) -> None:
        self._complete_optimizers()
        self._snapshots.settle()  # a batch without a loss has no backward

    def batch_ends(self, *, boundary: bool, validation_due: bool) -> None:
        self._complete_optimizers()
        self._snapshots.settle()  # finds out whether an optimizer has stepped without calling the hook
        last = self._framework.batch == self._framework.batches
        self._reporter.progress("train", always=last or not self._trained)
        self._trained = True
        figures.log(self._framework, self._agent.figures)
        if boundary and validation_due:
            self._validation.comes(self._here(validation_due=True), last=self._is_last_batch)
        self._seed_here("batch ends")

    @property
    def _is_last_batch(self) -> bool:
        framework = self._framework
        return framework.is_done or (framework.ends_epoch and framework.epoch + 1 == framework.epochs)

    def step_ends(self) -> None:
        self._validation.is_over()
        if not self._agent.arenas_asked:  # only now, because optimizers have no state before the first step
            self._agent.want_arenas(self._size_bytes())
        self._snapshots.take_if_wanted(self._here())

    def validation_batch_ends(self) -> None:
        self._reporter.progress("validate")
        self._validation.batch_ends()

    def epoch_closes(self) -> None:
        self._snapshots.settle()
        self._validation.is_over()
        self.seed_at("epoch ends", self._framework.epoch)

    def epoch_validates(self) -> None:
        self.seed_at("epoch validates", self._framework.epoch)
        self._validation.comes(self._here(validation_due=True), last=self._is_last_batch)

    def epoch_ends(self) -> None:
        self._validation.is_over()
        epoch, batches = self._framework.epoch - 1, self._framework.batch
        self._reporter.epoch_ended(epoch, batches, self._data.samples(batches) * self.ranks.reads)
        if not self._framework.is_done:
            self._snapshots.take_if_wanted(Boundary(epoch, batches, epoch_ended=True))

    def finish(self) -> None:
        """
        Take the final snapshot, and report the end of the training to the agent. If this process resumed from the final
        snapshot and trained nothing, only report the end. Further calls have no effect.
        """
        if self._finished:
            return
        self._finished = True
        self._put_back()  # has an effect only if nothing was left to train
        epoch = self._framework.epoch
        figures.log_last(self._framework, self._agent.figures, self._counting.epoch(epoch))
        there = self._resumed_at_end and not self._trained
        if not there:
            place = Boundary(epoch - 1, self._framework.batch, epoch_ended=True, finished=True)
            self._snapshots.take(place, final=True, wait_s=LAST_ARENA_WAIT_S)
        step = self._counting.step(self._framework.step)
        self._agent.tell(Finished(step=step, epoch=self._counting.epoch(epoch - 1), resumed=there))
        self._agent.unfinished = False
        self._agent.end()

    def fail(self) -> None:
        """
        Report to the agent the step at which the script failed. (An agent that sees the same step fail twice ends the
        run.)
        """
        self._snapshots.settle()
        self._reporter.progress("train", always=True)


def _agent_of(framework: Framework) -> tuple[Ranks, session.Agent | None]:
    """
    Return this process's ranks and agent. On ranks other than 0, the agent is a stand-in. If rank 0 has no agent, the
    agent is None on all ranks.
    """
    ranks = Ranks(framework.rank, framework.ranks)
    ranks.compare()
    if framework.ranks == 1 and _is_one_of_several():
        _refuse_processes_that_train_alone()
    agent = claim() if ranks.rank == 0 else session.Follower()
    return ranks, agent if ranks.agree(agent is not None) else None


def _is_one_of_several() -> bool:
    """Return True if torchrun has started several processes under this process's agent."""
    under_agent = AGENT in os.environ and GANG not in os.environ
    return under_agent and TORCHRUN in os.environ and int(os.environ["WORLD_SIZE"]) > 1


def _refuse_processes_that_train_alone() -> NoReturn:
    """
    Raises:
        TrainingUnsupported: torchrun has started several processes, and each of them trains for itself.
    """
    if os.environ["RANK"] != "0":
        time.sleep(OTHERS_WAIT_S)
    unsupported.reject(
        (claim() if os.environ["RANK"] == "0" else None) or session.alone(),
        f"torchrun has started {os.environ['WORLD_SIZE']} processes, but each of them trains alone",
        ALONE_WAY_OUT,
    )


def _seed_of(resume: Resume, script_seed: int) -> int:
    """
    Derive the fit's seed from the run's seed, the script's seed (so that a script's `--seed 2` has an effect) and the
    fit's number.
    """
    fit = () if resume.fit == 1 else ("fit", resume.fit)
    return seeds.derive(resume.seed, script_seed, *fit)


def claim() -> session.Session | None:
    """
    Return the session of this process; None if there is no agent.

    Raises:
        TrainingUnsupported: the process cannot reach its agent.
    """
    try:
        return session.claim()
    except LinkLost as lost:
        raise TrainingUnsupported(
            f"this process cannot reach the agent that has to save and resume it: {lost}", hint=lost.hint
        ) from None
