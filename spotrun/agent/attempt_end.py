"""
Ends an attempt. The attempt's last event is in the ledger before the instance powers off, so no runner has to guess why
the attempt ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NoReturn

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.files.outputs import GIVE_UP_AFTER_S, HAND_OVER_AFTER_S, OutputKeeper
from spotrun.agent.grace_period import LAST_WORD_MIN_S, LAST_WORD_S, GracePeriod
from spotrun.agent.inbox import PowerOff
from spotrun.agent.processes.trainers import Trainers
from spotrun.run.events import BillingRule, Cause
from spotrun.run.gang import MemberName

TAKEN_WITHIN = timedelta(minutes=3)
"""
How long after a notice's deadline an instance waits for the cloud to take it. If the cloud has not taken the instance
by then, it probably never will, and the waiting instance costs money.
"""


class AttemptEnd:
    """
    Ends the attempt: each public method records one kind of end in the ledger, and raises PowerOff. If the training's
    last snapshot became a commit, `final` is that commit's number; otherwise it is None.
    """

    def __init__(
        self,
        context: AgentContext,
        journal: AttemptJournal,
        drain: GracePeriod,
        trainers: Trainers,
        outputs: OutputKeeper,
    ) -> None:
        self._context = context
        self._journal = journal
        self._drain = drain
        self._trainers = trainers
        self._outputs = outputs

    def drained(self, final: int | None, stopped_at: datetime, unsaved: str = "") -> NoReturn:
        """End the attempt after a drain. `unsaved` is the reason why there is no final checkpoint, if it is known."""
        self._store_files()
        reason = f"{self._drain.reason}: {unsaved}" if unsaved else self._drain.reason
        self._journal.drained(self._commit_of(final), stopped_at, reason)
        self._go("drained")

    def drained_short(self, why: str) -> NoReturn:
        """
        End the attempt after a drain that could not be completed. The steps since the newest commit are lost, and the
        ledger's entry says so.
        """
        self.failed(self._drain.cause, f"{self._drain.reason}: {self._drain.too_short or why}", lossy=True)

    def completed(self, final: int | None, step: int) -> NoReturn:
        self._trainers.close()
        self._outputs.finish(GIVE_UP_AFTER_S)
        self._journal.completed(self._commit_of(final), step)
        self._power_off("completed")

    def without(self, missing: tuple[MemberName, ...], why: str) -> NoReturn:
        """
        End the attempt, because the `missing` members of the gang could not be reached. The steps since the newest
        commit are lost.
        """
        self._trainers.close()
        detail = f"{', '.join(map(str, missing))} {why}"
        self._journal.ended(Cause.EXTERNAL, self._trainers.last_step, detail, lossy=True, missing=missing)
        self._go(detail)

    def failed(self, cause: Cause, detail: str, *, lossy: bool = False) -> NoReturn:
        """
        End the attempt as failed. If steps were lost (`lossy`), the ledger's entry also names the newest step that is
        kept.
        """
        self._trainers.close()
        if cause not in (Cause.SAVES_FAILED, Cause.STORE_FULL):
            self._store_files()
        self._journal.ended(cause, self._trainers.last_step, detail, lossy=lossy)
        self._go(f"ended: {cause.value}")

    def _store_files(self) -> None:
        """
        Store as many of the script's files as time allows. By now, all snapshots that can be saved are durable, so
        nothing else needs the time.
        """
        if (within_s := self._left_s()) > 0:
            self._trainers.close(within_s / 2)  # a process that dies slowly must not use up the whole notice
        self._outputs.finish(max(0.0, self._left_s()))

    def _left_s(self) -> float:
        """
        Return how many seconds of system time are left to store files. The last seconds of a notice are reserved for
        the ledger's last entry.
        """
        if self._drain.deadline_s is None:
            return HAND_OVER_AFTER_S
        scale = self._context.clock.scale
        left_s = (self._drain.deadline_s - self._context.clock.monotonic()) / scale
        return min(HAND_OVER_AFTER_S, left_s - max(LAST_WORD_S / scale, 2 * LAST_WORD_MIN_S))

    def _commit_of(self, final: int | None) -> int | None:
        """
        Return the number of the final commit. If there is no final commit, or it is suspect, return the newest commit
        that can be resumed from; None if there is no such commit.
        """
        state = self._context.recorder.state
        commit = None if final is None else state.commit(final)
        if commit is not None and not commit.event.suspect:
            return final
        newest = state.latest_commit()
        return None if newest is None else newest.number

    def _go(self, reason: str) -> NoReturn:
        """
        Power off. If the cloud is about to take this instance, and would then not bill it, wait until the cloud takes
        it.
        """
        self._trainers.close()
        await_the_cloud(self._context, self._journal.attempt)
        self._power_off(reason)

    def _power_off(self, reason: str) -> NoReturn:
        self._trainers.close()
        raise PowerOff(reason)


def idle_until(rule: BillingRule, billed_from: datetime, deadline_at: datetime | None) -> datetime | None:
    """
    Return the time until which the agent waits for the cloud to take the instance; None if waiting saves no money.
    `deadline_at` is the notice's deadline; None if there was no notice.

    If the cloud takes an instance back in its first hour, the instance costs nothing. If the instance powers itself
    off, it is billed. So waiting saves money, even after the final commit (protocol 15).

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html
    """
    if deadline_at is None or deadline_at - billed_from >= timedelta(seconds=rule.free_if_interrupted_within_s):
        return None
    return deadline_at + TAKEN_WITHIN


def await_the_cloud(context: AgentContext, attempt: int) -> None:
    """
    Wait until the cloud takes the instance, if waiting costs less than powering off now. Usually this call does not
    return, because the cloud ends the instance, and this process with it.
    """
    if not context.watcher.heard_end:
        return
    state, name = context.recorder.state, context.assignment.name
    notice, recorded = state.attempts[attempt].notice, state.member(name).recorded
    billed_from = context.booted_at if recorded is None else recorded.billed_from
    until = idle_until(context.created.billing, billed_from, None if notice is None else notice.deadline_at)
    left_s = 0.0 if until is None else (until - context.clock.now()).total_seconds()
    if left_s > 0:
        context.note("the instance stays on until the cloud takes it, because the cloud will then not charge for it")
        context.status.change(phase="idle")
        context.clock.sleep(left_s)
