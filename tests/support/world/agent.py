"""
The agent of one instance, without a process: it boots, sets up, waits as a standby, takes over and hears notices.

When it may take over, and when a standby gives up, is decided by the real agent's own rules; what follows the takeover
is in `tests.support.world.attempt`.
"""

from __future__ import annotations

from dataclasses import asdict
from math import ceil, inf

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.decisions import (
    AgentAction,
    PredecessorLeaving,
    is_fenced,
    leaving_window_s,
    standby_verdict,
    standing,
)
from spotrun.agent.grace_period import GracePeriod
from spotrun.agent.inbox import NoticeHeard, PowerOff
from spotrun.agent.notices import POLL_S
from spotrun.agent.recorder import TAIL_S
from spotrun.folder.ledger import key_of
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.instance import EndedBy, Instance
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from tests.support.world.attempt import SimulatedAttempt
from tests.support.world.journal import NotNow, SimulatedRecorder
from tests.support.world.rng import Range
from tests.support.world.surroundings import Surroundings

STANDBY_LOOK_S = 1.0
"""How often a standby looks whether the time is up, once its predecessor leaves."""
ROUNDING = 1e-9


class SimulatedAgent:
    """What runs on one instance from its start on. The world calls `act` whenever `due_s` has come."""

    def __init__(self, surroundings: Surroundings, instance: Instance) -> None:
        self._surroundings = surroundings
        self._launch, self._instance_id = instance.launch, instance.instance_id
        self._name = MemberName(instance.launch, instance.member)
        boot_s, self._setup_s = self._start_s()
        self._booted_s = surroundings.now_s + boot_s
        self._ready_s = inf
        self._recorder = SimulatedRecorder(surroundings.ledger(f"agent:{self._who}"))
        self._journal = AttemptJournal(self._recorder, self._launch, self._instance_id, surroundings.at(self._booted_s))
        self._drain = GracePeriod(surroundings.clock)
        self._notice: NoticeHeard | None = None
        self._recommended = False
        self._leaving: PredecessorLeaving | None = None
        self._attempt: SimulatedAttempt | None = None
        self._phase = "boot"
        self._timer_s = self._held_up_until_s = self._booted_s
        self._beats = 0

    def _start_s(self) -> tuple[float, float]:
        """Boot, and a set-up that has to be done anew."""
        timings, starts = self._surroundings.timings, self._surroundings.starts
        if starts is not None:
            return starts(self._surroundings.cloud.ordinal(self._instance_id))
        return self._takes("boot", timings.boot_s), self._takes("setup", timings.setup_s)

    @property
    def _who(self) -> int | MemberName:
        return self._name if self._name.member else self._launch

    def _takes(self, what: str, limits: Range) -> float:
        return self._surroundings.rng.between(limits, what, self._who)

    # -- when ----------------------------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """When it acts next: by itself, or because it will have read or heard something new by then."""
        if self._surroundings.now_s < self._held_up_until_s:
            return self._held_up_until_s
        return min(self._timer_s, self._reads_s(), self._hears_s())

    def _reads_s(self) -> float:
        written = key_of(self._recorder.state.next_number) in self._surroundings.store.objects
        return self._poll_after(TAIL_S) if written else inf

    def _hears_s(self) -> float:
        cloud = self._surroundings.cloud
        told = cloud.seen(self._instance_id).notice_deadline is not None and self._notice is None
        recommended = cloud.recommends_rebalance(self._instance_id) and not self._recommended
        return self._poll_after(POLL_S) if told or recommended else inf

    def _poll_after(self, every_s: float) -> float:
        """The first poll from now on, of those that began with the agent."""
        return self._booted_s + ceil((self._surroundings.now_s - self._booted_s) / every_s - ROUNDING) * every_s

    # -- what ----------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do what is due. An instance whose agent is done powers off."""
        try:
            self._listen(self._recorder.read())
            if self._attempt is None:
                self._come_up()
            if self._attempt is not None:
                self._attempt.act()
                self._timer_s = self._attempt.next_s
        except NotNow:
            self._timer_s = self._held_up_until_s = self._surroundings.now_s + TAIL_S
        except PowerOff:
            self._timer_s = inf
            self._surroundings.cloud.end(self._instance_id, EndedBy.ITSELF)

    def beat(self) -> None:
        """The status object of this moment: a heartbeat."""
        if self._surroundings.now_s < self._booted_s:
            return
        self._beats += 1
        attempt, known = self._attempt, {}
        if attempt is not None:
            known = asdict(attempt.trainer.progress(self._surroundings.now_s)) | {"attempt": self._journal.attempt}
            del known["data_s"], known["samples"]
        known |= {"phase": self._phase if attempt is None else attempt.phase}
        status = AgentStatus(launch=self._launch, at=self._surroundings.clock.now(), sequence=self._beats, **known)
        write_status(self._surroundings.line, agent_key(self._launch, self._name.member), status)

    def _listen(self, state: RunState) -> None:
        """The metadata service, and what the ledger has for the current attempt."""
        deadline_at = self._surroundings.cloud.seen(self._instance_id).notice_deadline
        if deadline_at is not None and self._notice is None:
            self._notice = NoticeHeard("termination", deadline_at, self._surroundings.moment_s(deadline_at))
            self._drain.notice(self._notice)
        self._recommended = self._surroundings.cloud.recommends_rebalance(self._instance_id)
        if self._attempt is not None:
            if is_fenced(state, self._journal.attempt):
                raise PowerOff("the run continues on another instance, or has ended")
            self._follow(state)

    def _follow(self, state: RunState) -> None:
        mine = state.attempts[self._journal.attempt]
        if self._recommended and not mine.rebalance:
            self._journal.notice_seen(NoticeHeard("rebalance"))
            if self._attempt is not None:
                self._attempt.save_soon()
        if self._notice is not None and mine.notice is None:
            self._journal.notice_seen(self._notice)
        self._drain.read(state, self._journal.attempt)

    # -- before the takeover -------------------------------------------------------------------------------------------

    def _come_up(self) -> None:
        """Boot, set up, then stand by until the run is there to be taken over."""
        if self._phase == "boot":
            if standing(self._recorder.state, self._launch) is AgentAction.LEAVE:
                raise PowerOff("the run does not need this instance")
            self._phase, self._ready_s = "setup", self._set_up_until_s()
        if self._surroundings.now_s < self._ready_s:
            self._timer_s = self._ready_s
        else:
            self._stand_by()

    def _set_up_until_s(self) -> float:
        surroundings, unpack_s = self._surroundings, self._setup_s * self._surroundings.timings.unpack
        if surroundings.setup_cache.one_by(surroundings.clock.now()):
            return self._booted_s + unpack_s
        ready_s = self._booted_s + self._setup_s
        surroundings.setup_cache.add(self._instance_id, surroundings.at(ready_s + unpack_s))
        return ready_s

    def _stand_by(self) -> None:
        state, now_s = self._recorder.state, self._surroundings.now_s
        window_s = leaving_window_s(state)
        if self._leaving is None and window_s is not None:
            self._leaving = PredecessorLeaving(now_s, window_s)
        verdict = standby_verdict(state, self._launch, self._leaving, self._ready_s, now_s)
        if verdict in (AgentAction.START, AgentAction.CONTINUE):
            self._take_over()
        elif verdict is AgentAction.STAND_BY and self._notice is None:
            self._phase = "standby"
            self._timer_s = now_s + (STANDBY_LOOK_S if self._leaving is not None else 10 * TAIL_S)
        else:
            raise PowerOff("the standby is no longer needed, or the cloud takes it")

    def _take_over(self) -> None:
        timings = self._surroundings.timings
        self._journal.take_over()
        self._follow(self._recorder.state)
        waited = self._phase == "standby" and bool(self._recorder.state.commits)
        restore_s = self._takes("restore", timings.warm_restore_s if waited else timings.restore_s)
        self._attempt = SimulatedAttempt(self._surroundings, self._recorder, self._journal, self._drain, restore_s)
