"""Computes when an instance's time-to-live expires, and when a standby must be launched to replace the instance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from spotrun.policy.changeovers import changeover
from spotrun.policy.facts import Facts
from spotrun.policy.patience import at_least_real
from spotrun.run.state import Attempt, RunState

BLIND_FOR = timedelta(hours=24)
"""
Time for which a run may be without a runner at the end of an instance's time-to-live. A standby is launched this long
before that end. A runner may be absent because its credentials have expired, or because its machine is off.
"""
HANDOVER_BEFORE_END = timedelta(minutes=15)
"""Time before the end of an instance's time-to-live at which a standby is launched at the latest."""
REPLACED_AFTER = timedelta(hours=24) - HANDOVER_BEFORE_END
TIME_TO_LIVE = REPLACED_AFTER + HANDOVER_BEFORE_END + BLIND_FOR
LAST_MINUTES = timedelta(minutes=3)
"""
Length of the last part of a time-to-live. When it begins, the instance makes its last commit and ends, even if no
standby is ready.
"""
ENDS_WITHIN = timedelta(minutes=5)
"""
Time that the cloud has to end an instance that has to go. After this time, the run goes on elsewhere, because a cloud
refuses for ever to end an instance that a user has protected:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingDisableAPITermination.html
https://cloud.google.com/compute/docs/instances/preventing-accidental-vm-deletion
"""


def lives_until(state: RunState, attempt: Attempt) -> datetime:
    """Return the time at which the first of the attempt's instances reaches the end of its time-to-live."""
    return min(ends_at for ends_at, _ in _lives(state, attempt))


def _lives(state: RunState, attempt: Attempt) -> Iterator[tuple[datetime, timedelta]]:
    """Yield the end and the length of each instance's time-to-live."""
    for name in attempt.names:
        recorded, ready = state.member(name).recorded, state.member(name).ready
        booted_at = attempt.booted_at if ready is None else ready.booted_at
        life = timedelta(seconds=state.launches[name.launch].intent.time_to_live_s)
        yield (booted_at if recorded is None else min(booted_at, recorded.billed_from)) + life, life


def life_left(facts: Facts, current: Attempt) -> timedelta:
    return lives_until(facts.state, current) - facts.now


def outlives_its_end(facts: Facts, current: Attempt) -> bool:
    """
    Return True if an instance of the attempt has been condemned for so long that the cloud probably cannot end it.
    """
    since = (member.condemned_at for member in facts.state.members_of(current) if member.gone is None)
    patience = at_least_real(ENDS_WITHIN, facts.state)
    return any(at is not None and facts.now - at > patience for at in since)


def nearly_over(facts: Facts, current: Attempt) -> bool:
    """
    Return True if a standby is needed because the time-to-live of the running instance will soon expire. Return False
    for a bench, whose instances are not replaced: on another instance, the bench would have to begin again.
    """
    if facts.state.created.is_bench:
        return False
    _, life = min(_lives(facts.state, current))
    return life_left(facts, current) < kept_for_handover(facts.state, life)


def kept_for_handover(state: RunState, life: timedelta) -> timedelta:
    """
    Return how long before the end of its time-to-live an instance has to be replaced.

    If the time-to-live is long, this is a day, because there may be no runner for a day. If it is short, this is the
    time that a standby needs to start, but at most half of the time-to-live.
    """
    start = timedelta(seconds=changeover(state)) + LAST_MINUTES
    return max(min(HANDOVER_BEFORE_END, life / 4), min(start, life / 2), life - REPLACED_AFTER)
