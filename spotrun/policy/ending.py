"""Decides whether a run has to end, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import takewhile

from spotrun.offering import CapacityType
from spotrun.policy.actions import Action, Append
from spotrun.policy.facts import Facts
from spotrun.policy.housekeeping import condemned
from spotrun.policy.launches import (
    STILLBORN_MAX,
    is_standby,
    may_be_of,
    refused,
    rejected,
    stillborn,
    words_of_refusal,
)
from spotrun.policy.patience import age, at_least_real, since_opened
from spotrun.policy.pool_cooldown import all_refuse_for_good, is_certain
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.reasons import in_brief
from spotrun.run.state import Attempt, Launch, RunState

STOP_GRACE = timedelta(minutes=10)
FRUITLESS_MAX = 5
"""
A run fails after this number of fruitless attempts in a row. An attempt is fruitless if it made no checkpoint and was
not ended by an interruption. Further attempts would cost money without progress.
"""


def overdue(facts: Facts) -> bool:
    return facts.spec.max_duration is not None and age(facts) > facts.spec.max_duration


def stop(facts: Facts) -> Iterator[Action]:
    state = facts.state
    current = state.current
    if current is None:
        yield Append(event=ev.RunStopped(reason="stop requested"))
        return
    assert state.stop_requested_at is not None
    if facts.now - state.stop_requested_at > at_least_real(STOP_GRACE, state):
        for name in current.names:
            if state.member(name).condemned is None:
                yield Append(event=condemned(state, name, Cause.STOPPED, "it did not stop when asked"))


def drain_and_stop(state: RunState, reason: str) -> Iterator[Action]:
    """
    Stop the run for `reason`, although the user has not requested it. The attempt that trains is drained first.
    """
    if state.current is None:
        yield Append(event=ev.RunStopped(reason=reason))
    elif state.current.drain is None:
        yield Append(event=ev.DrainRequested(attempt=state.current.number, reason=reason))


def hopeless(facts: Facts) -> ev.RunFailed | None:
    """Return a RunFailed event if another launch would be useless; None if another launch may help."""
    state = facts.state
    launches = since_opened(state)
    newest = launches[-1].closed if launches else None
    if newest is not None and newest.cause is Cause.ACCESS and _never_accepted(facts):
        return ev.RunFailed(cause=Cause.ACCESS, detail=newest.detail)
    last = next(reversed(list(state.attempts.values())), None)
    if last is not None and last.end is not None and last.end.gave_up and last.started_at >= state.opened_at:
        return ev.RunFailed(cause=last.end.cause, detail=last.end.detail)
    first_choices = [launch for launch in reversed(launches) if not is_standby(state, launch)]
    in_a_row = list(takewhile(stillborn, (launch for launch in first_choices if not refused(launch))))
    booted = [launch for launch in in_a_row if not rejected(launch)]
    if len(booted) >= STILLBORN_MAX:
        return ev.RunFailed(cause=Cause.EXTERNAL, detail=_why_stillborn(booted))
    if in_a_row and rejected(in_a_row[0]) and _never_accepted(facts):
        why = words_of_refusal(in_a_row[0])
        return ev.RunFailed(cause=Cause.EXTERNAL, detail=f"the cloud rejects the request: {why}")
    fruitless = list(takewhile(lambda attempt: _fruitless(attempt, state), reversed(list(state.attempts.values()))))
    if len(fruitless) >= FRUITLESS_MAX:
        detail = f"{len(fruitless)} attempts in a row ended without a checkpoint, and not by an interruption"
        if fruitless[0].end is not None:
            detail += f" (the newest: {in_brief(fruitless[0].end.detail)})"
        return ev.RunFailed(cause=Cause.EXTERNAL, detail=detail)
    return None


def _never_accepted(facts: Facts) -> bool:
    """
    Return True if every pool that the job allows rejects or denies the request, and no launch has led to an attempt
    since the run was started or resumed.
    """
    if _has_trained(facts.state):
        return False
    types = [each for each in CapacityType if may_be_of(facts.spec, each)]
    return is_certain(facts) and all_refuse_for_good(facts, types)


def _has_trained(state: RunState) -> bool:
    """
    Return True if an attempt has begun since the run was started or resumed, so the cloud will probably accept another
    launch.
    """
    return any(attempt.started_at >= state.opened_at for attempt in state.attempts.values())


def _why_stillborn(launches: Sequence[Launch]) -> str:
    """Describe why `launches`, newest first, ended before the agent took over."""
    newest = launches[0]
    why = newest.gone.evidence if newest.gone is not None else words_of_refusal(newest)
    told = f"{len(launches)} instances in a row ended before the agent took over (the newest: {why})"
    offerings = [launch.intent.offering for launch in reversed(launches)]
    places = dict.fromkeys(f"{each.zone}, {each.subnet}" if each.subnet else each.zone for each in offerings)
    said = f"{told}; they were in {' and in '.join(places)}; `spotrun logs` shows their output"
    if not offerings[-1].subnet:
        return said
    advice = f"`spotrun doctor {offerings[-1].cloud} JOB.yaml` checks subnets, rights and image; then `spotrun resume`"
    return f"{said}\n  try: {advice}"


def _fruitless(attempt: Attempt, state: RunState) -> bool:
    """
    Return True if an attempt made no checkpoint and was not ended by an interruption. Return False for any attempt
    that began before the run was last resumed.
    """
    if attempt.end is None or attempt.started_at < state.opened_at:
        return False
    committed = any(commit.event.attempt == attempt.number for commit in state.commits)
    return attempt.end.cause in (Cause.EXTERNAL, Cause.HANG) and not committed
