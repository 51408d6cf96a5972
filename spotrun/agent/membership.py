"""
Runs the agent on a member of a gang, from the end of the job's `setup` until the instance powers off.

    say ready -> (the lead starts an attempt) -> lead or follow -> the attempt ends -> say ready again -> …

A member takes part in one attempt after another. Between attempts, what `setup` installed and the files that were
fetched stay on the instance. The lead also keeps the newest checkpoint in memory.
"""

from __future__ import annotations

import os
import queue
from typing import NoReturn

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt import AttemptRun
from spotrun.agent.attempt_end import await_the_cloud
from spotrun.agent.attempt_journal import APPEND_WITHIN_S, AttemptJournal
from spotrun.agent.files.restore import as_uploaded
from spotrun.agent.follower import Follower
from spotrun.agent.gang import gang_decisions
from spotrun.agent.gang.connectivity import Door
from spotrun.agent.gang.gang_decisions import MemberAction
from spotrun.agent.gang.rendezvous import NAMES, Rendezvous
from spotrun.agent.inbox import LedgerLost, NoticeHeard, PowerOff, TrainerMessage
from spotrun.agent.processes.trainer import KILL_WITHIN_S, Newest
from spotrun.agent.processes.trainer_process import SPARE, TrainerProcess, start_trainer
from spotrun.autoload.late_variables import LATE
from spotrun.errors import SpotrunError
from spotrun.folder.ledger import Decide, EntryRefused
from spotrun.market.accelerators import count_in
from spotrun.run.events import AnyEvent, AttemptStarted, Cause, MemberReady
from spotrun.run.gang import Gang
from spotrun.run.state import Attempt, RunState

TURN_S = 0.1
"""Maximum seconds of system time between two reads of the recorder's state."""


class Membership:
    """
    Runs one instance as a member of its gang. If the job's `setup` failed on this instance, `failure` is the reason,
    and the next attempt ends immediately with this reason.
    """

    def __init__(self, context: AgentContext, failure: str | None) -> None:
        self._context = context
        self._name = context.assignment.name
        self._failure = failure
        self._told_setup = False
        self._held: Newest | None = None
        self._spare: TrainerProcess | None = None
        self._led = False
        self._door = self._open_door()

    def serve(self) -> NoReturn:
        """
        Take part in one attempt after another.

        Raises:
            PowerOff: the run no longer needs this instance, or the cloud takes it.
        """
        try:
            while True:
                self._train(self._await_attempt())
        finally:
            self._end_spare()

    def _open_door(self) -> Door | None:
        """
        Open a door: a socket with which the other members check whether they can reach this member (connectivity.py).
        If an earlier agent of this instance has reported a port, use the same port, because the other members already
        connect to it. Return None if this machine cannot open a door.
        """
        known = self._context.recorder.state.member(self._name).ready
        port = None if known is None else known.door
        try:
            return Door(self._context.assignment.address, port or 0)
        except OSError as error:
            self._context.note(f"other members cannot reach this one at {self._context.assignment.address}: {error}")
            return None

    # -- between two attempts

    def _await_attempt(self) -> Attempt:
        self._context.status.change(phase="ready")
        since_s = self._context.clock.monotonic()
        if gang_decisions.stands(self._context.recorder.state, self._name) is not MemberAction.TRAIN:
            self._start_spare()
        while True:
            state = self._context.recorder.state
            match gang_decisions.stands(state, self._name):
                case MemberAction.LEAVE:
                    raise PowerOff("the run does not need this instance")
                case MemberAction.TRAIN:
                    assert state.current is not None
                    return state.current
                case MemberAction.SAY_READY if state.current is not None and self._is_warming:
                    pass  # the gang that trains hands over when all members are ready
                case MemberAction.SAY_READY:
                    self._say_ready(state)
                    since_s = self._context.clock.monotonic()
                case MemberAction.WAIT:
                    self._start_if_due(state, self._context.clock.monotonic() - since_s)
            self._hear()

    def _start_spare(self) -> None:
        """
        Start a trainer that imports its modules while this member waits for an attempt, and needs its place in the gang
        later (late_variables.py). It begins with the files that a trainer of the attempt would find.

        As for a standby, it is started only if a checkpoint proves that the script uses spotrun's callback. The first
        program of `run` is a shell, which reads its place at once, so it is not started early.
        """
        context = self._context
        if not context.recorder.state.has_weights or context.spec.train.run is not None or self._failure is not None:
            return
        if not self._led:
            as_uploaded(context, 0)
        late = context.assignment.folder / "late-variables"
        for old in late.parent.glob(f"{late.name}*"):
            old.unlink()
        context.assignment.training_mark.touch()
        self._spare = start_trainer(context, SPARE, {LATE: f"{','.join(NAMES)} {late}"}, late)

    @property
    def _is_warming(self) -> bool:
        return self._spare is not None and not self._spare.is_warm

    def _end_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare.wait(KILL_WITHIN_S)
            self._spare = None

    def _say_ready(self, state: RunState) -> None:
        after, launch = state.last_end, state.launches[self._name.launch]
        setup = None if self._told_setup or self._failure is not None else self._context.setup
        ready = MemberReady(
            launch=self._name.launch,
            member=self._name.member,
            instance_id=self._context.assignment.instance_id,
            address=self._context.assignment.address,
            door=None if self._door is None else self._door.port,
            accelerators=count_in(launch.intent.offering.accelerators),
            booted_at=self._context.booted_at,
            after=after,
            setup=setup,
        )
        self._told_setup = self._append(lambda now: None if now.last_end != after else _unless_ready(now, ready))

    def _start_if_due(self, state: RunState, waited_s: float) -> None:
        if gang_decisions.gang_to_start(state, self._name, waited_s) is None:
            return

        def decide(now: RunState) -> AttemptStarted | None:
            gang = gang_decisions.gang_to_start(now, self._name, waited_s)
            return None if gang is None else _started_by(now, gang)

        self._append(decide)

    def _append(self, decide: Decide) -> bool:
        """
        Append an event. Return False if the event was not written: another member has already written it, or it no
        longer fits the ledger.
        """
        future = self._context.recorder.append(decide)
        try:
            return future.result(APPEND_WITHIN_S) is not None
        except EntryRefused:
            return False
        except SpotrunError as error:
            raise PowerOff(error.message) from error

    def _hear(self) -> None:
        """
        Handle the next letter in the inbox, between two attempts. Only a notice, the loss of the ledger and a message
        of the spare matter then. All other letters are left over from the previous attempt, and are dropped.
        """
        try:
            letter = self._context.inbox.get(timeout=TURN_S)
        except queue.Empty:
            return
        if isinstance(letter, NoticeHeard) and letter.kind == "termination":
            raise PowerOff("the cloud is taking this instance before the run needed it")
        if isinstance(letter, TrainerMessage) and letter.incarnation == SPARE:
            self._end_spare()  # the script trains without its place in the gang
        if isinstance(letter, LedgerLost):
            self._context.note(f"the ledger did not accept an entry: {letter.reason}")

    # -- an attempt

    def _train(self, attempt: Attempt) -> None:
        """
        Take part in an attempt until it ends. Return only if this member stays for the next attempt.

        Raises:
            PowerOff: this member leaves.
        """
        loop = self._part_in(attempt)
        self._held = None
        self._led = isinstance(loop, AttemptRun)
        try:
            if self._failure is not None:
                self._fail_setup(attempt)
            loop.run()
        except PowerOff as reason:
            if isinstance(loop, AttemptRun):
                self._held = loop.take_newest()
            loop.close()
            self._leave_if_due(attempt.number, reason)
        finally:
            loop.close()
        self._context.note("the attempt is over; this instance is ready for the next one")

    def _fail_setup(self, attempt: Attempt) -> NoReturn:
        """
        Record in the ledger that the attempt has ended because the job's `setup` failed on this member. Any member is
        allowed to write that entry, not only the lead.
        """
        name = self._context.assignment
        journal = AttemptJournal(self._context.recorder, name.launch, name.instance_id, self._context.booted_at)
        journal.attempt = attempt.number
        journal.ended(Cause.USER_ERROR, 0, f"{self._failure} (on {self._name})", missing=())
        raise PowerOff("the set-up has failed")

    def _part_in(self, attempt: Attempt) -> AttemptRun | Follower:
        place = Rendezvous.of(self._context, attempt)
        if self._led and not place.leads:
            self._end_spare()  # it has read files of the lead
        spare, self._spare = self._spare, None
        if place.leads:
            return AttemptRun(self._context, spare, place, self._held)
        if self._held is not None:
            os.close(self._held.fd)
        return Follower(self._context, attempt, spare)

    def _leave_if_due(self, number: int, reason: PowerOff) -> None:
        if self._context.watcher.heard_end:
            await_the_cloud(self._context, number)
            raise reason
        state = self._context.recorder.state
        if not gang_decisions.stays(state, state.attempts[number]):
            raise reason


def _unless_ready(state: RunState, ready: MemberReady) -> AnyEvent | None:
    known = state.launches[ready.launch].members[ready.member].ready
    return None if known is not None and known.after == ready.after else ready


def _started_by(state: RunState, gang: Gang) -> AttemptStarted:
    """Return the event that starts an attempt of `gang`. It describes the lead's instance."""
    lead = state.member(gang.names[0])
    assert lead.ready is not None
    return AttemptStarted(
        launch=lead.ready.launch,
        instance_id=lead.ready.instance_id,
        booted_at=lead.ready.booted_at,
        setup=lead.setup,
        gang=gang,
    )
