"""The runner between a ledger and a cloud: crashes, lost answers, a second runner, a blind moment, a whole run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.clouds.tolerant_driver import AGAIN_AFTER_S
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable
from spotrun.folder import poll_throttle
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.policy.housekeeping import SILENCE
from spotrun.run import events as ev
from spotrun.run.fold import fold
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from tests.support.played_run import STEPS, PlayedRun
from tests.support.world.faults import Killed
from tests.support.worlds import MARKET, SPOT

# -- a run, its store and its cloud ----------------------------------------------------------------------------------


@pytest.fixture
def played() -> PlayedRun:
    return PlayedRun()


# -- launching -------------------------------------------------------------------------------------------------------


def test_a_launch_is_intended_executed_and_recorded_in_that_order(played: PlayedRun) -> None:
    runner = played.runner()
    runner.tick()
    assert (played.kinds(), played.cloud.launches) == (["RunCreated", "LaunchIntended"], [])
    runner.tick()
    assert [request.token for request in played.cloud.launches] == [f"{played.uid}-1"]
    played.clock.advance(31)
    runner.tick()
    assert played.kinds() == ["RunCreated", "LaunchIntended", "LaunchRecorded"]


def test_runner_acts_on_entries_of_others_before_the_next_tick_is_due(played: PlayedRun) -> None:
    """Somebody asks for a stop 0.7 s after the runner's third look, of which each is 2 s after the one before."""
    ticks: list[tuple[float, Tick]] = []
    asks = played.ledger("somebody")

    def time_passes(name: str) -> None:
        now_s = played.clock.monotonic()
        if ticks and now_s > 4.7 and not asks.refresh().stop_requested:
            asks.append(lambda _: ev.StopRequested(by="somebody"))

    def watch(tick: Tick) -> None:
        ticks.append((played.clock.monotonic(), tick))
        if tick.state.terminal is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played.runner(before=time_passes).run(watch)
    assert sorted({at_s for at_s, _ in ticks}) == [0.0, 2.0, 4.0, 5.0]


def test_a_crash_between_intent_and_launch_is_made_good_by_any_other_runner(played: PlayedRun) -> None:
    played.runner().tick()
    assert played.cloud.alive == []
    played.runner().tick()
    assert len(played.cloud.alive) == 1


def test_a_lost_launch_answer_gives_no_second_instance(played: PlayedRun) -> None:
    def lose(name: str) -> None:
        if name == "launch":
            raise CloudUnavailable("the answer was lost")

    runner = played.runner(after=lose)
    runner.tick()
    assert runner.tick().blind == "the answer was lost"
    for _ in range(3):
        runner.tick()
        played.runner().tick()
    assert len(played.cloud.all) == 1
    assert played.kinds().count("LaunchIntended") == 1


@pytest.mark.parametrize("behind", [False, True])
def test_a_launch_that_is_not_answered_is_given_up_when_no_instance_shows(played: PlayedRun, behind: bool) -> None:
    """`behind`: the cloud has launched it, shows it two minutes later, and what is closed by then is ended."""
    began_s, fails = played.clock.monotonic(), True
    played.cloud.hidden_s = (120.0, 120.0)

    def answer(name: str) -> None:
        if name == "launch" and fails:
            raise CloudUnavailable("HTTP 500")

    runner = played.runner(**{"after" if behind else "before": answer})
    while "LaunchClosed" not in played.kinds():
        runner.tick()
        played.clock.advance(2)
    assert 90 <= played.clock.monotonic() - began_s <= 96
    (given_up,) = played.state.launches.values()
    assert given_up.closed is not None
    assert (given_up.closed.cause, given_up.closed.refused) == (ev.Cause.CAPACITY, False)
    assert given_up.closed.detail.endswith("HTTP 500")
    fails = False
    for _ in range(20):
        played.settle(runner)
        played.clock.advance(10)
    assert [found.offering.capacity_type for found in played.cloud.alive] == [CapacityType.ON_DEMAND]
    assert len(played.cloud.all) == 1 + behind


def test_refused_launch_is_closed_and_the_next_zone_is_requested(played: PlayedRun) -> None:
    played.market.empty = {MARKET[0].pool}
    played.settle(played.runner(), 5)
    assert [found.offering.zone for found in played.cloud.alive] == ["local-1b"]
    assert played.kinds() == ["RunCreated", "LaunchIntended", "LaunchClosed", "LaunchIntended"]


def test_a_burst_of_ticks_asks_on_until_a_zone_has_capacity_and_then_waits(played: PlayedRun) -> None:
    played.market.empty = {MARKET[0].pool}
    runner, began_s = played.runner(), played.clock.monotonic()
    ticks = list(runner.ticks())
    assert [found.offering.zone for found in played.cloud.alive] == ["local-1b"]
    assert [tick.wrote for tick in ticks] == [True, True, True, False]
    assert len(list(runner.ticks())) == 1
    assert played.clock.monotonic() == began_s


def test_a_cloud_that_refuses_us_from_the_first_look_on_ends_the_runner_and_nothing_else(played: PlayedRun) -> None:
    def deny(name: str) -> None:
        if name == "instances":
            raise AccessDenied("not authorized: ec2:DescribeInstances")

    played.settle(played.runner(), 2)
    with pytest.raises(AccessDenied):
        played.runner(before=deny).tick()
    assert len(played.cloud.alive) == 1


def test_a_cloud_that_knew_us_and_knows_us_no_longer_makes_the_runner_blind(played: PlayedRun) -> None:
    bad = Refusals("instances", AccessDenied("the key is gone", hint="make another"))
    runner = played.runner(before=bad)
    played.settle(runner, 2)
    bad.on = True
    assert runner.tick().blind == "the key is gone; try: make another"
    bad.on = False
    assert runner.tick().blind is None
    assert len(played.cloud.alive) == 1


def test_a_launch_that_the_credentials_forbid_fails_the_run_and_leaves_nothing(played: PlayedRun) -> None:
    def deny(name: str) -> None:
        if name == "launch":
            raise AccessDenied("not authorized: ec2:RunInstances")

    last = played.settle(played.runner(before=deny), 60)  # each pool is asked once
    assert last.done
    assert played.state.terminal.outcome == "failed"
    assert "RunInstances" in played.state.terminal.detail
    assert played.cloud.all == []


# -- what is read beside a run ---------------------------------------------------------------------------------------


class Refusals:
    """While it is `on`, calls of that name fail. `asked` counts them."""

    def __init__(self, name: str, error: CloudError) -> None:
        self._name, self._error = name, error
        self.on = False
        self.asked = 0

    def __call__(self, name: str) -> None:
        if self.on and name == self._name:
            self.asked += 1
            raise self._error


ANY_REFUSAL = pytest.mark.parametrize("error", [AccessDenied("no"), CloudUnavailable("no"), CloudError("no")], ids=repr)


@ANY_REFUSAL
def test_prices_and_places_that_cannot_be_read_are_those_known_before(error: CloudError) -> None:
    played = PlayedRun(steps=6000)
    bad = Refusals("offerings", error)
    runner = played.runner(before=bad)
    for _ in range(12):
        played.turn()
        runner.tick()
    bad.on, lost = True, played.training_on()
    assert lost is not None
    tick = runner.tick()
    assert (tick.blind, tick.remark) == (None, "the last known prices and places are used: no")
    played.cloud.end(lost.instance_id, EndedBy.CLOUD)
    for _ in range(12):
        played.turn()
        runner.tick()
    assert played.training_on() not in (None, lost)
    assert bad.asked <= 1 + 120 / AGAIN_AFTER_S
    bad.on = False
    played.clock.advance(AGAIN_AFTER_S)
    assert runner.tick().remark is None


@ANY_REFUSAL
def test_runner_without_offerings_requests_nothing_says_so_and_ends_orphans(
    played: PlayedRun, error: CloudError
) -> None:
    played.settle(played.runner())
    known = played.cloud.launches[0]
    played.cloud.launch(replace(known, token="orphan", launch=77))
    bad = Refusals("offerings", error)
    bad.on, runner = True, played.runner(before=bad)
    runner.tick()
    assert [found.token for found in played.cloud.alive] == [known.token]
    played.cloud.end(played.cloud.alive[0].instance_id, EndedBy.CLOUD)
    last = played.settle(runner)
    assert last.waiting_for == "no instance is requested, because the cloud's offerings are unknown: no"
    assert (played.cloud.alive, played.state.terminal) == ([], None)
    bad.on = False
    played.settle(runner)
    assert len(played.cloud.alive) == 1


@ANY_REFUSAL
def test_instance_that_cannot_be_ended_is_reported_and_terminated_later(played: PlayedRun, error: CloudError) -> None:
    bad = Refusals("terminate", error)
    runner = played.runner(before=bad)
    for _ in range(12):
        played.turn()
        runner.tick()
    trains = played.training_on()
    orphan = played.cloud.launch(replace(played.cloud.launches[0], token="orphan", launch=77))
    bad.on = True
    for _ in range(30):
        played.clock.advance(2)
        tick = runner.tick()
    assert tick.blind is None
    strange = f"{orphan.instance_id} has to end, and its cost is not in the ledger: it belongs to no launch of this run"
    assert tick.remark == f"{strange}; {orphan.instance_id} cannot be ended: no"
    assert played.training_on() == trains
    if not isinstance(error, CloudUnavailable):
        assert bad.asked <= 1 + 60 / AGAIN_AFTER_S
    bad.on = False
    played.clock.advance(AGAIN_AFTER_S)
    runner.tick()
    assert runner.tick().remark is None
    assert [found.token for found in played.cloud.alive] == [played.cloud.launches[0].token]


# -- two runners -----------------------------------------------------------------------------------------------------


def test_two_runners_in_turn_rent_one_instance(played: PlayedRun) -> None:
    one, two = played.runner(), played.runner()
    for _ in range(5):
        one.tick()
        two.tick()
    assert len(played.cloud.all) == 1
    assert played.kinds().count("LaunchIntended") == 1


def test_an_instance_that_another_runner_launched_between_our_two_looks_is_not_an_orphan(played: PlayedRun) -> None:
    """
    Protocol 9 reads the ledger first and the cloud second. That alone is not enough: this runner has read the ledger
    when the other one intends and launches, and then finds an instance that it does not know. So it looks into the
    ledger again (Runner._observe).
    """
    other, looks = played.runner(), itertools.count()

    def meanwhile(name: str) -> None:
        if name == "list" and played.cloud.all == [] and next(looks) == 1:  # the first list is the ledger's
            played.settle(other, 2)
            assert len(played.cloud.alive) == 1

    played.runner(before=meanwhile).tick()
    assert next(looks) > 1
    assert played.cloud.terminations == []
    assert len(played.cloud.alive) == 1


def test_a_real_orphan_is_ended_and_the_known_instance_is_not(played: PlayedRun) -> None:
    runner = played.runner()
    played.settle(runner)
    known = played.cloud.launches[0]
    played.cloud.launch(replace(known, token="orphan", launch=77))
    runner.tick()
    assert [found.token for found in played.cloud.alive] == [known.token]


# -- unknown is not dead ---------------------------------------------------------------------------------------------


def test_a_blind_runner_does_nothing_and_says_so(played: PlayedRun) -> None:
    runner = played.runner()
    for _ in range(12):
        played.turn()
        runner.tick()
    assert played.state.current is not None
    before = played.kinds()
    played.cloud.down = True
    played.clock.advance(timedelta(hours=5).total_seconds())
    assert runner.tick().blind == "the cloud does not answer"
    played.cloud.down = False
    assert (played.kinds(), played.cloud.terminations) == (before, [])


def test_a_laptop_that_slept_finds_its_attempt_alive(played: PlayedRun) -> None:
    runner = played.runner()
    for _ in range(12):
        played.turn()
        runner.tick()
    attempt = played.state.current_attempt
    played.clock.advance(timedelta(hours=5).total_seconds())  # nobody acts
    runner.tick()
    assert played.state.current_attempt == attempt
    assert "InstanceCondemned" not in played.kinds()


def test_an_agent_that_is_silent_while_we_see_is_condemned_and_replaced(played: PlayedRun) -> None:
    runner = played.runner()
    for _ in range(12):
        played.turn()
        runner.tick()
    silent = played.training_on()
    for _ in range(int((SILENCE.total_seconds() + 2 * poll_throttle.EVERY_S) / 10) + 5):
        played.clock.advance(10)
        runner.tick()
    assert silent.instance_id in played.cloud.terminations
    condemned = fold(played.entries).launches[silent.launch].condemned
    assert condemned is not None
    assert played.kinds().count("LaunchIntended") == 2


# -- whole runs ------------------------------------------------------------------------------------------------------


class Weather:
    """What the market does to the run: a notice after step 20, a loss without one after step 40, no spot from there."""

    def __init__(self, played: PlayedRun) -> None:
        self._run = played
        self._done: set[int] = set()

    def blow(self) -> None:
        newest, here = self._run.state.latest_commit(), self._run.training_on()
        step = 0 if newest is None else newest.event.step
        if here is not None and step >= 20 and self._once(20):
            self._run.cloud.notice(here.instance_id, after_s=60)
        if here is not None and step >= 40 and self._once(40):
            self._run.cloud.end(here.instance_id, EndedBy.CLOUD)
            self._run.market.no_spot()

    def _once(self, step: int) -> bool:
        first = step not in self._done
        self._done.add(step)
        return first


def attend(played: PlayedRun, runners: Iterator[Runner], ticks: int = 400) -> Tick:
    """A whole run. A runner that is killed is followed by the next."""
    weather, runner = Weather(played), next(runners)
    for _ in range(ticks):
        played.turn()
        weather.blow()
        try:
            tick = runner.tick()
        except Killed:
            runner = next(runners)
            continue
        if tick.done:
            return tick
    raise AssertionError("the run did not end")


def check(played: PlayedRun) -> None:
    """Completed; nothing left; each instance known, recorded and gone; never more than one and its standby."""
    state = played.state
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert state.commit(state.terminal.final_commit).event.step == STEPS
    assert played.cloud.alive == []
    assert played.most_alive <= 2
    for instance in played.cloud.all:
        gone = state.launches[instance.launch].gone
        assert gone is not None, "an instance without an end in the ledger"
        assert (gone.instance_id, gone.ended_at, gone.ended_by) == (
            instance.instance_id,
            instance.ended_at,
            instance.ended_by,
        )
        assert gone.prices == instance.prices
    assert len({instance.launch for instance in played.cloud.all}) == len(played.cloud.all)


def test_a_run_through_a_notice_a_loss_and_no_spot_completes(played: PlayedRun) -> None:
    attend(played, iter([played.runner()]))
    check(played)
    state = played.state
    assert [attempt.end.cause for attempt in state.attempts.values()] == [
        ev.Cause.INTERRUPTED,
        ev.Cause.INTERRUPTED,
        ev.Cause.DONE,
    ]
    standby, *_ = [launch for launch in state.launches.values() if launch.intent.standby_for is not None]
    assert standby.attempt is not None
    last = state.launches[list(state.attempts.values())[-1].launch]
    assert last.intent.offering.capacity_type is not SPOT


def killed_at(played: PlayedRun, number: int, when: str) -> Runner:
    """A runner that dies before, or behind, its call of that number to a port."""

    def count(_: str) -> None:
        played.calls += 1
        if played.calls == number:
            raise Killed

    return played.runner(**{when: count})


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_runner_killed_at_any_call_of_a_port_is_followed_without_duplicate_or_orphan(every: int) -> None:
    """Killed before or behind each call, or one of `every` so many."""
    plain = PlayedRun()
    attend(plain, iter([killed_at(plain, -1, "before")]))
    points = list(itertools.product(range(1, plain.calls + 1), ("before", "after")))
    for number, when in points[::every]:
        played = PlayedRun()
        attend(played, iter([killed_at(played, number, when), played.runner()]))
        try:
            check(played)
            assert len(played.cloud.all) == len(plain.cloud.all), "another number of instances was paid for"
        except AssertionError as error:
            raise AssertionError(f"killed {when} call {number}: {error}") from error
    print(f"{len(points[::every])} of {len(points)} crash points of the runner")
    assert len(points) > 300


@pytest.mark.parametrize("seed", range(20))
def test_repeatedly_killed_runner_and_another_complete_the_run(seed: int) -> None:
    rng, played = random.Random(seed), PlayedRun()

    def die(_: str) -> None:
        if rng.random() < 0.05:
            raise Killed

    def runners() -> Iterator[Runner]:
        while True:
            yield played.runner(**{rng.choice(["before", "after"]): die})

    other = played.runner()
    turn = played.turn

    def both() -> None:
        turn()
        if rng.random() < 0.3:
            other.tick()

    played.turn = both
    attend(played, runners())
    try:
        check(played)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_a_stopped_run_leaves_nothing_running_and_can_be_resumed(played: PlayedRun) -> None:
    runner = played.runner()
    for _ in range(12):
        played.turn()
        runner.tick()
    played.ledger().append(lambda _: ev.StopRequested(by="me"))
    assert attend(played, iter([runner])).state.terminal.outcome == "stopped"
    assert played.cloud.alive == []
    played.ledger().append(lambda _: ev.ResumeRequested(by="me"))
    attend(played, iter([played.runner()]))
    check(played)
