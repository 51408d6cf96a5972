"""
The agent of one member of a gang, without a process: it says that it is ready, and the lead begins, trains and commits
for all of them.

What it keeps of the protocol is rule 32 to 36 and 47. Its gang has replicated state, so what the lead does is what a
lone agent does, but for the entries that name members.
"""

from __future__ import annotations

from math import inf

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.gang.gang_decisions import gang_to_start
from spotrun.agent.grace_period import GracePeriod
from spotrun.agent.inbox import NoticeHeard, PowerOff
from spotrun.instance import EndedBy
from spotrun.run.events import AttemptStarted, MemberReady, NoticeSeen
from spotrun.run.state import Attempt, RunState
from tests.support.world.agent import SimulatedAgent
from tests.support.world.attempt import SimulatedAttempt
from tests.support.world.journal import NotNow


class SimulatedMember(SimulatedAgent):
    """See SimulatedAgent. Once it is set up, it is idle until a gang has it, and again afterwards."""

    def act(self) -> None:
        """Do what is due. A member that nobody may name any more powers off."""
        try:
            self._timer_s = inf
            self._listen(self._recorder.read())
            if self._surroundings.now_s < self._ready_at_s():
                self._timer_s = self._ready_s
                return
            if self._saves_the_rest():
                return
            self._phase = "standby"
            self._say_ready()
            self._begin_as_lead()
            self._train()
        except NotNow:
            self._timer_s = self._held_up_until_s = self._surroundings.now_s + 1.0
        except PowerOff:
            self._timer_s = inf
            self._surroundings.cloud.end(self._instance_id, EndedBy.ITSELF)

    def _ready_at_s(self) -> float:
        if self._phase == "boot":
            self._phase, self._ready_s = "setup", self._set_up_until_s()
        return self._ready_s

    # -- what it hears -------------------------------------------------------------------------------------------------

    def _listen(self, state: RunState) -> None:
        deadline_at = self._surroundings.cloud.seen(self._instance_id).notice_deadline
        if deadline_at is not None and self._notice is None:
            self._notice = NoticeHeard("termination", deadline_at, self._surroundings.moment_s(deadline_at))
        current = state.current
        if current is not None and self._name in current.names:
            self._tell_notice(current)
            return
        if state.terminal is not None or not state.is_wanted(self._name) or state.has_to_leave(self._name):
            raise PowerOff("nobody has use for this member")
        if self._notice is not None:
            raise PowerOff("the cloud takes this member")

    def _tell_notice(self, current: Attempt) -> None:
        if self._notice is None or (current.notice is not None and current.notice.member == self._name):
            return
        deadline_at = self._notice.deadline_at
        event = NoticeSeen(attempt=current.number, kind="termination", deadline_at=deadline_at, member=self._name)
        self._recorder.append(lambda state: event if _is_news(state, event) else None)

    def _saves_the_rest(self) -> bool:
        """Whether something of an attempt that is over is still being sent. Ready is said afterwards (protocol 33)."""
        state, attempt = self._recorder.state, self._attempt
        if attempt is None or state.current_attempt == self._journal.attempt:
            return False
        durable_s = attempt.rest_durable_s() if state.may_commit(self._journal.attempt) else None
        if durable_s is None:
            self._attempt = None
            return False
        self._timer_s = durable_s
        return True

    # -- how a gang comes to be ----------------------------------------------------------------------------------------

    def _say_ready(self) -> None:
        """After each end, once (protocol 33, 34)."""
        self._recorder.append(self._ready_word)

    def _ready_word(self, state: RunState) -> MemberReady | None:
        in_gang = state.current is not None and self._name in state.current.names
        known = state.member(self._name).ready
        if in_gang or state.terminal is not None or (known is not None and known.after == state.last_end):
            return None
        seen = self._surroundings.cloud.seen(self._instance_id)
        return MemberReady(
            launch=self._name.launch,
            member=self._name.member,
            instance_id=self._instance_id,
            address=seen.address,
            accelerators=0,
            booted_at=self._surroundings.at(self._booted_s),
            after=state.last_end,
        )

    def _begin_as_lead(self) -> None:
        """The earliest of those that are ready begins for all (protocol 36)."""
        self._recorder.append(self._beginning)

    def _beginning(self, state: RunState) -> AttemptStarted | None:
        gang = gang_to_start(state, self._name, waited_s=0.0)
        if gang is None:
            return None
        booted_at = self._surroundings.at(self._booted_s)
        return AttemptStarted(launch=self._launch, instance_id=self._instance_id, booted_at=booted_at, gang=gang)

    # -- what the lead does --------------------------------------------------------------------------------------------

    def _train(self) -> None:
        current = self._recorder.state.current
        if current is None or current.names[0] != self._name:
            return
        if self._attempt is None or self._journal.attempt != current.number:
            self._attempt = self._taken_over(current)
        if current.notice is not None and self._drain.deadline_s is None and current.notice.deadline_at is not None:
            told = current.notice.deadline_at
            self._drain.notice(NoticeHeard("termination", told, self._surroundings.moment_s(told)))
        self._drain.read(self._recorder.state, current.number)
        if self._lacks_another(current):
            return
        try:
            self._attempt.act()
        except PowerOff:
            self._timer_s = self._surroundings.now_s  # the attempt is over; whether this member is, it reads next
        else:
            self._timer_s = self._attempt.next_s

    def _lacks_another(self, current: Attempt) -> bool:
        """Whether an instance of the gang has ended: then its trainers stand still, until that is told."""
        recorded = [member.recorded for member in self._recorder.state.members_of(current)]
        cloud = self._surroundings.cloud
        return any(cloud.seen(each.instance_id).ended_at is not None for each in recorded if each is not None)

    def _taken_over(self, current: Attempt) -> SimulatedAttempt:
        self._drain = GracePeriod(self._surroundings.clock)
        booted_at = self._surroundings.at(self._booted_s)
        self._journal = AttemptJournal(self._recorder, self._launch, self._instance_id, booted_at)
        self._journal.attempt = current.number
        restore_s = self._takes("restore", self._surroundings.timings.restore_s)
        return SimulatedAttempt(self._surroundings, self._recorder, self._journal, self._drain, restore_s)


def _is_news(state: RunState, event: NoticeSeen) -> bool:
    current = state.current
    if current is None or current.number != event.attempt:
        return False
    return current.notice is None or current.notice.member == event.member
