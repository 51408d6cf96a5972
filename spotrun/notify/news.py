"""
Finds the events in a run's ledger that people should be notified of. Each notification (`News`) is about one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from spotrun.account.outcome import is_plain
from spotrun.account.summary import RunSummary, summarise
from spotrun.clock import ScaledClock, zone
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.policy.money import OUT_OF_BUDGET
from spotrun.policy.standbys import failing_standbys
from spotrun.report.describe import describe, nearly_spent
from spotrun.report.machine_readable import json_object, rounded
from spotrun.report.tables import dollars
from spotrun.report.terminal import verdict
from spotrun.report.why import offering_text
from spotrun.run import events as ev
from spotrun.run.events import Entry
from spotrun.run.fold import replay
from spotrun.run.reasons import in_one_line
from spotrun.run.state import Attempt, RunState
from spotrun.units import count_of, plain_usd, to_the_second

_MAY_BE_NEWS = (
    *(ev.ResumedFrom, ev.NoticeSeen, ev.InstanceGone, ev.LaunchClosed, ev.DeadlineOutOfReach, ev.BudgetNearlySpent),
    *(ev.RunCompleted, ev.RunFailed, ev.RunStopped),
)
"""The events from which `_kind_and_sentence` can make a notification. All other events never lead to a notification."""


class News(msgspec.Struct, frozen=True):
    """
    One notification about a run.

    `entry` is the number of the ledger entry that it is about. `entry` and `kind` identify the notification: both are
    the same whenever the ledger is read. `at` is the entry's time on the wall clock.
    """

    entry: int
    kind: str
    at: datetime
    run: str
    sentence: str
    facts: dict[str, Any] = {}

    @property
    def id(self) -> str:
        """
        The notification's id. It is the same in each try, by each runner, so that a receiver can drop a notification
        that arrives twice.
        """
        return f"{self.run}-{self.entry}-{self.kind}"


def news_of(entries: Iterable[Entry]) -> Iterator[News]:
    """
    Yield the notifications for `entries`, a ledger's entries in order. The iterable may still grow.
    """
    for before, entry, after in replay(entries):
        found = _kind_and_sentence(before, entry, after)
        if found is not None:
            run = f"{after.created.name}-{after.created.uid}"
            at, figures = _on_the_wall(after, entry.at), _figures(summarise(after, entry.at))
            yield News(entry.number, found[0], at, run, found[1], figures)


def may_be_news(entry: Entry) -> bool:
    """
    Return True if there may be a notification for an entry. Only the event's type is checked; most types never cause
    one.
    """
    return isinstance(entry.event, _MAY_BE_NEWS)


def night(state: RunState, summary: RunSummary) -> News:
    """
    Return the notification that the run of a night has ended, with a summary. The notification is sent when the run's
    bill is complete.
    """
    assert state.terminal is not None
    epochs = _work(summary)
    counts = f"{epochs}, {count_of(summary.total.interruptions, 'interruption')}, {to_the_second(summary.total.wall)}"
    sentence = f"the night is over ({summary.state}): {verdict(summary)} {counts}."
    at = _on_the_wall(state, state.terminal.at)
    return News(state.terminal.number, "night", at, summary.run, sentence, _figures(summary))


def late_night(name: str, due: str, at: datetime, why: str) -> News:
    """
    Return the notification that the night of the date `due` should have begun, but no run is under way.

    This notification belongs to no ledger entry. Its id contains the date instead of an entry's number, so it is sent
    at most once for each date.
    """
    sentence = f"the night of {due} is not under way; spotrun tries to start it every 15 min during this hour: {why}"
    return News(int(due.replace("-", "")), "night", at, name, sentence)


def uncalled_night(name: str, due: str, at: datetime, why: str) -> News:
    """
    Return the notification that the night of the date `due` is under way, but a later one may not begin.

    Like late_night, it belongs to no ledger entry. It has the same id: a date gets one of the two.
    """
    sentence = (
        f"the night of {due} is under way, but the next one may not begin: {why}; `spotrun night ls` says what to type"
    )
    return News(int(due.replace("-", "")), "night", at, name, sentence)


def _work(summary: RunSummary) -> str:
    """Describe how much work was kept, and its cost per epoch or per hour."""
    hour = summary.total.usd_per_productive_hour
    if summary.plain:
        kept = to_the_second(summary.total.productive)
        return f"{kept} kept" + ("" if hour is None else f" at {dollars(hour)} an hour")
    each = "" if summary.usd_per_epoch is None else f" at {dollars(summary.usd_per_epoch)}"
    return f"{count_of(len(summary.epochs), 'epoch')}{each}"


def _on_the_wall(state: RunState, at: datetime) -> datetime:
    return ScaledClock(state.created.clock_epoch, state.created.time_scale).on_the_wall(at)


def _figures(summary: RunSummary) -> dict[str, Any]:
    return json_object(
        cost_usd=summary.total.cost_usd,
        usd_per_epoch=summary.usd_per_epoch,
        **({"usd_per_kept_hour": summary.total.usd_per_productive_hour} if summary.plain else {}),
        savings=rounded(summary.total.savings),
        epochs=len(summary.epochs),
        interruptions=summary.total.interruptions,
        simulated=summary.simulated,
    )


def _kind_and_sentence(before: RunState, entry: Entry, after: RunState) -> tuple[str, str] | None:
    event = entry.event
    match event:
        case ev.ResumedFrom(incarnation=0):
            return _started(after, after.attempts[event.attempt])
        case ev.NoticeSeen(kind="termination"):
            return _interruption_notice(before, entry, event)
        case ev.InstanceGone(ended_by=EndedBy.CLOUD):
            return _unannounced_loss(before, event)
        case ev.InstanceGone() | ev.LaunchClosed():
            return _failing_standbys(before, after)
        case ev.DeadlineOutOfReach():
            late = to_the_second(event.expected_at - event.deadline_at)
            return "late", f"the deadline cannot be met: even on demand the run would be {late} late"
        case ev.BudgetNearlySpent():
            return "budget", nearly_spent(event, f" {zone(after.created.time_scale)}")
        case ev.RunCompleted():
            return "done", describe(entry)
        case ev.RunFailed():
            return "failed", f"the run failed ({event.cause}): {in_one_line(event.detail)}"
        case ev.RunStopped():
            return "budget" if event.reason == OUT_OF_BUDGET else "stopped", f"the run was stopped: {event.reason}"
    return None


def _started(state: RunState, attempt: Attempt) -> tuple[str, str] | None:
    """
    Return the kind and the sentence of a notification if `attempt` is the first to train, or if it trains on another
    capacity type than before. Otherwise return None.
    """
    intent = state.launch_of(attempt).intent
    where = f"{offering_text(intent.offering)} at ${plain_usd(intent.offering.price_usd_per_hour)}/h"
    what = "the command" if is_plain(state) else "training"
    trained = [each for each in state.attempts.values() if each.number < attempt.number and each.trainers]
    if not trained:
        return "started", f"{what} began on {where}"
    if state.launch_of(trained[-1]).intent.offering.capacity_type is intent.offering.capacity_type:
        return None
    if intent.offering.capacity_type is CapacityType.ON_DEMAND:
        return "fallback", f"{what} continues on demand, on {where}: {intent.reason}"
    return "returned", f"{what} is back on {where}: {intent.reason}"


def _interruption_notice(before: RunState, entry: Entry, event: ev.NoticeSeen) -> tuple[str, str] | None:
    attempt = before.attempts[event.attempt]
    if attempt.notice is not None:
        return None
    where = offering_text(before.launch_of(attempt).intent.offering)
    lead = event.deadline_at - entry.at if event.deadline_at is not None else timedelta()
    return "interrupted", f"the cloud will take {where} in {to_the_second(max(timedelta(), lead))}"


def _failing_standbys(before: RunState, after: RunState) -> tuple[str, str] | None:
    """
    Return the kind and the sentence of a notification if the run pauses before it launches the next standby, because
    several in a row have failed. Return None otherwise, or if this was already reported.
    """
    found = failing_standbys(after)
    return None if found is None or failing_standbys(before) is not None else ("standby", found.sentence)


def _unannounced_loss(before: RunState, event: ev.InstanceGone) -> tuple[str, str] | None:
    """
    Return the kind and the sentence of a notification if the training instance was lost without a notice. A loss with a
    notice was already reported when the notice came, so return None for it.
    """
    current = before.current
    if current is None or current.launch != event.launch or current.notice is not None:
        return None
    where = offering_text(before.launches[event.launch].intent.offering)
    return "interrupted", f"the cloud took {where} without a notice"
