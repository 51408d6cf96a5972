"""Pools that rest after a quota or a rejected request: how long, what is asked meanwhile, and what people are told."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, InstanceState
from spotrun.market.observations import Fate, observations_of
from spotrun.offering import CapacityType, Offering
from spotrun.policy import Wait
from spotrun.policy.launches import STILLBORN_MAX
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.decisions import MARKET, asked, decided, events_of, instance, spec, trains
from tests.support.histories import ON_DEMAND, SPOT, START, History, offering

SPOT_ONLY = spec(resources={"spot_policy": "spot"})
ONE_POOL = MARKET[:1]
FULL = "VcpuLimitExceeded: 8 of 8 vCPUs are in use"
NO_SUBNET = "InvalidSubnetID.NotFound: subnet-1"


def answered(history: History, cause: Cause, detail: str = "", **world: object) -> ev.AnyEvent | None:
    """Carry out what is decided; the cloud refuses a launch. Returns the first event that was decided on."""
    events = events_of(decided(history, **{"wanted": SPOT_ONLY, **world}))  # type: ignore[arg-type]
    for event in events:
        number = history.write(event)
        if isinstance(event, ev.LaunchIntended):
            history.write(ev.LaunchClosed(launch=number, cause=cause, detail=detail, refused=True))
    return events[0] if events else None


def zone_of(event: ev.AnyEvent | None) -> str | None:
    return event.offering.zone if isinstance(event, ev.LaunchIntended) else None


def minutes_asked(history: History, cause: Cause, hours: int, **world: object) -> list[int]:
    began = history.now
    found = []
    while history.now - began < timedelta(hours=hours):
        if answered(history, cause, **world) is not None:
            found.append(int((history.now - began).total_seconds() / 60))
        history.after(60)
    return found


def has_trained(history: History) -> History:
    trains(history)
    history.commit()
    history.after(600).gone(history.state.current.launch, EndedBy.CLOUD)
    return history.after(3600)


# -- how long --------------------------------------------------------------------------------------------------------


def test_pool_over_quota_is_requested_again_every_ten_minutes() -> None:
    assert minutes_asked(History(), Cause.QUOTA, 1, market=ONE_POOL) == [0, 10, 20, 30, 40, 50]


def test_run_that_has_trained_is_requested_again_from_its_only_rejecting_pool() -> None:
    history = has_trained(History())
    at_once, *later = minutes_asked(history, Cause.EXTERNAL, 4, market=ONE_POOL)
    assert (at_once, later) == (0, [1, 2, 12, 32, 72, 132, 192])


def test_run_that_has_trained_is_requested_every_two_minutes_while_denied_and_says_so() -> None:
    history = has_trained(History())
    assert minutes_asked(history, Cause.ACCESS, 1, market=ONE_POOL)[:4] == [0, 2, 4, 6]
    answered(history, Cause.ACCESS, "UnauthorizedOperation", market=ONE_POOL)
    (wait,) = decided(history, wanted=SPOT_ONLY, market=ONE_POOL)
    assert isinstance(wait, Wait)
    assert "it is denied (UnauthorizedOperation): asked again at" in wait.reason


def test_a_quota_that_has_passed_is_forgotten_once_the_pool_answers_otherwise() -> None:
    history = History()
    for cause in (Cause.QUOTA, Cause.QUOTA, Cause.CAPACITY):
        assert answered(history, cause, market=ONE_POOL) is not None
        history.after(1201)
    assert minutes_asked(history, Cause.QUOTA, 1, market=ONE_POOL) == [0, 10, 20, 30, 40, 50]


def test_quotas_that_were_full_at_an_interruption_keep_no_run_from_going_on_in_the_next_hour() -> None:
    history = has_trained(History())
    while answered(history, Cause.QUOTA) is not None:
        history.after(2)
    history.after(600)
    assert asked(decided(history, SPOT_ONLY)) == ("local-a", SPOT)


# -- one quota of several pools, and rights that are lost --------------------------------------------------------------

OF_ONE_QUOTA = tuple(replace(found, quota="vCPUs of G", cpus=8) for found in MARKET[:3])


def pools_asked(history: History, cause: Cause, minutes: int, market: tuple[Offering, ...]) -> list[tuple[int, str]]:
    """Each request, with its minute and its zone. The runner decides again at once after a refusal."""
    began, found = history.now, []
    while (minute := int((history.now - began).total_seconds() / 60)) < minutes:
        while (zone := zone_of(answered(history, cause, market=market))) is not None:
            found.append((minute, zone.removeprefix("local-")))
        history.after(60)
    return found


def test_pools_of_a_full_quota_are_requested_in_turns() -> None:
    asked_for = pools_asked(History(), Cause.QUOTA, 60, OF_ONE_QUOTA)
    assert asked_for == [(0, "a"), (10, "b"), (20, "c"), (30, "a"), (40, "b"), (50, "c")]


def test_pools_of_another_quota_and_smaller_instances_are_requested_while_a_quota_is_full() -> None:
    other = replace(MARKET[1], quota="vCPUs of P", cpus=8)
    small = replace(MARKET[2], quota="vCPUs of G", cpus=4)
    asked_for = pools_asked(History(), Cause.QUOTA, 9, (*OF_ONE_QUOTA[:1], other, small))
    assert asked_for == [(0, "a"), (0, "b"), (0, "c")]


def test_quota_that_has_room_again_makes_no_pool_wait_for_its_turn() -> None:
    history = History()
    answered(history, Cause.QUOTA, market=OF_ONE_QUOTA)
    history.after(600)
    history.gone(trained := history.write(events_of(decided(history, SPOT_ONLY, market=OF_ONE_QUOTA))[0]))
    assert history.state.launches[trained].intent.offering.zone == "local-b"
    assert asked(decided(history.after(3600), SPOT_ONLY, market=OF_ONE_QUOTA)) == ("local-a", SPOT)


def test_pools_are_requested_in_turns_after_a_right_was_lost() -> None:
    asked_for = pools_asked(has_trained(History()), Cause.ACCESS, 9, MARKET[:3])
    assert asked_for == [(0, "a"), (0, "b"), (0, "c"), (2, "a"), (4, "b"), (6, "c"), (8, "a")]


def test_run_whose_spot_is_denied_goes_on_demand_at_once() -> None:
    history = History()
    for zone in ("local-a", "local-b", "local-c"):
        assert zone_of(answered(history, Cause.ACCESS, "an SCP", wanted=spec())) == zone
    assert asked(decided(history)) == ("local-a", ON_DEMAND)


def test_run_with_a_deadline_goes_on_demand_at_once_if_spot_is_denied() -> None:
    history = History(deadline_at=START + timedelta(hours=10))
    wanted = spec(policy={"deadline": "10h", "expected_work": "1h"})
    for _ in MARKET[:3]:
        answered(history, Cause.ACCESS, "an SCP", wanted=wanted)
    assert asked(decided(history, wanted)) == ("local-a", ON_DEMAND)


def test_a_denied_type_leaves_the_others_to_be_requested() -> None:
    history, other = History(), replace(MARKET[1], instance_type="sim-2")
    answered(history, Cause.ACCESS, "an SCP", market=(MARKET[0], other))
    assert asked(decided(history, SPOT_ONLY, market=(MARKET[0], other))) == ("local-b", SPOT)


def test_run_that_never_trained_fails_once_every_pool_is_denied() -> None:
    history = History()
    found = [answered(history, Cause.ACCESS, "an SCP", market=MARKET[:3]) for _ in range(4)]
    assert [type(event) for event in found] == [ev.LaunchIntended] * 3 + [ev.RunFailed]
    assert isinstance(found[-1], ev.RunFailed)
    assert (found[-1].cause, found[-1].detail) == (Cause.ACCESS, "an SCP")


# -- what is asked meanwhile -----------------------------------------------------------------------------------------


def test_a_zone_that_rejects_the_request_rests_and_another_trains() -> None:
    history = History()
    assert zone_of(answered(history, Cause.EXTERNAL, NO_SUBNET)) == "local-a"
    assert asked(decided(history, SPOT_ONLY)) == ("local-b", SPOT)
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    assert events_of(decided(history, SPOT_ONLY)) == []


def test_after_a_rejection_the_other_types_of_its_zone_come_last() -> None:
    types = tuple(replace(MARKET[0], instance_type=name) for name in ("sim-1", "sim-2", "sim-3"))
    history, market = History(), (*types, *MARKET[1:])
    zones = [zone_of(answered(history, Cause.EXTERNAL, NO_SUBNET, market=market)) for _ in range(5)]
    assert zones == ["local-a", "local-b", "local-c", "local-a", "local-a"]


def test_rejected_request_is_sent_at_once_with_another_subnet() -> None:
    history = has_trained(History())
    old, new = (replace(MARKET[0], subnet=name) for name in ("subnet-1", "subnet-2"))
    for _ in range(STILLBORN_MAX):
        answered(history, Cause.EXTERNAL, NO_SUBNET, market=(old,))
    assert asked(decided(history, SPOT_ONLY, market=(old,))) is None
    assert asked(decided(history, SPOT_ONLY, market=(new,))) == ("local-a", SPOT)


@pytest.mark.parametrize("market", [ONE_POOL, MARKET[:2], MARKET[:3]])
def test_a_run_that_never_trained_fails_once_every_pool_has_rejected_it_and_three_did_in_a_row(
    market: tuple[Offering, ...],
) -> None:
    history = History()
    found = [answered(history, Cause.EXTERNAL, NO_SUBNET, market=market) for _ in range(STILLBORN_MAX + 1)]
    assert all(isinstance(event, ev.LaunchIntended) for event in found[:-1])
    assert isinstance(found[-1], ev.RunFailed)
    assert found[-1].detail == f"the cloud rejects the request: {NO_SUBNET}"


@pytest.mark.exhaustive
def test_rejection_fails_no_run_while_another_pool_only_lacks_capacity() -> None:
    history = History()
    for minute in range(300):
        here = asked(decided(history, SPOT_ONLY, market=MARKET[:2]))
        cause = Cause.EXTERNAL if here == ("local-a", SPOT) else Cause.CAPACITY
        assert not isinstance(answered(history, cause, market=MARKET[:2]), ev.RunFailed), f"minute {minute}"
        history.after(60)


@pytest.mark.parametrize("zones", [1, 2, 6])
def test_no_more_than_ten_calls_are_made_during_a_notice_however_many_pools_reject(zones: int) -> None:
    history = History()
    here = trains(history)
    history.notice()
    kinds = ((SPOT, "0.30"), (ON_DEMAND, "1.00"))
    market = tuple(offering(kind, usd, f"local-{n}") for n in range(zones) for kind, usd in kinds)
    calls = 0
    for _ in range(60):
        found = answered(history, Cause.EXTERNAL, NO_SUBNET, wanted=spec(), market=market, instances=[here])
        calls += isinstance(found, ev.LaunchIntended)
        history.after(2)
    assert 1 <= calls <= 10


def test_a_pool_whose_instances_end_before_they_run_lacks_capacity_and_ends_no_run() -> None:
    history, zones = History(), []
    for _ in range(6):
        (intent,) = events_of(decided(history, SPOT_ONLY))
        zones.append(zone_of(intent))
        history.after(20).gone(history.write(intent), EndedBy.CLOUD)
        history.after(30)
    assert zones == ["local-a", "local-b", "local-c"] * 2
    assert {seen.kind for seen in observations_of(history.state)} == {Fate.REFUSED}


def test_a_pool_whose_instances_find_no_room_in_a_quota_rests_like_one_that_says_so() -> None:
    history = History()
    began, found = history.now, []
    while history.now - began < timedelta(hours=3):
        for event in events_of(decided(history, SPOT_ONLY, market=ONE_POOL)):
            found.append(round((history.now - began) / timedelta(minutes=1)))
            history.gone(history.write(event), EndedBy.QUOTA)
        history.after(60)
    assert found == [*range(0, 180, 10)]
    assert history.state.terminal is None
    assert [*observations_of(history.state)] == [], "a quota says nothing of the market"


# -- what the cloud cannot start -------------------------------------------------------------------------------------


def started_in_vain(history: History, at_fault: Container[CapacityType], **world: object) -> list[ev.AnyEvent]:
    """Carry out what is decided: the cloud accepts each launch, and starts none of the types that are at fault."""
    events = events_of(decided(history, **world))  # type: ignore[arg-type]
    for event in events:
        number = history.write(event)
        if not isinstance(event, ev.LaunchIntended):
            continue
        if event.offering.capacity_type in at_fault:
            history.after(25).gone(number, EndedBy.FAULT)
        else:
            history.record(number)
            history.start(number)
    return events


def test_a_run_goes_on_demand_once_each_spot_pool_has_failed_to_start_an_instance() -> None:
    history, asked_for = History(), []
    for _ in range(5):
        for event in started_in_vain(history, {SPOT}):
            assert isinstance(event, ev.LaunchIntended)
            asked_for.append(event)
        history.after(2)
    pools = [(event.offering.zone, event.offering.capacity_type) for event in asked_for]
    assert pools == [("local-a", SPOT), ("local-b", SPOT), ("local-c", SPOT), ("local-a", ON_DEMAND)]
    assert asked_for[-1].reason == "first launch: no spot pool accepts the request"
    assert history.state.current is not None


def test_a_run_with_one_spot_pool_tries_it_three_times_and_goes_on_demand() -> None:
    history, asked_for = History(), []
    for _ in range(6):
        asked_for += started_in_vain(history, {SPOT}, market=(*ONE_POOL, MARKET[3]))
        history.after(2)
    kinds = [event.offering.capacity_type for event in asked_for if isinstance(event, ev.LaunchIntended)]
    assert kinds == [SPOT, SPOT, SPOT, ON_DEMAND]


def test_spot_that_the_cloud_rejects_leads_to_on_demand_too() -> None:
    history = History()
    for _ in MARKET[:3]:
        answered(history, Cause.EXTERNAL, NO_SUBNET, wanted=spec())
    assert asked(decided(history)) == ("local-a", ON_DEMAND)


def test_a_run_that_never_trained_fails_once_no_pool_of_any_type_starts_an_instance() -> None:
    history, events = History(), []
    for _ in range(8):
        events += started_in_vain(history, {SPOT, ON_DEMAND})
        history.after(2)
        if history.state.terminal is not None:
            break
    assert [type(event) for event in events] == [ev.LaunchIntended] * 5 + [ev.RunFailed]
    assert history.state.terminal is not None
    assert history.state.terminal.detail == "the cloud rejects the request: the cloud's record"


def test_pools_that_start_no_instance_rest_ever_longer_during_a_training() -> None:
    history = has_trained(History())
    began, found = history.now, []
    while history.now - began < timedelta(hours=3):
        events = started_in_vain(history, {SPOT}, wanted=SPOT_ONLY, market=ONE_POOL)
        found += [round((history.now - began) / timedelta(minutes=1)) for _ in events]
        history.after(35)
    assert found[0] == 0
    assert found[3] - found[2] >= 10
    assert found[4] - found[3] >= 20
    assert history.state.terminal is None
    assert [each.kind for each in observations_of(history.state)] == [Fate.LOST], "it says nothing of the market"


def test_an_instance_that_was_seen_before_the_cloud_failed_to_start_it_counts_as_one_that_never_ran() -> None:
    history = History()
    (intent,) = events_of(decided(history))
    number = history.write(intent)
    history.record(number)
    ended = {"ended_at": history.now, "ended_by": EndedBy.FAULT, "end_reason": "Client.InternalError"}
    here = instance(history, number, InstanceState.TERMINATED, billed_from=None, prices=(), **ended)
    (gone,) = events_of(decided(history, instances=[here]))
    history.write(gone)
    assert history.state.launches[number].failed_to_start
    assert asked(decided(history)) == ("local-b", SPOT)


# -- what is told ----------------------------------------------------------------------------------------------------


def told(history: History, market: tuple[Offering, ...] = MARKET) -> str:
    (wait,) = decided(history, SPOT_ONLY, market=market)
    assert isinstance(wait, Wait)
    return wait.reason


def test_full_quota_is_reported_in_the_words_of_the_cloud_and_not_as_lack_of_capacity() -> None:
    history = History()
    for _ in range(3):
        answered(history, Cause.QUOTA, FULL)
    assert told(history) == (
        "no spot pool may be requested just now; sim-gpu spot in local/local-a, a quota is full "
        f"({FULL}): asked again at 12:10:00 UTC"
    )


def test_quota_that_ends_an_instance_is_reported_as_a_quota() -> None:
    history = History()
    for _ in range(3):
        (intent,) = events_of(decided(history, SPOT_ONLY))
        history.gone(history.write(intent), EndedBy.QUOTA)
    assert "a quota is full (the cloud's record): asked again at 12:10:00 UTC" in told(history)


def test_lack_of_capacity_and_a_rejection_are_both_reported() -> None:
    history = History()
    answered(history, Cause.EXTERNAL, NO_SUBNET)
    for _ in range(2):
        answered(history, Cause.CAPACITY)
    assert told(history).startswith("no spot capacity in any zone just now; sim-gpu spot in local/local-a, the request")
    assert NO_SUBNET in told(history)


def test_pool_that_starts_no_instance_is_reported_in_the_words_of_the_cloud() -> None:
    history = History()
    started_in_vain(history, {SPOT}, wanted=SPOT_ONLY)
    for _ in range(2):
        answered(history, Cause.CAPACITY)
    assert "sim-gpu spot in local/local-a, the cloud cannot start an instance (the cloud's record)" in told(history)
