"""Records what the cloud reports, for the bill, and ends instances that should not run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment
from spotrun.offering import CapacityType
from spotrun.policy.actions import Action, Append, Execute, Terminate
from spotrun.policy.facts import Facts, once
from spotrun.policy.launches import may_be_of
from spotrun.policy.lives import TIME_TO_LIVE
from spotrun.policy.patience import at_least_real
from spotrun.policy.pool_cooldown import within_price
from spotrun.policy.subnets import surrounded
from spotrun.policy.unobserved_terminations import has_left, over_by, unseen_end
from spotrun.run import events as ev
from spotrun.run.billing import switched_off_at
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.reasons import shortened
from spotrun.run.state import Launch, RunState
from spotrun.units import to_the_second

SILENCE = timedelta(minutes=4)
"""
Time after which an agent counts as gone, if its heartbeat has not changed while the runner's own writes succeeded
(protocol 16).

An agent writes a heartbeat every 2 s. A write that hangs takes up to 70 s, and an outage of the store may add 2 minutes
of silence; together this is less than the limit. The runner detects the silence two polls of 15 s later, and so within
five minutes.
"""
MUTE_MAX = timedelta(minutes=14)
"""
Time after its launch at which an instance is given up, if its agent has not reported.

The agent reports before the job's own set-up: until then an instance boots, and installs at most PyTorch and Lightning.
Including the polls, an instance is given up within a quarter of an hour.
"""
FORGOTTEN_AFTER = timedelta(minutes=10)


def record(facts: Facts) -> Iterator[Action]:
    """Record what the bill needs: which instances exist, when their charges began, and which are gone."""
    for name, instance in instances(facts).items():
        launch, member = facts.state.launches[name.launch], facts.state.member(name)
        if member.gone is not None or (launch.settled and instance.never_ran):
            continue
        if not instance.alive:
            yield Append(event=_gone(facts.state, name, instance))
        elif member.recorded is None and instance.billed_from is not None:
            yield Append(event=_recorded(facts.state, name, instance, instance.billed_from))


@once
def instances(facts: Facts) -> dict[MemberName, Instance]:
    """
    Return the instance that the cloud shows for each member.

    Other instances may have the same tags, because consoles copy tags when a user launches "like this". So the instance
    that the ledger records counts, and before one is recorded, the oldest.
    """
    found: dict[MemberName, Instance] = {}
    for instance in sorted(facts.world.instances, key=lambda each: each.launched_at):
        name = MemberName(instance.launch, instance.member)
        if not facts.state.has_asked_for(name):
            continue
        recorded = facts.state.member(name).recorded
        if recorded is None or recorded.instance_id == instance.instance_id:
            found.setdefault(name, instance)
    return found


def _recorded(state: RunState, name: MemberName, instance: Instance, billed_from: datetime) -> ev.LaunchRecorded:
    return ev.LaunchRecorded(
        launch=name.launch,
        member=state.told(name),
        instance_id=instance.instance_id,
        billed_from=billed_from,
        prices=_prices(state, name, instance, billed_from),
    )


def _gone(state: RunState, name: MemberName, instance: Instance) -> ev.InstanceGone:
    assert instance.ended_at is not None
    assert instance.ended_by is not None
    member, launch = state.member(name), state.launches[name.launch]
    # The ledger's record counts, because it was made nearer to the start than this observation; but not if the cloud
    # could not start the instance.
    is_told = member.recorded is None or (instance.never_ran and not launch.came_up)
    billed_from = instance.billed_from if is_told or member.recorded is None else member.recorded.billed_from
    return ev.InstanceGone(
        launch=name.launch,
        member=state.told(name),
        instance_id=instance.instance_id,
        billed_from=billed_from,
        # Two runners, with different clocks, may have observed the instance's start and its end.
        ended_at=max(instance.ended_at, billed_from or instance.ended_at),
        ended_by=instance.ended_by,
        prices=_until_it_was_off(_prices(state, name, instance, billed_from), instance.off_since),
        evidence=f"the cloud's record: ended by {instance.ended_by}" + _told(instance.end_reason),
    )


def _prices(
    state: RunState, name: MemberName, instance: Instance, billed_from: datetime | None
) -> tuple[PriceSegment, ...]:
    """
    Return the prices of an instance, from the cloud or from its record.

    If both lack prices, the price in the request is used: a cloud may deny access to its price history, and a deleted
    instance has no tags.
    """
    found = instance.prices or state.member(name).prices
    asked_at_usd = state.launches[name.launch].intent.offering.price_usd_per_hour
    if found or billed_from is None or not asked_at_usd:
        return found
    return (PriceSegment(since=billed_from, usd_per_hour=asked_at_usd),)


def _until_it_was_off(prices: tuple[PriceSegment, ...], off_since: datetime | None) -> tuple[PriceSegment, ...]:
    """Add a machine price of 0 from the time when the instance was switched off, if its disk was billed after that."""
    if off_since is None or not prices or switched_off_at(prices) is not None:
        return prices
    charged = [each for each in prices if each.since < off_since] or prices[:1]
    return (*charged, PriceSegment(since=off_since, usd_per_hour=Decimal(0)))


def _told(reason: str) -> str:
    return f" ({shortened(reason)})" if reason else ""


def clean_up(facts: Facts) -> Iterator[Action]:
    """End instances that should not run, and give up launches that did not succeed."""
    state = facts.state
    for instance in facts.world.instances:
        if instance.alive and (reason := _reason_to_end(facts, instance)):
            yield Terminate(instance_id=instance.instance_id, reason=reason)
    for launch in state.launches.values():
        if launch.gone is None:
            yield from _not_listed(facts, launch)
    pending = state.pending_launch
    if pending is not None and (state.terminal is not None or state.stop_requested) and pending.may_be_closed:
        yield Append(event=ev.LaunchClosed(launch=pending.number, cause=Cause.STOPPED, detail="the run ends"))
    yield from _condemn_silent(facts)
    yield from _give_up_mute(facts)


def strangers(facts: Facts) -> Iterator[str]:
    """Yield a message for each orphan of the run that has not ended: the ledger has neither its end nor its cost."""
    for instance in facts.world.instances:
        if instance.alive and (why := _why_strange(facts, instance)):
            yield f"{instance.instance_id} has to end, and its cost is not in the ledger: {why}"


def _why_strange(facts: Facts, instance: Instance) -> str:
    launch = facts.state.launches.get(instance.launch)
    if launch is None:
        return "it belongs to no launch of this run"
    own = instances(facts).get(MemberName(launch.number, instance.member)) == instance
    return "" if own else f"it only has the tags of launch {launch.number}"


def _reason_to_end(facts: Facts, instance: Instance) -> str | None:
    state = facts.state
    if why := _why_strange(facts, instance):
        return why
    name = MemberName(instance.launch, instance.member)
    launch, member = state.launches[name.launch], state.member(name)
    if launch.closed is not None:
        return "its launch is closed"
    if member.condemned is not None:
        return "condemned"
    if member.released is not None:
        return "released"
    if member.gone is not None:
        return "its end is recorded"
    if instance.state is InstanceState.STOPPED:
        return "it has stopped, and its disk is still billed"
    over_at = over_by(state, name)
    return "its attempt is over" if over_at is not None and facts.now > over_at else None


def _not_listed(facts: Facts, launch: Launch) -> Iterator[Action]:
    state = facts.state
    unlisted = [name for name in launch.names if name not in instances(facts) and state.member(name).gone is None]
    for name in unlisted:
        if state.member(name).recorded is not None:
            yield from _not_listed_again(facts, name)
        elif _is_settled_without(facts, launch):
            yield Append(event=_never_seen(state, name))
    if len(unlisted) == len(launch.members) and launch.recorded is None and launch.closed is None:
        yield from _not_launched(facts, launch)


def _not_listed_again(facts: Facts, name: MemberName) -> Iterator[Action]:
    """Record the end of a recorded instance that the cloud no longer lists."""
    state, recorded = facts.state, facts.state.member(name).recorded
    assert recorded is not None
    wanted = state.launches[name.launch].closed is None and not has_left(state, name)
    lives = wanted and facts.world.silent.get(name, timedelta()) < SILENCE
    if not lives and (facts.now - recorded.billed_from > FORGOTTEN_AFTER or _had_time_to_go(facts, name)):
        yield Append(event=unseen_end(facts, name))


def _is_settled_without(facts: Facts, launch: Launch) -> bool:
    """
    Return whether the cloud had time to show an instance that the run no longer requests.

    Once one member of a launch has reported ready, the launch cannot be closed; its other members may never appear.
    """
    had_time = facts.now - launch.intent.not_after > FORGOTTEN_AFTER
    if launch.closed is not None:
        return had_time and not launch.closed.refused
    return had_time and (launch.came_up or any(member.recorded or member.gone for member in launch.members))


def _not_launched(facts: Facts, launch: Launch) -> Iterator[Action]:
    """Repeat the request of a launch for which the cloud has shown no instance; if it is too late, close the launch."""
    state, now = facts.state, facts.now
    if state.terminal is not None or state.stop_requested:
        return
    if launch.attempt is None and now < launch.intent.not_after:
        if (reason := forbidden(facts, launch.intent)) is None:
            yield Execute(launch=launch.number)
        else:
            yield Append(event=ev.LaunchClosed(launch=launch.number, cause=Cause.CAPACITY, detail=reason))
    elif launch.may_be_closed:
        yield Append(event=ev.LaunchClosed(launch=launch.number, cause=Cause.CAPACITY, detail="not started in time"))


def _had_time_to_go(facts: Facts, name: MemberName) -> bool:
    """Return whether enough time has passed since the member left, or was given up, for its instance to end."""
    over_at = over_by(facts.state, name)
    return over_at is not None and facts.now > over_at


def forbidden(facts: Facts, intent: ev.LaunchIntended) -> str | None:
    """Return why an intent must not be executed (protocol 10). The fold has checked caps and budget."""
    wanted = [found for found in within_price(facts) if found.pool == intent.offering.pool]
    capacity_type = intent.offering.capacity_type
    if not wanted and capacity_type is CapacityType.OWN:
        return f"{intent.offering} is no longer free"
    if not wanted or not may_be_of(facts.spec, capacity_type):
        return f"{intent.offering} is not an offering that the job allows now"
    if wanted[0].price_usd_per_hour > intent.price_ceiling_usd_per_hour:
        return f"{intent.offering} costs more now than was reserved for it"
    offered = surrounded(facts.state, wanted[0])
    if replace(intent.offering, price_usd_per_hour=offered.price_usd_per_hour) != offered:
        return f"{intent.offering} is offered with another image, network or launch template now"
    if intent.time_to_live_s > TIME_TO_LIVE.total_seconds():
        return (
            f"it would live for {to_the_second(timedelta(seconds=intent.time_to_live_s))}, longer than any instance may"
        )
    return None


def _never_seen(state: RunState, name: MemberName) -> ev.InstanceGone:
    """Record the end of a member that the cloud never showed and the run no longer requests, to end its reservation."""
    return ev.InstanceGone(
        launch=name.launch,
        member=state.told(name),
        instance_id="",
        billed_from=None,
        ended_at=state.launches[name.launch].intent.not_after,
        ended_by=EndedBy.FAULT,
        prices=(),
        evidence="the cloud never showed an instance of it",
    )


def _give_up_mute(facts: Facts) -> Iterator[Action]:
    """
    End members that do not train yet, and whose agent is silent or has never reported.

    A launch none of whose members has been ready yet is given up with all its members (protocol 46).
    """
    state = facts.state
    for name in _not_training(state):
        detail, launch = _mute(facts, name), state.launches[name.launch]
        if detail is None:
            continue
        if launch.may_be_closed:
            yield Append(event=ev.LaunchClosed(launch=launch.number, cause=Cause.EXTERNAL, detail=detail))
            return
        yield Append(event=condemned(state, name, Cause.HANG, detail))


def _not_training(state: RunState) -> list[MemberName]:
    """Return the members that boot, or that wait for an attempt that uses them."""
    if not state.of_gangs:
        return [] if state.pending_launch is None else [*state.pending_launch.names]
    training = () if state.current is None else state.current.names
    wanted = (name for name in state.names() if state.is_wanted(name))
    return [name for name in wanted if name not in training and not has_left(state, name)]


def _mute(facts: Facts, name: MemberName) -> str | None:
    """Return why the agent of a member that does not train is given up; None if it is not given up."""
    state, world = facts.state, facts.world
    if world.silent.get(name, timedelta()) >= at_least_real(SILENCE, state):
        return "its agent is silent"
    recorded, has_spoken = state.member(name).recorded, name in world.silent or state.member(name).ready is not None
    if has_spoken or recorded is None or world.open_for < at_least_real(SILENCE, state):
        return None
    shown = instances(facts).get(name)
    launched_at = recorded.billed_from if shown is None else shown.launched_at
    return "its agent never reported" if facts.now - launched_at > at_least_real(MUTE_MAX, state) else None


def _condemn_silent(facts: Facts) -> Iterator[Action]:
    state, silent = facts.state, facts.world.silent
    for name in () if state.current is None else state.current.names:
        silence = silent.get(name, timedelta())
        if silence >= at_least_real(SILENCE, state) and state.member(name).condemned is None:
            detail = f"its heartbeat has not changed for {silence.total_seconds():.0f} s"
            yield Append(event=condemned(state, name, Cause.HANG, detail))


def condemned(state: RunState, name: MemberName, cause: Cause, detail: str) -> ev.InstanceCondemned:
    return ev.InstanceCondemned(launch=name.launch, member=state.told(name), cause=cause, detail=detail)
