"""Checks before a launch whether a run can finish on spot, using measurements of an earlier run of the same name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from statistics import median

import msgspec

from spotrun.intervals import COMMIT_GAP, DRAIN_MARGIN_S, DRAIN_SAFETY, auto_interval
from spotrun.market.observations import Fate, Observation
from spotrun.market.world import World
from spotrun.policy import assumptions
from spotrun.policy.pace import measured_pace
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.units import Steps, bounded, to_the_second

MEDIAN_LIFE = timedelta(minutes=32)
"""The median lifetime of a spot instance in public traces."""
LIVES_MIN = 10
"""
Minimum number of observed lifetimes for which their median is used. If fewer were observed, the median of public traces
is used.
"""
COMMITS_LOOKED_AT = 5


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """
    Measurements of an earlier run, converted to the run time of the run that is to be launched. A figure that the
    earlier run did not measure is None.

    `commit` is the time from a snapshot to its commit. `stall` is how long a snapshot stops the training. `bare` is the
    duration of the whole training if it completed without making a checkpoint.
    """

    run: str
    commit: timedelta | None = None
    stall: timedelta | None = None
    step: timedelta | None = None
    bare: timedelta | None = None


class Hopeless(msgspec.Struct, frozen=True):
    """
    The reason why a run could not finish on spot. `fix` is a change that would help, either to the job or to the
    command.
    """

    reason: str
    fix: str


def earlier(state: RunState, time_scale: float) -> Earlier:
    """
    Return the measurements of the earlier run in `state`, converted for a run whose clock is `time_scale` times as fast
    as system time.
    """
    created, terminal = state.created, state.terminal
    faster = time_scale / created.time_scale
    newest = [commit.event for commit in state.commits if not commit.event.suspect][-COMMITS_LOOKED_AT:]
    measured = measured_pace(state, World(offerings=(), instances=()))
    bare = terminal is not None and terminal.outcome == "completed" and not state.commits
    began = [attempt.started_at for attempt in state.attempts.values()][-1:]
    whole = terminal.at - began[0] if bare and terminal is not None and began else None
    return Earlier(
        run=f"{created.name}-{created.uid}",
        commit=bounded(median(each.durable_s for each in newest) * faster) if newest else None,
        stall=bounded(median(each.stall_s for each in newest) * faster) if newest and newest[-1].has_image else None,
        step=None if measured is None else bounded(measured.step_s * faster),
        bare=None if whole is None else bounded(whole.total_seconds() * faster),
    )


def median_life(observations: Iterable[Observation]) -> timedelta:
    """
    Return the median lifetime of a spot instance. If enough lifetimes were observed in this user's runs, compute it
    from these lifetimes; otherwise take it from public traces.
    """
    lives = [seen.up_s for seen in observations if seen.kind is not Fate.REFUSED and seen.up_s]
    return timedelta(seconds=median(lives)) if len(lives) >= LIVES_MIN else MEDIAN_LIFE


def hopeless_on_spot(spec: RunSpec, known: Earlier | None, life: timedelta) -> Hopeless | None:
    """
    Return the reason why a run of `spec` would keep losing all its work on spot. Return None if there is no such
    reason, or if too little is known.
    """
    if spec.resources.spot_policy == "on-demand" or not spec.cloud.interrupts(spec):
        return None
    found = _lost_with_the_machine(spec)
    if found is None and known is not None:
        found = _without_checkpoints(known, life) or _too_seldom(spec, known, life)
    return found


def _lost_with_the_machine(spec: RunSpec) -> Hopeless | None:
    shared = spec.cloud.here or spec.cloud.shares_folders
    if shared or spec.checkpoint.in_bucket:
        return None
    reason = f"checkpoints in the folder {spec.checkpoint.uri} are lost with the spot instance that wrote them"
    return Hopeless(reason, "write checkpoint.uri: s3://bucket/prefix or gs://bucket/prefix, or spot_policy: on-demand")


def _without_checkpoints(known: Earlier, life: timedelta) -> Hopeless | None:
    if known.bare is None or known.bare <= life:
        return None
    reason = (
        f"{known.run} took {to_the_second(known.bare)} and made no checkpoint: half of all spot instances are "
        f"lost within {to_the_second(life)}, and after each loss the run would start from the beginning"
    )
    fix = (
        "train with Lightning, whose state spotrun stores, or add --on-demand; "
        "if the job has changed, use another --name"
    )
    return Hopeless(reason, fix)


def _too_seldom(spec: RunSpec, known: Earlier, life: timedelta) -> Hopeless | None:
    """
    Return the reason why the job makes checkpoints too rarely for spot; None if it makes them often enough. Checkpoints
    are too rare if most spot instances are lost before their first checkpoint, and the time between a notice and the
    loss is too short to make one.
    """
    interval, notice = interval_between(spec, known), spec.cloud.notice
    if known.commit is None or interval is None or interval <= life:
        return None
    needed = DRAIN_SAFETY * known.commit + timedelta(seconds=DRAIN_MARGIN_S)
    if needed <= notice:
        return None
    reason = (
        f"a checkpoint every {to_the_second(interval)} comes too late for most spot instances, whose median lifetime "
        f"is {to_the_second(life)}; and in {known.run}, a checkpoint took {to_the_second(known.commit)} to become "
        f"durable, too long for a notice of {to_the_second(notice)}"
    )
    return Hopeless(reason, "write checkpoint.every: auto, or a much shorter duration; or add --on-demand")


def interval_between(spec: RunSpec, known: Earlier) -> timedelta | None:
    """
    Return the time between two checkpoints. Return None if the job sets this interval as a number of steps, and the
    time that a step takes is unknown.
    """
    every = spec.checkpoint.every
    if isinstance(every, timedelta):
        return max(every, COMMIT_GAP)
    if isinstance(every, Steps):
        return None if known.step is None else max(every.count * known.step, COMMIT_GAP)
    return auto_interval(known.stall or assumptions.STALL)
