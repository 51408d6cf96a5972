"""The runner between a ledger and a cloud: crashes, lost answers, a second runner, a blind moment, a whole run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.errors import AccessDenied, CloudUnavailable
from spotrun.folder.heartbeats import LOOK_EVERY_S
from spotrun.instance import EndedBy
from spotrun.policy.housekeeping import SILENCE
from spotrun.run import events as ev
from spotrun.run.fold import fold
from spotrun.runner import Runner, Tick
from spotrun.simulation.world.faults import Killed
from tests.support.town import STEPS, Town
from tests.support.worlds import MARKET, SPOT

# -- a run, its store and its cloud ----------------------------------------------------------------------------------


@pytest.fixture
def town() -> Town:
    return Town()


# -- launching -------------------------------------------------------------------------------------------------------


def test_a_launch_is_intended_executed_and_recorded_in_that_order(town: Town) -> None:
    runner = town.runner()
    runner.tick()
    assert (town.kinds(), town.cloud.launches) == (["RunCreated", "LaunchIntended"], [])
    runner.tick()
    assert [request.token for request in town.cloud.launches] == [f"{town.uid}-1"]
    town.clock.advance(31)
    runner.tick()
    assert town.kinds() == ["RunCreated", "LaunchIntended", "LaunchRecorded"]


def test_a_crash_between_intent_and_launch_is_made_good_by_any_other_runner(town: Town) -> None:
    town.runner().tick()
    assert town.cloud.alive == []
    town.runner().tick()
    assert len(town.cloud.alive) == 1


def test_a_lost_launch_answer_gives_no_second_instance(town: Town) -> None:
    def lose(name: str) -> None:
        if name == "launch":
            raise CloudUnavailable("the answer was lost")

    runner = town.runner(after=lose)
    runner.tick()
    assert runner.tick().blind == "the answer was lost"
    for _ in range(3):
        runner.tick()
        town.runner().tick()
    assert len(town.cloud.all) == 1
    assert town.kinds().count("LaunchIntended") == 1


def test_a_refused_launch_is_closed_and_the_next_zone_is_asked(town: Town) -> None:
    town.market.empty = {MARKET[0].pool}
    town.settle(town.runner(), 5)
    assert [found.offering.zone for found in town.cloud.alive] == ["local-1b"]
    assert town.kinds() == ["RunCreated", "LaunchIntended", "LaunchClosed", "LaunchIntended"]


def test_a_burst_of_ticks_asks_on_until_a_zone_has_capacity_and_then_waits(town: Town) -> None:
    town.market.empty = {MARKET[0].pool}
    runner, began_s = town.runner(), town.clock.monotonic()
    ticks = list(runner.ticks())
    assert [found.offering.zone for found in town.cloud.alive] == ["local-1b"]
    assert [tick.wrote for tick in ticks] == [True, True, True, False]
    assert len(list(runner.ticks())) == 1
    assert town.clock.monotonic() == began_s


def test_a_cloud_that_knows_us_no_longer_ends_the_runner_and_nothing_else(town: Town) -> None:
    def deny(name: str) -> None:
        if name == "offerings":
            raise AccessDenied("the key has expired")

    town.settle(town.runner(), 2)
    with pytest.raises(AccessDenied):
        town.runner(before=deny).tick()
    assert len(town.cloud.alive) == 1


def test_a_launch_that_the_credentials_forbid_fails_the_run_and_leaves_nothing(town: Town) -> None:
    def deny(name: str) -> None:
        if name == "launch":
            raise AccessDenied("not authorized: ec2:RunInstances")

    last = town.settle(town.runner(before=deny), 5)
    assert last.done
    assert town.state().terminal.outcome == "failed"
    assert "RunInstances" in town.state().terminal.detail
    assert town.cloud.all == []


# -- two runners -----------------------------------------------------------------------------------------------------


def test_two_runners_in_turn_rent_one_instance(town: Town) -> None:
    one, two = town.runner(), town.runner()
    for _ in range(5):
        one.tick()
        two.tick()
    assert len(town.cloud.all) == 1
    assert town.kinds().count("LaunchIntended") == 1


def test_an_instance_that_another_runner_launched_between_our_two_looks_is_not_an_orphan(town: Town) -> None:
    """
    Protocol 9 reads the ledger first and the cloud second. That alone is not enough: this runner has read the ledger
    when the other one intends and launches, and then finds an instance that it does not know. So it looks into the
    ledger again (Runner._observe).
    """
    other, looks = town.runner(), itertools.count()

    def meanwhile(name: str) -> None:
        if name == "list" and town.cloud.all == [] and next(looks) == 1:  # the first list is the ledger's
            town.settle(other, 2)
            assert len(town.cloud.alive) == 1

    town.runner(before=meanwhile).tick()
    assert next(looks) > 1
    assert town.cloud.terminations == []
    assert len(town.cloud.alive) == 1


def test_a_real_orphan_is_ended_and_the_known_instance_is_not(town: Town) -> None:
    runner = town.runner()
    town.settle(runner)
    known = town.cloud.launches[0]
    town.cloud.launch(replace(known, token="orphan", launch=77))
    runner.tick()
    assert [found.token for found in town.cloud.alive] == [known.token]


# -- unknown is not dead ---------------------------------------------------------------------------------------------


def test_a_blind_runner_does_nothing_and_says_so(town: Town) -> None:
    runner = town.runner()
    for _ in range(12):
        town.turn()
        runner.tick()
    assert town.state().current is not None
    before = town.kinds()
    town.cloud.down = True
    town.clock.advance(timedelta(hours=5).total_seconds())
    assert runner.tick().blind == "the cloud does not answer"
    town.cloud.down = False
    assert (town.kinds(), town.cloud.terminations) == (before, [])


def test_a_laptop_that_slept_finds_its_attempt_alive(town: Town) -> None:
    runner = town.runner()
    for _ in range(12):
        town.turn()
        runner.tick()
    attempt = town.state().current_attempt
    town.clock.advance(timedelta(hours=5).total_seconds())  # nobody acts
    runner.tick()
    assert town.state().current_attempt == attempt
    assert "InstanceCondemned" not in town.kinds()


def test_an_agent_that_is_silent_while_we_see_is_condemned_and_replaced(town: Town) -> None:
    runner = town.runner()
    for _ in range(12):
        town.turn()
        runner.tick()
    silent = town.training_on()
    for _ in range(int((SILENCE.total_seconds() + 2 * LOOK_EVERY_S) / 10) + 5):
        town.clock.advance(10)
        runner.tick()
    assert silent.instance_id in town.cloud.terminations
    condemned = fold(entries_of(town)).launches[silent.launch].condemned
    assert condemned is not None
    assert town.kinds().count("LaunchIntended") == 2


def entries_of(town: Town) -> Iterator[ev.Entry]:
    ledger = town.ledger()
    ledger.refresh()
    return iter(ledger.entries)


# -- whole runs ------------------------------------------------------------------------------------------------------


class Weather:
    """What the market does to the run: a notice after step 20, a loss without one after step 40, no spot from there."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._done: set[int] = set()

    def blow(self) -> None:
        newest, here = self._town.state().latest_commit(), self._town.training_on()
        step = 0 if newest is None else newest.event.step
        if here is not None and step >= 20 and self._once(20):
            self._town.cloud.notice(here.instance_id, after_s=60)
        if here is not None and step >= 40 and self._once(40):
            self._town.cloud.end(here.instance_id, EndedBy.CLOUD)
            self._town.market.no_spot()

    def _once(self, step: int) -> bool:
        first = step not in self._done
        self._done.add(step)
        return first


def attend(town: Town, runners: Iterator[Runner], ticks: int = 400) -> Tick:
    """A whole run. A runner that is killed is followed by the next."""
    weather, runner = Weather(town), next(runners)
    for _ in range(ticks):
        town.turn()
        weather.blow()
        try:
            tick = runner.tick()
        except Killed:
            runner = next(runners)
            continue
        if tick.done:
            return tick
    raise AssertionError("the run did not end")


def check(town: Town) -> None:
    """Completed; nothing left; each instance known, recorded and gone; never more than one and its standby."""
    state = town.state()
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert state.commit(state.terminal.final_commit).event.step == STEPS
    assert town.cloud.alive == []
    assert town.most_alive <= 2
    for instance in town.cloud.all:
        gone = state.launches[instance.launch].gone
        assert gone is not None, "an instance without an end in the ledger"
        assert (gone.instance_id, gone.ended_at, gone.ended_by) == (
            instance.instance_id,
            instance.ended_at,
            instance.ended_by,
        )
        assert gone.prices == instance.prices
    assert len({instance.launch for instance in town.cloud.all}) == len(town.cloud.all)


def test_a_run_through_a_notice_a_loss_and_no_spot_completes(town: Town) -> None:
    attend(town, iter([town.runner()]))
    check(town)
    state = town.state()
    assert [attempt.end.cause for attempt in state.attempts.values()] == [
        ev.Cause.INTERRUPTED,
        ev.Cause.INTERRUPTED,
        ev.Cause.DONE,
    ]
    standby, *_ = [launch for launch in state.launches.values() if launch.intent.standby_for is not None]
    assert standby.attempt is not None
    last = state.launches[list(state.attempts.values())[-1].launch]
    assert last.intent.offering.capacity_type is not SPOT


def killed_at(town: Town, number: int, when: str) -> Runner:
    """A runner that dies before, or behind, its call of that number to a port."""

    def count(_: str) -> None:
        town.calls += 1
        if town.calls == number:
            raise Killed

    return town.runner(**{when: count})


@pytest.mark.exhaustive
def test_a_runner_killed_at_any_call_of_a_port_is_followed_without_duplicate_or_orphan() -> None:
    plain = Town()
    attend(plain, iter([killed_at(plain, -1, "before")]))
    points = list(itertools.product(range(1, plain.calls + 1), ("before", "after")))
    for number, when in points:
        town = Town()
        attend(town, iter([killed_at(town, number, when), town.runner()]))
        try:
            check(town)
            assert len(town.cloud.all) == len(plain.cloud.all), "another number of instances was paid for"
        except AssertionError as error:
            raise AssertionError(f"killed {when} call {number}: {error}") from error
    print(f"{len(points)} crash points of the runner")
    assert len(points) > 300


@pytest.mark.parametrize("seed", range(20))
def test_a_runner_that_is_killed_again_and_again_beside_another_gets_the_run_done(seed: int) -> None:
    rng, town = random.Random(seed), Town()

    def die(_: str) -> None:
        if rng.random() < 0.05:
            raise Killed

    def runners() -> Iterator[Runner]:
        while True:
            yield town.runner(**{rng.choice(["before", "after"]): die})

    other = town.runner()
    turn = town.turn

    def both() -> None:
        turn()
        if rng.random() < 0.3:
            other.tick()

    town.turn = both
    attend(town, runners())
    try:
        check(town)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_a_stopped_run_leaves_nothing_running_and_can_be_resumed(town: Town) -> None:
    runner = town.runner()
    for _ in range(12):
        town.turn()
        runner.tick()
    town.ledger().append(lambda _: ev.StopRequested(by="me"))
    assert attend(town, iter([runner])).state.terminal.outcome == "stopped"
    assert town.cloud.alive == []
    town.ledger().append(lambda _: ev.ResumeRequested(by="me"))
    attend(town, iter([town.runner()]))
    check(town)
