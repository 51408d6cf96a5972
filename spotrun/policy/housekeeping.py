"""
Records in the ledger what the cloud reports about instances, so that they can be billed. Ends instances that should not
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

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
from spotrun.run.billing import switched_off_at, until_switched_off
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.reasons import shortened
from spotrun.run.state import Launch, RunState
from spotrun.units import to_the_second

SILENCE = timedelta(minutes=4)
"""
Time without a new heartbeat after which an agent counts as gone (protocol 16). Time during which the runner itself
could not write to the store is not counted.

An agent writes a heartbeat every 2 s. A write that hangs takes up to 70 s, and an outage of the store may add 2 minutes
of silence. Together this is less than the limit, so an agent that still works does not count as gone. The runner polls
every 15 s, and notices the silence two polls after the limit. So a silent agent is detected within five minutes.
"""
MUTE_MAX = timedelta(minutes=14)
"""
Maximum time from an instance's launch to its agent's first report. After this time, the instance is given up.

The agent's first report comes before the job's own set-up. Before that report, the instance only boots, and installs at
most PyTorch and Lightning. Including the time until the runner's next poll, an instance is given up within a quarter of
an hour.
"""
FORGOTTEN_AFTER = timedelta(minutes=10)
LISTED_AFTER_END = timedelta(hours=1)
"""
Time for which a cloud lists an instance after its end. EC2's is the shortest:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html
"""
DELETED_WITHIN = timedelta(minutes=5)
"""Time within which an instance that has shut down is usually deleted: a runner requests it after its next list."""


def record(facts: Facts) -> Iterator[Action]:
    """
    Record the facts from which the bill is computed: the instances that exist, the times at which the cloud began to
    charge for them, and the instances that have ended.
    """
    for name, instance in instances(facts).items():
        launch, member = facts.state.launches[name.launch], facts.state.member(name)
        if member.gone is not None or (launch.settled and instance.never_ran):
            continue
        if not instance.alive:
            yield Append(event=_gone(facts.state, name, instance))
        elif member.recorded is None and instance.billed_from is not None:
            yield Append(event=_recorded(facts.state, name, instance, instance.billed_from))
        elif (off_since := _off_for_long(facts, name, instance)) is not None:
            yield Append(
                event=ev.InstanceStopped(launch=name.launch, member=facts.state.told(name), stopped_at=off_since)
            )


def _off_for_long(facts: Facts, name: MemberName, instance: Instance) -> datetime | None:
    """
    Return the time at which the instance shut down, if it should have been deleted by now, and its machine still has a
    price in the ledger. Otherwise return None: an instance that is deleted soon needs no entry of its own for this.
    """
    prices, off_since = facts.state.member(name).prices, instance.off_since
    counts = bool(prices) and switched_off_at(prices) is None
    return off_since if counts and off_since is not None and facts.now - off_since > DELETED_WITHIN else None


@once
def instances(facts: Facts) -> dict[MemberName, Instance]:
    """
    Return the instance of each member that has one in the cloud's list.

    The list may contain other instances with the same tags, because consoles copy the tags when a user launches
    "another like this". If the ledger has recorded the member's instance, return that instance. Otherwise return the
    oldest instance with these tags.
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
        billed_from=_began(state, name, billed_from),
        prices=_prices(state, name, instance, billed_from),
    )


def _began(state: RunState, name: MemberName, told: datetime) -> datetime:
    """
    Return the start of billing: `told`, or the boot of the instance if its agent reports an earlier one. EC2 does not
    report when an instance began to run, and a list that is late shows it as pending for too long.
    """
    booted_at = state.booted_at(name)
    return told if booted_at is None else min(told, max(booted_at, state.launches[name.launch].intended_at))


def _gone(state: RunState, name: MemberName, instance: Instance) -> ev.InstanceGone:
    assert instance.ended_at is not None
    assert instance.ended_by is not None
    member, launch = state.member(name), state.launches[name.launch]
    # Prefer the start of billing in the ledger, because the cloud's report while the instance was running is more
    # reliable than its present report. If the instance never ran, use the present report.
    is_told = member.recorded is None or (instance.never_ran and not launch.came_up)
    billed_from = instance.billed_from if is_told or member.recorded is None else member.recorded.billed_from
    billed_from = None if billed_from is None else _began(state, name, billed_from)
    return ev.InstanceGone(
        launch=name.launch,
        member=state.told(name),
        instance_id=instance.instance_id,
        billed_from=billed_from,
        # The end must not be before the start of billing, even if two runners with different clocks recorded the two
        # times.
        ended_at=max(instance.ended_at, billed_from or instance.ended_at),
        ended_by=instance.ended_by,
        prices=_prices_to_the_end(state, name, instance, billed_from),
        evidence=f"the cloud's record: ended by {instance.ended_by}" + _told(instance.end_reason),
    )


def _prices(
    state: RunState, name: MemberName, instance: Instance, billed_from: datetime | None
) -> tuple[PriceSegment, ...]:
    """
    Return the prices of an instance, as the cloud reports them or as the ledger recorded them earlier.

    If neither the cloud nor the ledger has a price, return the price at which the instance was requested. Prices are
    missing if a cloud denies access to its price history, or if an instance was deleted together with its tags.
    """
    found = instance.prices or state.member(name).prices
    asked_at_usd = state.launches[name.launch].intent.offering.price_usd_per_hour
    if found or billed_from is None or not asked_at_usd:
        return found
    return (PriceSegment(since=billed_from, usd_per_hour=asked_at_usd),)


def _prices_to_the_end(
    state: RunState, name: MemberName, instance: Instance, billed_from: datetime | None
) -> tuple[PriceSegment, ...]:
    """Return the prices of an instance that has ended. EC2 does not report when it had been stopped before its end."""
    prices = _prices(state, name, instance, billed_from)
    off_since = instance.off_since or switched_off_at(state.member(name).prices)
    if off_since is None or not prices or switched_off_at(prices) is not None:
        return prices
    return until_switched_off(prices, off_since)


def _told(reason: str) -> str:
    return f" ({shortened(reason)})" if reason else ""


def clean_up(facts: Facts) -> Iterator[Action]:
    """End the instances that should not run, and give up the launches that did not succeed."""
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
    """
    Yield a message for each orphan that is still alive: an instance that has the tags of this run, and is not in the
    run's ledger. The user needs the message because the ledger records neither the cost nor the end of an orphan.
    """
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
        elif _is_settled_without(facts, launch) and state.shown(name) is None:
            yield Append(event=_never_seen(facts, name))
        elif _is_settled_without(facts, launch) and not _lives(facts, name):
            yield Append(event=unseen_end(facts, name))
    if len(unlisted) == len(launch.members) and launch.recorded is None and launch.closed is None:
        yield from _not_launched(facts, launch)


def _not_listed_again(facts: Facts, name: MemberName) -> Iterator[Action]:
    """
    Record the end of an instance that the cloud no longer lists, unless its agent still writes heartbeats.
    """
    recorded = facts.state.member(name).recorded
    assert recorded is not None
    is_over = facts.now - recorded.billed_from > FORGOTTEN_AFTER or _had_time_to_go(facts, name)
    if is_over and not _lives(facts, name):
        yield Append(event=unseen_end(facts, name))


def _lives(facts: Facts, name: MemberName) -> bool:
    """
    Return True if the agent of a member that the run still needs writes heartbeats. An instance that was listed may
    still boot, so it needs none.
    """
    state = facts.state
    wanted = state.launches[name.launch].closed is None and not has_left(state, name)
    unheard = SILENCE if state.member(name).recorded is None else timedelta()
    return wanted and facts.world.silent.get(name, unheard) < SILENCE


def _is_settled_without(facts: Facts, launch: Launch) -> bool:
    """
    Return True if a launch is over, and the cloud has had enough time to list all its instances. An instance that the
    cloud has not listed by then does not exist.

    A launch is over if it was closed, or if it can no longer be closed because one of its members has reported ready.
    """
    had_time = facts.now - launch.intent.not_after > FORGOTTEN_AFTER
    if launch.closed is not None:
        return had_time and not launch.closed.refused
    return had_time and (launch.came_up or any(member.recorded or member.gone for member in launch.members))


def _not_launched(facts: Facts, launch: Launch) -> Iterator[Action]:
    """
    Repeat the request of a launch for which the cloud has shown no instance. If it is too late for requests, close the
    launch.
    """
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
    """
    Return True if the time by which the member's instance had to leave is long enough ago that it should have ended.
    """
    over_at = over_by(facts.state, name)
    return over_at is not None and facts.now > over_at


def forbidden(facts: Facts, intent: ev.LaunchIntended) -> str | None:
    """
    Return the reason why the launch that `intent` records must not be requested any more (protocol 10); None if it may
    still be requested. The limits in the job and the budget are not checked here, because the fold has checked them.
    """
    wanted = [found for found in within_price(facts) if found.pool == intent.offering.pool]
    capacity_type = intent.offering.capacity_type
    if not wanted and capacity_type is CapacityType.OWN:
        return f"{intent.offering} is no longer free"
    if not wanted or not may_be_of(facts.spec, capacity_type):
        return f"{intent.offering} is not an offering that the job allows now"
    if wanted[0].price_usd_per_hour > intent.price_ceiling_usd_per_hour:
        return f"{intent.offering} costs more now than was reserved for it"
    offered = surrounded(facts.state, wanted[0])
    same = replace(intent.offering, price_usd_per_hour=offered.price_usd_per_hour, quota=offered.quota)
    if same != offered:
        return f"{intent.offering} is offered with another image, network or launch template now"
    if intent.time_to_live_s > TIME_TO_LIVE.total_seconds():
        return (
            f"it would live for {to_the_second(timedelta(seconds=intent.time_to_live_s))}, longer than any instance may"
        )
    return None


def _never_seen(facts: Facts, name: MemberName) -> ev.InstanceGone:
    """
    Record the end of a member for which the cloud never listed an instance, and will not be asked for one again. This
    releases the money reserved for the member. If no runner was there for longer than clouds list what has ended, there
    may have been an instance.
    """
    state = facts.state
    is_late = facts.now - state.launches[name.launch].intent.not_after > LISTED_AFTER_END
    return ev.InstanceGone(
        launch=name.launch,
        member=state.told(name),
        instance_id="",
        billed_from=None,
        ended_at=state.launches[name.launch].intent.not_after,
        ended_by=EndedBy.FAULT,
        prices=(),
        evidence="the cloud never showed an instance of it",
        bounded_by="the first list, which was too late" if is_late else "",
    )


def _give_up_mute(facts: Facts) -> Iterator[Action]:
    """
    End the members that do not train yet, and whose agent has become silent or has never reported.

    If no member of a launch has been ready yet, the whole launch is given up (protocol 46).
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
    """Return the members that are still booting, or are ready and waiting for an attempt."""
    if not state.of_gangs:
        return [] if state.pending_launch is None else [*state.pending_launch.names]
    training = () if state.current is None else state.current.names
    wanted = (name for name in state.names() if state.is_wanted(name))
    return [name for name in wanted if name not in training and not has_left(state, name)]


def _mute(facts: Facts, name: MemberName) -> str | None:
    """
    Return the reason to give up a member that does not train yet: its agent is silent, or never reported. Return None
    if there is no such reason.
    """
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
