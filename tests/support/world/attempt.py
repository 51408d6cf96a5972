"""
One attempt without processes: it restores, trains, saves, hears that it is to go, and ends.

What an attempt decides is decided by the real one's own rules: the pace of snapshots (Pace), when to drain (Drain), and
what the ledger is told (AttemptJournal). Only bytes, processes and the seconds that they take are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from msgspec import UNSET, UnsetType

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.grace_period import GracePeriod, SnapshotTimes, Stage
from spotrun.agent.inbox import PowerOff, TrainerMessage
from spotrun.agent.pace import Pace
from spotrun.market.hazard import observed_hazard
from spotrun.run.events import ResumedFrom
from spotrun.run.gang import Meeting
from spotrun.run.state import RunState
from spotrun.trainer_link import EpochEnded
from tests.support.world.journal import SimulatedRecorder
from tests.support.world.saves import Save, Saves
from tests.support.world.surroundings import Surroundings
from tests.support.world.trainer import SimulatedTrainer

MEETS_AT = 29_500


def _meeting(state: RunState, attempt: int) -> Meeting | UnsetType:
    """Where the trainers of a gang meet: at its lead."""
    lead = state.members_of(state.attempts[attempt])[0].ready
    return UNSET if lead is None else Meeting(address=lead.address, port=MEETS_AT)


class SimulatedAttempt:
    """
    From the takeover, which `journal` has written, to the instance's power-off. The agent calls `act` when
    `next_s` has come, or when there is news.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        recorder: SimulatedRecorder,
        journal: AttemptJournal,
        drain: GracePeriod,
        restore_s: float,
    ) -> None:
        self._surroundings, self._recorder = surroundings, recorder
        self._journal, self._drain = journal, drain
        state, newest = recorder.state, recorder.state.latest_commit()
        self._resumed = ResumedFrom(
            attempt=journal.attempt,
            incarnation=0,
            commit=None if newest is None else newest.number,
            epoch=0 if newest is None else newest.event.epoch,
            step=0 if newest is None else newest.event.step,
        )
        journal.resumed(0, self._resumed, _meeting(state, journal.attempt))
        there = state.launches[state.attempts[journal.attempt].launch].intent.offering.instance_type
        training = surroundings.training.on(there)
        self.trainer = SimulatedTrainer(training, self._resumed.step, surroundings.now_s + restore_s)
        self._committed_s = -inf if newest is None else surroundings.moment_s(newest.at)
        committed_s = None if newest is None else self._committed_s
        hazard = observed_hazard(state, surroundings.clock.now())
        self._pace = Pace(surroundings.spec.checkpoint.every, committed_s, hazard, surroundings.now_s)
        self._saves = Saves(
            recorder, surroundings.training, surroundings.spec.checkpoint, self._pace, surroundings.began_at
        )
        self._epoch = surroundings.training.epoch_of(self._resumed.step)
        self._started = self._final = self._finished = False
        self._snapshot_s = self._stops_s = inf
        self._act: Callable[[], None] = self._train
        self.phase = "restore"

    def act(self) -> None:
        """
        Do what is due.

        Raises:
            PowerOff: the attempt is over.
            NotNow: the store does not answer; act again later.
        """
        self._act()

    def save_soon(self) -> None:
        """The cloud might take the instance: one checkpoint more, as soon as commits may follow on one another."""
        self._pace.rebalance()
        self._saves.press()

    def rest_durable_s(self) -> float | None:
        """
        When what it has begun to send will be durable, now that it has ended and nobody else has begun. What is durable
        by now becomes a commit; None once nothing is left.
        """
        if (save := self._saves.in_flight) is not None and self._surroundings.now_s >= save.durable_s:
            self._saves.commit(self._journal.attempt, self._surroundings.now_s)
        return None if self._saves.in_flight is None else self._saves.in_flight.durable_s

    @property
    def next_s(self) -> float:
        """When the next thing is due if nothing happens before. Sets the moment of the next snapshot."""
        now_s = self._surroundings.now_s
        moments = [now_s + self._drain.until_next_s(self._times)]
        if self._saves.in_flight is not None:
            moments.append(self._saves.in_flight.durable_s)
        if not self._started:
            moments.append(self.trainer.done_s(self.trainer.first + 1))
        elif self._awaits_final:
            moments.append(self._stops_s)
        elif not self._final and self._drain.draining_s is None:
            moments.append(self.trainer.done_s(self._surroundings.training.epoch_end(self._epoch)))
            self._snapshot_s = self._saves.due_s(self.trainer, self._committed_s, now_s)
            moments.append(self._snapshot_s)
        return max(now_s, min(moments))

    def _train(self) -> None:
        self._tell_progress()
        self._settle_save()
        self._follow_drain()
        self._snapshot()

    # -- steps and epochs ----------------------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        now_s = self._surroundings.now_s
        step = self.trainer.step_at(now_s)
        if step <= self.trainer.first:
            return
        if not self._started:
            self._journal.training_started(0, self.trainer.first + 1)
            self._started, self.phase = True, "train"
        self._pace.progressed(self.trainer.progress(now_s), now_s)
        while not self._final and step >= self._surroundings.training.epoch_end(self._epoch):
            self._end_epoch(self._surroundings.training.epoch_end(self._epoch))

    def _end_epoch(self, step: int) -> None:
        done_s = self.trainer.done_s(step)
        ended = EpochEnded(epoch=self._epoch, step=step, batches=step, samples=step)
        self._journal.epoch_completed(ended, TrainerMessage(0, ended, self._surroundings.at(done_s), done_s))
        self._epoch += 1
        self._saves.epoch_ended(step)
        if step >= self._surroundings.training.steps:
            self._saves.take(self.trainer, done_s, "end of training", final=True)
            self._final = self._finished = True

    # -- saving --------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """At the moment that was set for it, even if the store has held this agent up since."""
        if self._final or not self._started or self._drain.draining_s is not None:
            return
        if self._snapshot_s <= self._surroundings.now_s:
            why = self._pace.snapshot_due(self._surroundings.now_s) or "steps"
            self._saves.take(self.trainer, self._snapshot_s, why)
            self._snapshot_s = inf

    def _settle_save(self) -> None:
        save, now_s = self._saves.in_flight, self._surroundings.now_s
        if save is None or now_s < save.durable_s:
            return
        number = self._saves.commit(self._journal.attempt, now_s)
        self._committed_s = now_s
        if save.final:
            self._act = lambda: self._end_well(number, save)
            self._act()
        self._saves.retire(self._journal.attempt, self._resumed.commit)

    def _end_well(self, commit: int, save: Save) -> None:
        if self._finished:
            self._journal.completed(commit, save.step)
            raise PowerOff("completed")
        self._journal.drained(commit, self._surroundings.at(save.taken_s), self._drain.reason)
        raise PowerOff("drained")

    # -- draining ------------------------------------------------------------------------------------------------------

    @property
    def _times(self) -> SnapshotTimes:
        return SnapshotTimes(self._pace, uploading=self._saves.in_flight is not None)

    def _follow_drain(self) -> None:
        stage = self._drain.stage(self._times)
        if stage is Stage.DRAINING and self._drain.draining_s is None:
            self._begin_drain()
        if self._drain.draining_s is None:
            return
        if stage is Stage.TOO_LATE:
            self._end_short("the final snapshot was not durable in time")
        if not self._started:
            self._end_untrained()
        if self._drain.too_short and self._saves.in_flight is None:
            self._end_short(self._drain.too_short)
        if self._awaits_final and self._stops_s <= self._surroundings.now_s:
            self._take_final()

    @property
    def _awaits_final(self) -> bool:
        """No step is wanted any more, and the last snapshot waits for the end of the one under way."""
        return self._drain.draining_s is not None and not self._drain.too_short and not self._final

    def _begin_drain(self) -> None:
        self._drain.begin(self._times)
        self._stops_s = self.trainer.between_steps_s(self._surroundings.now_s)
        if self._final:
            self._drain.too_short = ""  # it ends by itself, as soon as its last snapshot is durable
            return
        self.phase = "drain"
        if self._drain.too_short:
            self.trainer.stop(self._surroundings.now_s)

    def _take_final(self) -> None:
        if self._drain.deadline_s is not None:
            self._saves.abandon()
        self._saves.take(self.trainer, self._stops_s, self._drain.reason, final=True)
        self._final = True

    def _end_untrained(self) -> None:
        newest = self._recorder.state.latest_commit()
        final = None if newest is None else newest.number
        self._journal.drained(final, self._surroundings.clock.now(), self._drain.reason)
        raise PowerOff("drained")

    def _end_short(self, why: str) -> None:
        newest = self._recorder.state.latest_commit()
        survives = "no step survives" if newest is None else f"step {newest.event.step:,} survives"
        detail = f"{self._drain.reason}: {why}; {survives}"
        self._journal.ended(self._drain.cause, self.trainer.step_at(self._surroundings.now_s), detail)
        raise PowerOff("ended")
