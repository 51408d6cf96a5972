"""
Runs one attempt, from its takeover to its end. Several threads put letters (reports) into the inbox. A single thread,
in attempt_loop.py, reads the letters, decides and acts.

    take over -> restore -> train (snapshots become commits) -> drained | ended | completed -> power off

The agent writes the attempt's end (drained, ended or completed) into the ledger before the instance powers off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.attempt_loop import AttemptLoop
from spotrun.agent.backpressure import Backpressure
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.content_store import ContentStore
from spotrun.agent.files.outputs import OutputKeeper
from spotrun.agent.gang.rendezvous import Rendezvous
from spotrun.agent.gang_state import OthersState
from spotrun.agent.gang_watch import GangWatch
from spotrun.agent.grace_period import GracePeriod
from spotrun.agent.inbox import PowerOff
from spotrun.agent.machine import process_groups
from spotrun.agent.machine.cpu_priority import CpuPriority
from spotrun.agent.pace import Pace
from spotrun.agent.preemption import Preemption
from spotrun.agent.processes.trainer import Newest, Trainer
from spotrun.agent.processes.trainer_process import TrainerProcess
from spotrun.agent.processes.trainers import Trainers
from spotrun.agent.resumption import still_here
from spotrun.agent.saver import Saver, Worker
from spotrun.agent.trainees.command import Command
from spotrun.agent.trainees.state_command import StateCommand
from spotrun.agent.trainees.state_watch import StateWatch
from spotrun.agent.trainees.training import Training
from spotrun.agent.trainer_exit import TrainerExit
from spotrun.agent.trainer_start import TrainerStart
from spotrun.checkpoint.restore import Image
from spotrun.market.hazard import observed_hazard
from spotrun.run.events import Cause
from spotrun.run.state import Attempt

SAVES_WITHIN_S = 600.0
"""
Maximum time, in seconds of run time, for which a gang's lead goes on saving its last snapshots after the attempt has
ended. The time is limited because the next attempt cannot begin while the lead saves, so the other members stand idle.
"""


class AttemptRun:
    """
    Runs the trainers of one attempt.

    `spare` is a trainer process that was started before the takeover. It has run the script up to the start of the
    training, and waits there. `place` and `held` are passed only for a gang's lead: the lead's place in the gang, and
    the checkpoint that the lead still has in memory from an earlier attempt.
    """

    def __init__(
        self,
        context: AgentContext,
        spare: TrainerProcess | None = None,
        place: Rendezvous | None = None,
        held: Newest | None = None,
    ) -> None:
        self._context = context
        self._held = held
        self._place = place
        self._gang = None if place is None else GangWatch(context, place)
        self._trainers = Trainers(context, spare, place)
        self._pieces = ContentStore(context)
        self._files = CommitFiles(context, self._pieces)
        worker = Worker(
            context.store,
            context.recorder,
            context.clock,
            context.status,
            context.inbox,
            context.spec.checkpoint,
            self._files,
            world=None if place is None else place.gang.world,
            others=None
            if place is None
            else OthersState(context, self._pieces, place.others, lambda: self._trainers.current.exited is None),
        )
        self._saver = Saver(worker, self._trainers.release, self._trainers.spend, CpuPriority())
        self._watch = StateWatch(context, self._files)
        self._drain = GracePeriod(context.clock)
        assignment = context.assignment
        self._journal = AttemptJournal(
            context.recorder,
            assignment.launch,
            assignment.instance_id,
            context.booted_at,
            context.setup,
            member=UNSET if place is None else assignment.name,
        )
        self._outputs = OutputKeeper(context, self._pieces)
        self._ending = AttemptEnd(context, self._journal, self._drain, self._trainers, self._outputs)

    def run(self, ready: Image | None = None) -> NoReturn:
        """
        Run the attempt to its end. `ready` is a checkpoint that was fetched before the takeover, if there is one.

        Raises:
            PowerOff: the attempt has ended. The exception's text is the reason.
        """
        attempt = self._begin()
        self._context.status.change(phase="restore", attempt=attempt.number)
        self._drain.read(self._context.recorder.state, attempt.number)
        self._pieces.begin(attempt.number)
        self._outputs.start(attempt.number)
        loop = self._loop()
        try:
            loop.run(len(attempt.trainers), lambda: self._still_here() if ready is None else ready)
        except PowerOff:
            if self._gang is not None:
                self._trainers.close()
                loop.save_the_rest(self._may_save_until(self._context.clock.monotonic() + SAVES_WITHIN_S))
            raise

    def take_newest(self) -> Newest | None:
        """
        Return the newest checkpoint that is in memory: a trainer's or, if no trainer of this attempt has started,
        `held`. The caller then owns the checkpoint, and has to release it.
        """
        held, self._held = self._held, None
        return self._trainers.take_newest() if held is None else held

    def _still_here(self) -> Image | None:
        held, self._held = self._held, None
        return None if held is None else still_here(self._context, held)

    def _may_save_until(self, until_s: float) -> Callable[[], bool]:
        """
        Return a function that returns True while a gang's lead is still allowed to save its trainer's last snapshot
        after the attempt's end. If this snapshot becomes a commit, the next attempt resumes from it (protocol 43). The
        permission ends at `until_s`, or earlier if the lead leaves the gang or the next attempt begins.
        """
        name, attempt = self._context.assignment.name, self._journal.attempt

        def may_save() -> bool:
            state = self._context.recorder.state
            return state.is_wanted(name) and state.may_commit(attempt) and self._context.clock.monotonic() < until_s

        return may_save

    def _begin(self) -> Attempt:
        """Take over the run. A gang's lead instead continues the attempt that its gang has already begun."""
        if self._place is None or self._gang is None:
            return self._journal.take_over()
        self._journal.attempt = self._place.attempt
        self._gang.start()
        return self._context.recorder.state.attempts[self._place.attempt]

    def _loop(self) -> AttemptLoop:
        context, journal, trainers, saver = self._context, self._journal, self._trainers, self._saver
        drain, ending, pace, backpressure = self._drain, self._ending, self._pace(), Backpressure(context, journal)

        def as_training(trainer: Trainer) -> Training:
            if context.recorder.state.has_trained:
                command = Command(context, trainer, journal)
            else:
                command = StateCommand(context, trainer, journal, self._watch, pace, saver, drain)
            return Training(context, command, journal, pace, saver, drain, self._outputs, backpressure, ending)

        start = TrainerStart(
            context, journal, trainers, self._files, self._watch, saver, pace, ending, self._gang, as_training
        )
        preemption = Preemption(context, journal, trainers, start, saver, pace, drain, self._outputs, ending)
        trainer_exit = TrainerExit(
            context, journal, trainers, start, preemption, saver, pace, drain, ending, self._gang
        )
        return AttemptLoop(
            context,
            journal,
            trainers,
            start,
            preemption,
            trainer_exit,
            saver,
            self._watch,
            pace,
            drain,
            ending,
            backpressure,
        )

    def _pace(self) -> Pace:
        state, clock = self._context.recorder.state, self._context.clock
        now, now_s, commit = clock.now(), clock.monotonic(), state.latest_commit()
        committed_s = None if commit is None else now_s - (now - commit.at).total_seconds()
        return Pace(self._context.spec.checkpoint.every, committed_s, observed_hazard(state, now), now_s)

    def fail_setup(self, detail: str) -> NoReturn:
        """Take over the run only to record in the ledger why the job's `setup` failed. No training follows."""
        self._journal.take_over()
        self._ending.failed(Cause.USER_ERROR, detail)

    def close(self) -> None:
        """End the trainers and all processes that they started, daemons included."""
        if self._gang is not None:
            self._gang.close()
        self._outputs.close()
        self._watch.close()
        self._trainers.close()
        self._saver.close()
        self._trainers.forget()
        process_groups.end_left_over(self._context.assignment.trainer_mark, self._context.assignment.instance_id)
