"""Regions stand alone: what one of them says does not depend on whether another one answers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spotrun.clouds.regions import REST_FIRST_S, REST_MAX_S, Regions, regions_of
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable
from tests.support.manual_clock import ManualClock

EAST, WEST = "us-east-1", "us-west-2"


class Asked:
    """Two regions. `down` are those that fail, each with its error; `names` were asked, in order."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.down: dict[str, CloudError] = {}
        self.names: list[str] = []
        self.regions = Regions((EAST, WEST), self.clock)

    def __call__(self, *must_see: str) -> list[str]:
        self.names.clear()
        return [*self.regions.ask(self.question, must_see).values()]

    def question(self, name: str) -> str:
        self.names.append(name)
        if name in self.down:
            raise self.down[name]
        return name


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.mark.parametrize("error", [CloudUnavailable("503"), AccessDenied("OptInRequired")], ids=repr)
def test_a_region_that_fails_is_left_out_and_named(asked: Asked, error: CloudError) -> None:
    asked.down = {WEST: error}
    assert asked(EAST) == [EAST]
    assert asked.regions.left_out == {WEST: error.message}


def test_a_region_that_must_be_seen_fails_thequestion(asked: Asked) -> None:
    asked.down = {WEST: CloudUnavailable("503")}
    for _ in range(2):
        with pytest.raises(CloudUnavailable):
            asked(WEST)
        assert WEST in asked.names
    with pytest.raises(CloudUnavailable):
        asked.regions.ask(asked.question)


def test_failing_region_rests_longer_each_time_and_then_counts_again(asked: Asked) -> None:
    asked.down = {WEST: CloudUnavailable("503")}
    asked_at_s = []
    for _ in range(int(2 * REST_MAX_S)):
        asked()
        if WEST in asked.names:
            asked_at_s.append(asked.clock.monotonic())
        asked.clock.advance(2)
    pauses = [after - before for before, after in pairwise(asked_at_s)]
    assert pauses[:2] == [REST_FIRST_S, 2 * REST_FIRST_S]
    assert max(pauses) == REST_MAX_S
    asked.down = {}
    asked.clock.advance(REST_MAX_S)
    assert asked() == [EAST, WEST]
    assert asked.regions.left_out == {}


def test_all_regions_are_requested_each_time_while_none_answers(asked: Asked) -> None:
    asked.down = {EAST: CloudUnavailable("503"), WEST: CloudUnavailable("503")}
    for _ in range(3):
        with pytest.raises(CloudUnavailable):
            asked()
        assert sorted(asked.names) == [EAST, WEST]
    asked.down = {WEST: CloudUnavailable("503")}
    assert asked() == [EAST]


def test_transient_error_wins_over_a_permanent_one(asked: Asked) -> None:
    asked.down = {EAST: AccessDenied("OptInRequired"), WEST: CloudUnavailable("503")}
    with pytest.raises(CloudUnavailable):
        asked()
    asked.down[WEST] = AccessDenied("OptInRequired")
    with pytest.raises(AccessDenied):
        asked()


def test_a_zone_is_in_the_region_with_whose_name_its_own_begins() -> None:
    names = ("us-east-1", "us-east1", "us-east10", "us-west-2")
    assert regions_of(("us-east-1a", "us-east10-b", "us-west-2-lax-1a"), names) == {
        "us-east-1",
        "us-east10",
        "us-west-2",
    }
    assert regions_of(("us-east1",), names) == {"us-east1"}
    assert regions_of((), names) == set()
    assert regions_of(None, names) is None
