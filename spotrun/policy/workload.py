"""Estimates how much work is left, from the measured pace and the number of remaining steps."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from spotrun.account.timeline import Activity, timeline
from spotrun.intervals import COMMIT_GAP, auto_interval
from spotrun.market.hazard import observed_hazard
from spotrun.policy import assumptions
from spotrun.policy.facts import Facts, once
from spotrun.policy.pace import Pace, measured_pace
from spotrun.policy.speed_at_home import pace_in_cloud, times_of
from spotrun.policy.throughput import choice, pace_on_first
from spotrun.units import Steps, bounded


class Workload(msgspec.Struct, frozen=True):
    """
    The remaining training. It is expected to take `left_s` on one instance, and at most `doubt_s` longer. No value
    exceeds ten years.

    The times are for an instance in the cloud, even if the user owns a machine. If the job allows several kinds of
    instances, the times are for the first kind.

    `done_s` is the work already done. `rework_s` is the most work that one loss without notice can undo.
    """

    left_s: float
    doubt_s: float
    done_s: float
    rework_s: float


@once
def workload(facts: Facts) -> Workload | None:
    """
    Return the remaining work. Return None if the job gives no `expected_work`, and the work cannot be computed from the
    steps: either no step was measured yet, or the training does not report its total number of steps.
    """
    measured, total, expected = pace(facts), facts.world.steps_total, facts.spec.policy.expected_work
    rework_s = rework_max_s(facts)
    if measured is not None and total is not None:
        step = step_reached(facts)
        left_s = _bounded_s(max(0.0, total - step) * measured.step_s)
        return Workload(left_s, _bounded_s(left_s * measured.doubt), _bounded_s(step * measured.step_s), rework_s)
    if expected is not None:
        whole_s, done_s = expected.total_seconds(), _trained_s(facts)
        left_s = max(0.0, whole_s - done_s)
        return Workload(left_s, whole_s * assumptions.WORK_DOUBT, done_s, rework_s)
    return None


def _bounded_s(seconds: float) -> float:
    return bounded(seconds).total_seconds()


def step_reached(facts: Facts) -> int:
    """
    Return the step that the running trainer has reached. If no trainer runs, return the step of the checkpoint from
    which the next trainer will resume.
    """
    latest = facts.state.latest_commit()
    committed = 0 if latest is None else latest.event.step
    current, seen = facts.state.current, facts.world.step_seen
    trains = current is not None and bool(current.trainers) and current.trainers[-1].started_at is not None
    if trains and seen is not None and current is not None and seen.attempt == current.number:
        return max(committed, seen.step)
    return committed


@once
def pace(facts: Facts) -> Pace | None:
    if facts.spec.home is not None:
        return pace_in_cloud(facts)
    return pace_on_first(facts) if choice(facts) else measured_pace(facts.state, facts.world)


def _trained_s(facts: Facts) -> float:
    """
    Return the seconds of training that are not lost so far: those up to the newest checkpoint, and those of the running
    trainer since then.
    """
    kept = [commit for commit in facts.state.commits if commit.usable]
    if kept and not kept[-1].event.has_image:  # a command: its work is measured by time
        return _productive_s(facts)
    measured = pace(facts)
    committed_s = kept[-1].event.step * measured.step_s if kept and measured is not None else 0.0
    current = facts.state.current
    if current is None or not current.trainers or current.trainers[-1].exited is not None:
        return committed_s
    begun = current.trainers[-1].started_at or current.trainers[-1].resumed_at
    newest = max([begun, *(commit.event.taken_at for commit in kept)])
    return committed_s + max(0.0, (facts.now - newest).total_seconds()) * times_of(facts, current)


def _productive_s(facts: Facts) -> float:
    """
    Return the productive seconds of a command's run. Time on the user's machine is converted to time in the cloud.
    """
    spans = [span for span in timeline(facts.state, facts.now) if span.kind is Activity.PRODUCTIVE]
    worth = [1.0 if span.attempt is None else times_of(facts, facts.state.attempts[span.attempt]) for span in spans]
    return sum((span.end - span.start).total_seconds() * each for span, each in zip(spans, worth, strict=True))


def rework_max_s(facts: Facts) -> float:
    """
    Return the maximum seconds of training that one loss without notice can undo. This is the time from one commit until
    the next one is durable.
    """
    assumed_s = assumptions.COMMIT.total_seconds()
    durable_s = max((commit.event.durable_s for commit in facts.state.commits), default=assumed_s)
    return commit_interval_s(facts) + durable_s


@once
def commit_interval_s(facts: Facts) -> float:
    """
    Return the seconds between two commits. The job sets this number; if the job sets `auto`, it is computed from the
    run's measurements.
    """
    every = facts.spec.checkpoint.every
    if isinstance(every, Steps):
        measured = pace(facts)
        interval = bounded(every.count * (0.0 if measured is None else measured.step_s))
    elif isinstance(every, timedelta):
        interval = every
    else:
        hazard = observed_hazard(facts.state, facts.now)
        stalls = (commit.event.stall_s for commit in facts.state.commits if commit.event.has_image)
        stall_s = max(stalls, default=0.0)  # a command stalls only at its end
        stall = max(assumptions.STALL, timedelta(seconds=stall_s))
        interval = auto_interval(stall, hazard.mean_time_between, hazard.saved)
    return max(interval, COMMIT_GAP).total_seconds()
