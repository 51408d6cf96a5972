"""Describes the next step of a run and the reason for it, from the run's ledger, its specification and the time."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from spotrun.account.outcome import is_plain
from spotrun.clock import zone
from spotrun.offering import CapacityType
from spotrun.policy.capacity import kept_since
from spotrun.policy.changeovers import changeover
from spotrun.policy.gangs import available
from spotrun.policy.lives import kept_for_handover, lives_until
from spotrun.policy.pool_cooldown import full_quota
from spotrun.policy.ranking import spot_launches
from spotrun.policy.standbys import failing_standbys
from spotrun.report.describe import span
from spotrun.report.tables import dollars, plain
from spotrun.report.why import offering_text
from spotrun.run.events import RunCreated
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.spec.model import RunSpec
from spotrun.units import plain_usd


def next_decision(state: RunState, spec: RunSpec, now: datetime, no_room: str = "") -> str:
    """
    Describe the next step of a run, in words that can follow the run's name in a sentence. If a quota is full, the text
    ends with the quota's name. Return "" if the run has ended.

    `no_room` is the reason why the store accepts no more data; "" if it accepts data.
    """
    coming = _coming(state, spec, now, no_room)
    full = "" if state.stop_requested or not coming else full_quota(state, now)
    return f"{coming}; {full}" if full else coming


def left_undone(coming: str, run: str, created: RunCreated) -> str:
    """
    Describe a run that has no runner, in words that can follow the run's name in a sentence: which command starts a
    runner, and what the run does after that. `coming` says the latter, for example "asks for spot again". `run` is the
    reference that users type for the run.
    """
    if created.is_bench:
        return f"has no runner, and the bench that created it is over: `spotrun down {run}` ends it"
    command = f"`spotrun resume {run}`"
    if created.sweep:
        command = f"the command that began the sweep {plain(created.sweep)} is repeated"
    return f"has no runner; after {command}, it {coming}"


def _coming(state: RunState, spec: RunSpec, now: datetime, no_room: str) -> str:
    pending, current = state.pending_launch, state.current
    if state.terminal is not None:
        return ""
    if no_room:
        return f"cannot {'store files' if is_plain(state) else 'save its next checkpoint'}: {no_room}"
    if state.stop_requested and (current is None or is_plain(state)):
        return "ends once no instance of it is left"
    if state.stop_requested:
        return "ends once the last checkpoint is durable"
    if current is not None and state.is_elastic and 0 < len(current.names) < state.created.size:
        return _with_fewer(state, current)
    if pending is not None:
        return _once_it_is_there(pending, current)
    if current is None:
        return _without_an_instance(state, spec)
    failing = failing_standbys(state)
    if failing is not None and now < failing.again_at:
        return failing.sentence
    if current.leaving:
        return "hands over: the instance is leaving, and spotrun asks for another instance"
    if spec.resources.spot_policy == "auto" and _on_demand(state.launch_of(current)) and spec.policy.return_to_spot:
        return _back_to_spot(state, spec, current)
    life = timedelta(seconds=state.launch_of(current).intent.time_to_live_s)
    until = lives_until(state, current) - kept_for_handover(state, life)
    clock = zone(state.created.time_scale)
    kind = "on demand" if _on_demand(state.launch_of(current)) else "on spot until a notice or a loss"
    return f"stays {kind}, and asks for another instance at {until:%a %H:%M} {clock}, before the time-to-live ends"


def _once_it_is_there(pending: Launch, current: Attempt | None) -> str:
    if current is None:
        return f"trains on {offering_text(pending.intent.offering)} once it has booted"
    return f"hands over to {offering_text(pending.intent.offering)} once it is ready: {pending.intent.reason}"


def _without_an_instance(state: RunState, spec: RunSpec) -> str:
    if state.of_gangs and (there := len(available(state))):
        return _with_some(there, state.created.size)
    if spec.resources.spot_policy == "spot":
        return "asks each spot pool again, some time after the pool's last refusal"
    if spec.resources.spot_policy == "on-demand":
        return "asks each on-demand pool in turn"
    if spec.policy.deadline is not None:
        return f"waits for spot or goes on demand: strategy {spec.policy.strategy} decides, to meet the deadline"
    after = span(spec.policy.on_demand_after.total_seconds())
    return f"asks each spot pool in turn; on-demand once spot has been missing for {after}"


def _with_some(there: int, size: int) -> str:
    """Describe the next step of a gang that cannot train yet, because members are missing or not ready."""
    if there >= size:
        return f"trains once all of its {size} members are ready"
    waiting = f"{there} of {size} are ready, wait about as long as a start takes, and are then released"
    return f"asks for the missing members; {waiting}"


def _with_fewer(state: RunState, current: Attempt) -> str:
    """Describe the next step of an elastic gang that trains while members are missing."""
    training, size = len(current.names), state.created.size
    coming = sum(name not in current.names for name in available(state))
    takes_in = f"takes in {coming} more once ready" if coming else ""
    asks = f"asks for {size - training - coming} more" if size > training + coming else ""
    return f"trains with {training} of {size} members, and {' and '.join(filter(None, (takes_in, asks)))}"


def _back_to_spot(state: RunState, spec: RunSpec, current: Attempt) -> str:
    """
    Describe when a run that trains on demand returns to spot. Without a deadline, it requests spot again once
    `return_cooldown` is over. With a deadline, it returns when spot is expected to save more than a changeover costs.
    """
    sums = _sums(state, state.launch_of(current))
    if spec.policy.deadline is None:
        at, clock = kept_since(state, current) + spec.policy.return_cooldown, zone(state.created.time_scale)
        return f"asks for spot again at {at:%H:%M:%S} {clock}" + ("" if sums is None else f": {sums}")
    if spec.policy.strategy != "ours" or sums is None:
        return f"returns to spot when strategy {spec.policy.strategy} decides that the deadline allows it"
    return f"returns to spot when it is expected to last long enough: {sums}"


def _sums(state: RunState, running: Launch) -> str | None:
    """
    Describe how much the run would save per hour on spot, at the newest spot price in the ledger, and after how long
    this pays for the changeover. Return None if the ledger has no spot price.
    """
    known = spot_launches(state)
    if not known:
        return None
    spot, dear = known[-1].newest_price_usd_per_hour, running.intent.offering.price_usd_per_hour
    if spot >= dear:
        return f"at ${plain_usd(spot)}/h it would save nothing just now"
    seconds = changeover(state)
    cost_usd = spot * Decimal(round(seconds)) / 3600
    pays_after = timedelta(hours=float(cost_usd / (dear - spot)))
    return (
        f"{dollars(dear - spot)} saved an hour pays for {span(seconds)} of changeover ({dollars(cost_usd)}) "
        f"after {span(pays_after.total_seconds())}"
    )


def _on_demand(launch: Launch) -> bool:
    return launch.intent.offering.capacity_type is CapacityType.ON_DEMAND
