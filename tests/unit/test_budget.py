"""A budget is never passed, whatever happens; and whoever comes near it is told, once, and where it leads."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.account.spending import BudgetForecast, forecast_spending
from spotrun.account.summary import summarise
from spotrun.folder.agent_statuses import AgentStatuses
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.forecast.generator import generate
from spotrun.instance import EndedBy
from spotrun.market.world import World
from spotrun.policy import Append, Wait, decide
from spotrun.policy.least_budget import least_budget_usd
from spotrun.policy.money import ONE_AT_A_TIME
from spotrun.report.budget import budget_line
from spotrun.report.describe import describe
from spotrun.run import events as ev
from spotrun.run.billing import LOCAL_RULE, Meter
from spotrun.run.bounds import NUMBER_MAX
from spotrun.run.fold import replay
from spotrun.spec.model import RunSpec
from spotrun.store.local import LocalStore
from tests.support.decisions import MARKET, ask, decided, events_of, spec
from tests.support.decisions import instance as seen
from tests.support.histories import START, History, offering, refused
from tests.support.manual_clock import ManualClock
from tests.support.played_run import PlayedRun
from tests.support.short_runs import BUDGET, trained
from tests.support.world import SimulatedWorld, TickMarket, Training
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.timings import Timings
from tests.support.worlds import ON_DEMAND, SPOT, offer

# -- never above the cap ---------------------------------------------------------------------------------------------


def billed(played: PlayedRun) -> Decimal:
    return billed_by(played.cloud, played.clock)


def billed_by(cloud: SimulatedCloud, clock: ManualClock) -> Decimal:
    """Recomputed from the cloud's own records, apart from our account."""
    meters = [Meter(LOCAL_RULE, each.prices, each.billed_from, each.ended_at, each.ended_by) for each in cloud.all]
    return sum((meter.cost_until(clock.now()) for meter in meters), Decimal(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 8))])
def test_no_price_rise_no_overlap_and_no_dead_runner_takes_a_run_above_its_budget(seed: int) -> None:
    """Spot prices rise to what on-demand costs, instances are noticed, lost and replaced, runners die for hours."""
    rng = Random(seed)
    budget = Decimal(rng.choice(["0.6", "1.5", "4", "9"]))
    played = PlayedRun(steps=10**9, budget_usd=budget)
    wanted = {"budget": {"max_usd": str(budget)}, "policy": {"on_demand_after": "1m"}}
    runner, asleep = played.runner(**wanted), 0
    for _ in range(700):
        if rng.random() < 0.02:
            pool = rng.choice([found.pool for found in played.market.all.values() if found.pool.capacity_type is SPOT])
            played.market.reprice(pool, Decimal(rng.choice(["0.5", "2", "3"])))
            played.cloud.repriced(pool)
        for instance in played.cloud.alive:
            if instance.offering.capacity_type is SPOT and rng.random() < 0.01:
                played.cloud.notice(instance.instance_id, 120)
            elif rng.random() < 0.003:
                played.cloud.end(instance.instance_id, rng.choice([EndedBy.CLOUD, EndedBy.FAULT]))
        played.turn()
        if asleep > 0:
            asleep -= 1
        elif rng.random() < 0.01:
            runner, asleep = played.runner(**wanted), rng.choice([5, 60, 10**6])
        elif not runner.tick().done:
            assert played.state.reserved_usd() <= budget
        assert billed(played) <= budget
    played.clock.advance(timedelta(days=2).total_seconds())  # nobody looks; what is armed ends by itself
    assert not played.cloud.alive
    assert billed(played) <= budget
    played.settle(played.runner(**wanted), 8)
    total = summarise(played.state, played.clock.now()).total.cost_usd
    assert billed(played) <= total <= budget


def test_an_instance_that_lives_to_its_last_second_at_the_reserved_price_leaves_room_for_storage_and_requests() -> None:
    """The runner dies at once, the machine boots in no time, and the agent commits as often as it may."""
    budget = Decimal("0.6")
    played = PlayedRun(steps=10**9, budget_usd=budget)
    played.cloud = SimulatedCloud(played.clock, played.market, Timings(pending_s=(0.0, 0.0)))
    wanted = {"budget": {"max_usd": str(budget)}, "resources": {"spot_policy": "on-demand"}}
    played.settle(played.runner(**wanted))
    while played.cloud.alive:
        played.turn()
    played.settle(played.runner(**wanted), 8)
    total = summarise(played.state, played.clock.now()).total
    assert total.on_demand_usd > budget * Decimal("0.9")
    assert total.requests_usd > 0
    assert total.cost_usd <= budget


# -- the work is finished where the money suffices --------------------------------------------------------------------

SIX = {zone: offer(zone, SPOT, f"0.9{number}") for number, zone in enumerate("abcdef")}
EAST_AND_WEST = ("east",) * 3 + ("west",) * 3
WORK_S = 4 * 3600


class BudgetWorld(SimulatedWorld):
    """Four hours of work in six zones whose spot comes and goes, at a third of what on-demand costs."""

    def __init__(self, seed: int, budget: Decimal | None = None, **policy: str) -> None:
        up = generate(EAST_AND_WEST, 1440, 60.0, seed)
        prices = {zone: float(found.price_usd_per_hour) for zone, found in SIX.items()}
        ticks = [{zone: prices[zone] for zone, has in zip(SIX, row, strict=True) if has} for row in up]
        wanted = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "checkpoint": {"every": "5m"}}
        wanted |= {"budget": {} if budget is None else {"max_usd": str(budget)}}
        wanted |= {"policy": policy}
        super().__init__(
            RunSpec.model_validate(wanted),
            Training(steps=WORK_S),
            TickMarket(ticks, 60.0, SIX, [offer("a", ON_DEMAND, "3.00")]),
            seed=seed,
            idle_s=30.0,
        )

    def billed(self) -> Decimal:
        """By the cloud's own records."""
        return sum(
            (
                Meter(LOCAL_RULE, each.prices, each.billed_from, each.ended_at, each.ended_by).cost_until(
                    self.clock.now()
                )
                for each in self.cloud.all
            ),
            Decimal(0),
        )


KNOWN, DUE = {"expected_work": "4h"}, {"expected_work": "4h", "deadline": "5h"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("policy", "seed"),
    [
        pytest.param(policy, seed, id=f"{name}-{seed}", marks=[pytest.mark.nightly] * (seed != first))
        for first, (name, policy) in enumerate({"known work": KNOWN, "unknown work": {}, "a deadline": DUE}.items())
        for seed in range(4)
    ],
)
def test_a_quarter_more_than_the_work_costs_pays_for_all_of_it(seed: int, policy: dict[str, str]) -> None:
    """What is reserved is three times what is spent, so each instance lives shorter than the one before it."""
    free = BudgetWorld(seed, **policy).run(1e5)
    budget = (free.cost_usd * Decimal("1.25")).quantize(Decimal("0.01"))
    world = BudgetWorld(seed, budget, **policy)
    result = world.run(1e5)
    assert result.outcome == "completed", world.state.terminal
    assert world.billed() <= result.cost_usd <= budget
    assert not result.missed


def under_notice(reserved_hours: int, free_usd: str) -> tuple[History, RunSpec]:
    """
    An hour of two is done, for $0.30. What trains is told to go; it has reserved so many hours at the $1 of on-demand,
    and `free_usd` is left beside that.
    """
    budget = reserved_hours + Decimal(free_usd)
    history = History(budget_usd=budget)
    launch = history.write(replace(_intent(history, budget), time_to_live_s=3600.0 * reserved_hours))
    history.record(launch)
    history.start(launch)
    history.resume()
    history.training()
    for _ in range(6):
        history.step += 100
        history.after(600).commit(size_bytes=1)
    history.notice()
    return history, _two_hours(budget)


def _two_hours(budget: Decimal) -> RunSpec:
    return spec(budget={"max_usd": str(budget)}, policy={"expected_work": "2h", "on_demand_after": "10m"})


def _intent(history: History, budget: Decimal) -> ev.LaunchIntended:
    (intent,) = events_of(decided(history, _two_hours(budget)))
    assert isinstance(intent, ev.LaunchIntended)
    return intent


ALL_DEAR = (offering(SPOT, "0.95"), offering(ON_DEMAND, "1.00"))


def test_a_replacement_waits_for_the_money_of_what_is_leaving_where_the_rest_would_not_do() -> None:
    """$1.30 is not spent, and the hour that is left costs $0.95: there is no money for handovers on the way."""
    history, wanted = under_notice(1, "0.60")
    old = history.state.current
    assert old is not None
    here = seen(history, old.launch)
    assert [type(action) for action in decided(history, wanted, [here], ALL_DEAR)] == [Wait]
    history.drained(history.commit(size_bytes=1, final=True))
    assert [type(action) for action in decided(history, wanted, [here], ALL_DEAR)] == [Wait]
    history.gone(old.launch, EndedBy.ITSELF)
    (intent,) = events_of(decided(history, wanted, market=ALL_DEAR))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.time_to_live_s > 3600


def test_on_demand_replaces_spot_where_the_deadline_needs_it_and_the_budget_allows_one() -> None:
    """Half an hour of work and 40 minutes: what is reserved for spot pays for it on demand, beside spot it does not."""
    budget = Decimal("0.73")
    wanted = spec(budget={"max_usd": "0.73"}, policy={"expected_work": "30m", "deadline": "40m"})
    history = History(budget_usd=budget, deadline_at=START + timedelta(minutes=40))
    launch = history.write(replace(_intent(History(budget_usd=budget), budget), time_to_live_s=2450.0))
    history.record(launch)
    history.start(launch)
    history.resume()
    history.training()
    history.after(60)
    (drain,) = events_of(decided(history, wanted, [seen(history, launch)]))
    assert isinstance(drain, ev.DrainRequested)
    assert drain.reason == ONE_AT_A_TIME


@pytest.mark.parametrize(("free_usd", "hours"), [("0.5", 0.2), ("2", 0.95), ("30", 3.1)])
def test_a_replacement_is_ready_at_the_notice_with_half_of_the_rest_or_twice_what_the_work_may_take(
    free_usd: str, hours: float
) -> None:
    """An hour is left, for $0.30 on spot; what is free would not last for it at the price of on-demand."""
    history, wanted = under_notice(10, free_usd)
    (intent,) = events_of(decided(history, wanted))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.standby_for == history.attempt
    assert intent.time_to_live_s / 3600 == pytest.approx(hours, rel=0.02)


def thrice(price: float, hours: float, times: float, pace_s: float, seed: int) -> tuple[SimulatedWorld, Decimal]:
    """
    A run of so many `hours` in six zones where spot costs `price`, and on demand $3, with `times` the money that it is
    expected to cost. In one minute of ten a zone without spot is drawn, so that instances are lost, after notice.
    """
    rng, zones = Random(seed), {zone: offer(zone, SPOT, f"{price:.2f}") for zone in "abcdef"}
    empty = [rng.choice([*zones, *[""] * 54]) for _ in range(1440)]
    ticks = [{zone: price for zone in zones if zone != lost} for lost in empty]
    budget = Decimal(f"{times * price * (hours + 0.1) + 0.005:.2f}")
    wanted = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "checkpoint": {"every": "5m"}}
    world = SimulatedWorld(
        RunSpec.model_validate(wanted | {"budget": {"max_usd": str(budget)}}),
        Training(steps=round(hours * 3600 / pace_s), step_s=pace_s),
        TickMarket(ticks, 60.0, zones, [offer("a", ON_DEMAND, "3.00")]),
        timings=Timings(unannounced=0.0),
        seed=seed,
        idle_s=30.0,
    )
    return world, budget


RUNS = given(
    price=st.sampled_from([0.6, 0.9, 1.5]),
    hours=st.sampled_from([1.0, 2.5, 7.0]),
    times=st.sampled_from([3.0, 4.0, 10.0, 50.0]),
    pace_s=st.sampled_from([0.2, 1.0, 60.0]),
    seed=st.integers(0, 99),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("runs", [4, pytest.param(12, marks=pytest.mark.nightly)])
def test_with_three_times_what_a_run_costs_each_notice_has_its_standby_within_a_second(runs: int) -> None:
    settings(max_examples=runs)(RUNS(has_its_standby_within_a_second))()


def has_its_standby_within_a_second(price: float, hours: float, times: float, pace_s: float, seed: int) -> None:
    world, budget = thrice(price, hours, times, pace_s, seed)
    result, noticed_at = world.run(1e6), None
    for before, entry, after in replay(world.entries):
        event = entry.event
        assert after.reserved_usd() <= budget
        if isinstance(event, ev.NoticeSeen) and before.pending_launch is None:
            noticed_at = entry.at
        elif isinstance(event, ev.LaunchIntended) and noticed_at is not None:
            assert entry.at - noticed_at <= timedelta(seconds=1)
            noticed_at = None
    assert noticed_at is None, "a notice without a standby"
    assert result.outcome == "completed", world.state.terminal
    assert result.cost_usd <= budget


def test_on_demand_that_would_eat_up_the_budget_before_the_work_is_done_is_not_taken_while_there_may_be_spot() -> None:
    """Half an hour without spot: with $1.50 two hours are not to be had on demand, and with $3 they are."""
    for usd, pays in (("1.50", False), ("3", True)):
        history, wanted = History(budget_usd=Decimal(usd)), _two_hours(Decimal(usd))
        for _ in range(3):
            ask(history, wanted)
        history.after(1800)
        taken = [choice[1] for choice in [ask(history, wanted) for _ in range(6)] if choice is not None]
        assert (ON_DEMAND in taken) is pays
        assert SPOT in taken


def test_the_least_budget_is_the_smallest_with_which_a_run_begins() -> None:
    there = World(offerings=MARKET, instances=())
    least = least_budget_usd(History(budget_usd=Decimal("0.01")).state, spec(), there)
    assert least is not None
    for budget, begins in ((least, True), (least - Decimal("0.01"), False)):
        history = History(budget_usd=budget)
        events = [each.event for each in decide(history.state, spec(), there, START) if isinstance(each, Append)]
        assert [isinstance(event, ev.LaunchIntended) for event in events] == [begins]
    assert least_budget_usd(History().state, spec(), World(offerings=(), instances=())) is None


# -- the forecast ----------------------------------------------------------------------------------------------------


def test_the_forecast_names_the_epoch_and_the_time_at_which_the_budget_is_passed() -> None:
    history = trained(30)
    found = forecast_spending(summarise(history.state, history.now), BUDGET, history.now)
    assert found.spent_usd == pytest.approx(Decimal(30), abs=Decimal("0.1"))
    assert found.epoch == 39
    assert found.passes_at is not None
    assert (found.passes_at - history.now).total_seconds() == pytest.approx(10 * 2400, rel=0.02)


def test_the_forecast_follows_the_newest_epochs() -> None:
    steady, slower = trained(20, 1 / 3), trained(20, 1 / 3)
    for epoch in range(20, 25):
        slower.step += 100
        slower.after(4 / 3 * 3600).epoch(epoch)
        slower.commit(size_bytes=1)
    early, late = (forecast_spending(summarise(each.state, each.now), BUDGET, each.now) for each in (steady, slower))
    assert early.epoch == 79
    assert late.epoch == 34


def test_a_run_that_will_be_done_before_is_not_said_to_pass_its_budget() -> None:
    history = trained(30)
    summary = summarise(history.state, history.now)
    within = forecast_spending(summary, BUDGET, history.now, epochs_total=39)
    assert (within.passes_at, within.needs_usd) == (None, None)
    beyond = forecast_spending(summary, BUDGET, history.now, epochs_total=60)
    assert beyond.epoch == 39
    assert beyond.needs_usd == pytest.approx(Decimal(60), rel=Decimal("0.02"))


def test_no_epoch_is_foreseen_that_no_entry_could_name() -> None:
    history = trained(1)
    for epoch in (NUMBER_MAX - 2, NUMBER_MAX - 1, NUMBER_MAX):
        history.step += 100
        history.after(3600).epoch(epoch)
        history.commit(size_bytes=1)
    found = forecast_spending(summarise(history.state, history.now), BUDGET, history.now)
    assert (found.passes_at, found.epoch) == (None, None)


@pytest.mark.parametrize("steps", [10**9, 10**13, NUMBER_MAX, 2.0**80])
def test_a_training_that_says_it_has_ages_of_work_ends_no_decision(steps: float) -> None:
    """Each of an agent's figures is in its bounds; what they multiply to is not."""
    history = trained(3)
    history.gone(1)
    wanted = events_of(decided(history, steps_total=float(steps)))
    assert [type(event) for event in wanted] == [ev.LaunchIntended]


def test_nothing_is_foreseen_before_an_epoch_is_durable() -> None:
    history = trained(0)
    history.step += 100
    history.after(3600).epoch(0)
    found = forecast_spending(summarise(history.state, history.now), BUDGET, history.now, epochs_total=100)
    assert found == BudgetForecast(BUDGET, found.spent_usd)
    assert found.spent_usd > 0
    history.commit(size_bytes=1)
    found = forecast_spending(summarise(history.state, history.now), BUDGET, history.now, epochs_total=100)
    assert found.epoch is not None
    assert found.needs_usd is not None


def test_the_first_start_is_not_taken_for_a_part_of_each_epoch() -> None:
    """An hour until the first step, then epochs of a minute: the second forecast is near the first."""
    history = History()
    launch = history.launch()
    history.record(launch)
    history.after(3600).start(launch)
    history.resume()
    history.training()
    needed = []
    for epoch in range(3):
        history.step += 100
        history.after(60).epoch(epoch)
        history.commit(size_bytes=1)
        found = forecast_spending(summarise(history.state, history.now), Decimal(1), history.now, epochs_total=1000)
        needed.append(found.needs_usd)
    assert needed[0] == pytest.approx(needed[1], rel=Decimal("0.05"))
    assert needed[1] == pytest.approx(needed[2], rel=Decimal("0.01"))


def test_number_of_epochs_comes_from_the_newest_agent_that_reported_it(tmp_path: Path) -> None:
    """An agent that restores does not know yet, and a forecast does not come and go with it."""
    history, store = History(), LocalStore(tmp_path)
    statuses = AgentStatuses(store)
    for epochs in (8, 0):
        launch = history.running()
        status = AgentStatus(launch=launch, phase="train", at=history.now, sequence=1, epochs=epochs)
        write_status(store, agent_key(launch), status)
        state = replace(history.state, created=replace(history.state.created, budget_usd=BUDGET))
        statuses.forget()
        assert statuses.epochs_total(state) == 8
        assert AgentStatuses(store).epochs_total(state) == 8
        history.gone(launch)
    assert AgentStatuses(store).epochs_total(history.state) is None


def test_a_forecast_in_words() -> None:
    assert budget_line(BudgetForecast(BUDGET, Decimal(0))) == "$0 of $40"
    assert budget_line(BudgetForecast(BUDGET, Decimal("12.3"))) == "$12.30 of $40"
    assert (
        budget_line(BudgetForecast(BUDGET, Decimal("12.3"), needs_usd=Decimal("51.2"))) == "$12.30 of $40: needs $51.20"
    )
    passes = BudgetForecast(BUDGET, Decimal("32.1"), START.replace(hour=2, minute=10), 36)
    assert budget_line(passes) == "$32.10 of $40: passes it in epoch 37 at 03-01 02:10 UTC"
    short = replace(passes, needs_usd=Decimal("51.2"))
    assert budget_line(short) == "$32.10 of $40: passes it in epoch 37 at 03-01 02:10 UTC, and needs $51.20"


# -- the warning -----------------------------------------------------------------------------------------------------


def test_the_warning_comes_at_its_share_of_the_budget_once() -> None:
    history, wanted = trained(0), spec(budget={"max_usd": "40", "warn_at": "0.5"})
    told = []
    for epoch in range(39):
        history.step += 100
        history.after(2400).epoch(epoch)
        history.commit(size_bytes=1)
        for event in events_of(decided(history, wanted)):
            if isinstance(event, ev.BudgetNearlySpent):
                history.write(event)
                told.append((epoch, event))
    ((epoch, warning),) = told
    assert epoch in (19, 20)
    assert warning.epoch == 39
    sentence = describe(history.entry(warning))
    assert sentence.startswith("$20.")
    assert "passes the budget in epoch 40 at 03-02 1" in sentence


def test_without_a_share_the_warning_comes_at_four_fifths_and_without_a_budget_never() -> None:
    near, nearer = trained(31), trained(33)
    free = trained(33, budget_usd=None)
    wanted = spec(budget={"max_usd": "40"})
    warned = [
        any(isinstance(event, ev.BudgetNearlySpent) for event in events_of(decided(history, wanted)))
        for history in (near, nearer, free)
    ]
    assert warned == [False, True, False]


def test_a_warning_is_void_a_second_time_and_for_a_run_without_a_budget() -> None:
    warning = ev.BudgetNearlySpent(spent_usd=Decimal(32))
    history = trained(1)
    history.write(warning)
    refused(history, warning, "written already")
    refused(History(), warning, "no budget")
