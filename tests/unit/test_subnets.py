"""Which subnet and zone a run starts in, by what became of its instances in those before."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from spotrun.instance import EndedBy
from spotrun.offering import Offering
from spotrun.policy.subnets import AVOIDED_FOR, surrounded
from spotrun.run import events as ev
from spotrun.run.entry_bytes import decode_entry, encode_entry
from spotrun.run.events import Cause, ResumeRequested
from tests.support.decisions import decided, events_of, spec
from tests.support.histories import ON_DEMAND, SPOT, History, offering

TWO_SUBNETS = replace(offering(SPOT, "0.30", "local-a"), subnet="subnet-1", other_subnets=("subnet-2",))
ONE_SUBNET = replace(offering(SPOT, "0.40", "local-b"), subnet="subnet-3")
MARKET = (TWO_SUBNETS, ONE_SUBNET, replace(offering(ON_DEMAND, "1.00", "local-a"), subnet="subnet-1"))
SPOT_ONLY = spec(resources={"spot_policy": "spot"})
HURRIED = spec(policy={"deadline": "10h", "expected_work": "1h"})


def stillborn(history: History, market: tuple[Offering, ...] = MARKET, wanted: object = SPOT_ONLY) -> str:
    """Launch what is decided; its instance runs, and ends by itself before its agent takes over. Returns its subnet."""
    (intent,) = events_of(decided(history, wanted, market=market))  # type: ignore[arg-type]
    assert isinstance(intent, ev.LaunchIntended)
    number = history.write(intent)
    history.after(30).record(number)
    history.after(300).gone(number, EndedBy.ITSELF)
    return intent.offering.subnet


@pytest.mark.parametrize("wanted", [SPOT_ONLY, spec(), HURRIED], ids=["spot", "auto", "by a deadline"])
def test_stillborn_instances_lead_to_another_subnet_and_then_another_zone(wanted: object) -> None:
    history = History()
    assert [stillborn(history, wanted=wanted) for _ in range(3)] == ["subnet-1", "subnet-2", "subnet-3"]
    (failure,) = events_of(decided(history, SPOT_ONLY, market=MARKET))
    assert isinstance(failure, ev.RunFailed)


def test_an_intent_says_why_it_leaves_the_first_subnet() -> None:
    history = History()
    stillborn(history)
    (intent,) = events_of(decided(history, SPOT_ONLY, market=MARKET))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.reason.endswith("; in subnet-2, as the last instance in subnet-1 never trained")


def test_an_instance_that_was_given_up_mute_counts_as_stillborn() -> None:
    history = History()
    number = history.launch(subnet="subnet-1")
    history.record(number)
    history.after(840).close(number, Cause.EXTERNAL)
    assert surrounded(history.state, TWO_SUBNETS).subnet == "subnet-2"


@pytest.mark.parametrize("by", [EndedBy.CLOUD, EndedBy.QUOTA])
def test_an_instance_that_the_cloud_took_says_nothing_of_its_subnet(by: EndedBy) -> None:
    history = History()
    history.gone(history.launch(subnet="subnet-1"), by)
    assert surrounded(history.state, TWO_SUBNETS).subnet == "subnet-1"


def test_a_rejected_request_says_nothing_of_its_subnet() -> None:
    """The driver has looked the subnets up again, and a fault of a disk's key is none of the network."""
    history = History()
    history.write(ev.LaunchClosed(launch=history.launch(subnet="subnet-1"), cause=Cause.EXTERNAL, refused=True))
    history.gone(history.launch(subnet="subnet-1"), EndedBy.FAULT)
    assert surrounded(history.state, TWO_SUBNETS).subnet == "subnet-1"


def test_a_subnet_that_has_trained_since_is_the_first_again() -> None:
    history = History()
    stillborn(history)
    launch = history.launch(subnet="subnet-1")
    history.record(launch)
    history.start(launch)
    assert surrounded(history.state, TWO_SUBNETS).subnet == "subnet-1"


def test_a_resumed_run_begins_with_the_first_subnet() -> None:
    history = History()
    for _ in range(3):
        stillborn(history)
    history.write(ev.RunFailed(cause=Cause.EXTERNAL, detail="by the test"))
    history.after(60).write(ResumeRequested(by="a person"))
    assert stillborn(history) == "subnet-1"


def test_zone_whose_subnets_all_failed_comes_first_again_after_an_hour() -> None:
    history, market = History(), (replace(TWO_SUBNETS, other_subnets=UNSET), ONE_SUBNET)
    assert stillborn(history, market) == "subnet-1"
    assert asked_subnet(history, market) == "subnet-3"
    history.after(AVOIDED_FOR.total_seconds())
    assert asked_subnet(history, market) == "subnet-1"


def asked_subnet(history: History, market: tuple[Offering, ...]) -> str:
    (intent,) = events_of(decided(history, SPOT_ONLY, market=market))
    assert isinstance(intent, ev.LaunchIntended)
    return intent.offering.subnet


def test_a_runner_that_reads_the_ledger_again_decides_the_same() -> None:
    """The other subnets are no part of an entry, and an entry without the field is read."""
    history = History()
    stillborn(history)
    stored = [encode_entry(entry) for entry in history.entries]
    assert b"subnet-2" not in b"".join(stored)
    again = History()
    again.now = history.now
    for entry in (decode_entry(data) for data in stored[1:]):
        assert entry is not None
        again.write(entry.event)
    assert asked_subnet(again, MARKET) == "subnet-2"
