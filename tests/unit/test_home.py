"""A machine of the user's own: at home while it is free and the deadline holds there, in the cloud otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from spotrun.account.storage_prices import storage_prices
from spotrun.account.summary import summarise
from spotrun.address import parse
from spotrun.clouds.local.busy_gpus import BusyGpus, taken_by
from spotrun.instance import EndedBy
from spotrun.offering import HOME, CapacityType, Offering
from spotrun.policy import Wait
from spotrun.policy.lives import LAST_MINUTES, lives_until
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from tests.support.decisions import MARKET, asked, decided, events_of, instance
from tests.support.histories import AWS_RULE, SPOT, History
from tests.support.world.market import CalmMarket
from tests.support.world.result import RunResult
from tests.support.world.timings import Timings, Training
from tests.support.world.world import SimulatedWorld

OWN = CapacityType.OWN
BOX = {"purchase_usd": 6500, "months": 30, "days_per_month": 10, "watts": 1000, "usd_per_kwh": 0.2}
USD_PER_HOUR = Decimal("1.102778")
AT_HOME = Offering(
    cloud="local", region=HOME, zone=HOME, instance_type="box", capacity_type=OWN, price_usd_per_hour=USD_PER_HOUR
)
HOURS = 3600.0


def spec(*, speed: float = 1.0, resources: dict[str, object] | None = None, **more: object) -> RunSpec:
    """As a run has stored it: the cloud is the local one, so that no account is needed."""
    plain = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "hardware": {"box": {**BOX, "speed": speed}}}
    return RunSpec.from_dict({**plain, "resources": {"home": "box", **(resources or {})}, **more})


def at_home(history: History) -> int:
    return history.running(OWN, str(USD_PER_HOUR), zone=HOME, region=HOME, instance_type="box")


# -- what is asked for --------------------------------------------------------------------------------------------


def test_a_free_machine_comes_before_the_cloud_whatever_that_costs() -> None:
    assert min(each.price_usd_per_hour for each in MARKET) < USD_PER_HOUR
    assert asked(decided(History(), spec(), market=(*MARKET, AT_HOME))) == (HOME, OWN)


def test_max_price_and_spot_policy_are_about_what_is_rented() -> None:
    for wanted in ({"max_price": "0.01"}, {"spot_policy": "spot"}, {"spot_policy": "on-demand"}):
        assert asked(decided(History(), spec(resources=wanted), market=(*MARKET, AT_HOME))) == (HOME, OWN)


def test_a_machine_that_is_taken_is_not_waited_for() -> None:
    assert asked(decided(History(), spec())) == ("local-a", SPOT)


def test_launch_at_home_is_executed_there_or_given_up_if_the_machine_was_taken() -> None:
    history = History()
    (intended,) = events_of(decided(history, spec(), market=(*MARKET, AT_HOME)))
    history.write(intended)
    (executed,) = decided(history, spec(), market=(*MARKET, AT_HOME))
    assert not events_of([executed])
    (closed,) = events_of(decided(history, spec()))
    assert isinstance(closed, ev.LaunchClosed)
    assert closed.detail.endswith("is no longer free")


def test_run_at_home_requests_nothing_else() -> None:
    history = History()
    here = instance(history, at_home(history), offering=AT_HOME)
    current = history.state.current
    assert current is not None
    history.after((lives_until(history.state, current) - history.now - LAST_MINUTES).total_seconds() - 1)
    assert decided(history, spec(), instances=[here]) == []


def test_the_end_of_a_life_at_home_is_followed_by_another_one_there() -> None:
    history = History()
    number = at_home(history)
    here = instance(history, number, offering=AT_HOME)
    current = history.state.current
    assert current is not None
    history.after((lives_until(history.state, current) - history.now - LAST_MINUTES).total_seconds() + 1)
    (drain,) = events_of(decided(history, spec(), instances=[here]))
    assert isinstance(drain, ev.DrainRequested)
    history.write(drain)
    (waits,) = decided(history, spec(), instances=[here])
    assert isinstance(waits, Wait)
    history.ended(Cause.REPLACED)
    history.gone(number, EndedBy.ITSELF)
    assert asked(decided(history, spec(), market=(*MARKET, AT_HOME))) == (HOME, OWN)


def test_run_in_the_cloud_moves_home_once_it_is_free_and_the_cool_down_is_over() -> None:
    history = History()
    here = instance(history, history.running(SPOT))
    market = (*MARKET, AT_HOME)
    assert asked(decided(history, spec(), instances=[here], market=market)) is None
    history.after(601)
    assert asked(decided(history, spec(), instances=[here], market=market)) == (HOME, OWN)


def test_a_machine_that_failed_is_left_alone_for_a_while() -> None:
    history, market = History(), (*MARKET, AT_HOME)
    number = at_home(history)
    history.gone(number, EndedBy.FAULT)
    assert asked(decided(history, spec(), market=market)) == ("local-a", SPOT)
    history.after(601)
    assert asked(decided(history, spec(), market=market)) == (HOME, OWN)


def test_a_budget_that_pays_for_no_life_at_home_is_spent_in_the_cloud() -> None:
    history = History(budget_usd=Decimal("0.15"))
    wanted = spec(budget={"max_usd": "0.15"}, resources={"max_price": "0.35"})
    assert asked(decided(history, wanted, market=(*MARKET, AT_HOME))) == ("local-a", SPOT)


# -- what it costs ------------------------------------------------------------------------------------------------


def test_at_home_has_a_price_of_its_own_and_neither_disk_nor_address() -> None:
    history = History(billing=AWS_RULE, spec={"resources": {"home": "box"}})
    at_home(history)
    history.after(HOURS)
    total = summarise(history.state, history.now).total
    billed_s = Decimal(str(total.own_paid.total_seconds()))
    assert (total.spot_usd, total.on_demand_usd) == (0, 0)
    assert total.own_usd == (USD_PER_HOUR * billed_s / 3600).quantize(Decimal("1e-9"))
    assert total.cost_usd == total.own_usd + total.kept_usd
    assert total.at_home


def test_reads_at_home_are_billed_and_writes_from_there_are_not() -> None:
    prices = storage_prices(parse("s3://bucket/runs"), "us-east-1", home=True)
    assert (prices.read_usd_per_gb(HOME), prices.write_usd_per_gb(HOME)) == (Decimal("0.09"), 0)
    assert not prices.crosses(HOME), "a budget can be kept there before the first checkpoint"
    assert prices.write_usd_per_gb("us-west-2") == Decimal("0.02")


# -- whole runs ---------------------------------------------------------------------------------------------------


class HomeMarket(CalmMarket):
    """The market of `decisions` with the machine, which others hold in some stretches of time (in seconds)."""

    def __init__(self, taken: Sequence[tuple[float, float]] = ()) -> None:
        on_demand = replace(MARKET[3], price_usd_per_hour=Decimal("3.00"))
        super().__init__((MARKET[0], on_demand, AT_HOME))
        self._taken = taken

    def offerings(self, at_s: float) -> list[Offering]:
        is_taken = any(since <= at_s < until for since, until in self._taken)
        return [each for each in super().offerings(at_s) if not (is_taken and each.capacity_type is OWN)]


def trained(
    *,
    hours: float,
    deadline_h: float | None = None,
    said: float = 1.0,
    true: float = 1.0,
    spot: bool = True,
    taken: Sequence[tuple[float, float]] = (),
) -> RunResult:
    """
    A training of `hours` in the cloud. The job says that it goes `said` times as fast at home, and in truth it goes
    `true` times as fast.
    """
    policy = {} if deadline_h is None else {"deadline": timedelta(hours=deadline_h), "expected_work": f"{hours}h"}
    wanted = spec(speed=said, policy=policy, checkpoint={"every": "10m"})
    places = HomeMarket(taken)
    if not spot:
        places.no_spot()
    steps = int(hours * HOURS / 10)
    world = SimulatedWorld(
        wanted,
        Training(steps=steps, step_s=10.0, epochs=4, speeds={"box": true}),
        places,
        timings=Timings(pending_s=(30.0, 30.0), boot_s=(60.0, 60.0), setup_s=(60.0, 60.0), restore_s=(30.0, 30.0)),
        tick_s=60.0,
        idle_s=300.0,
    )
    return world.run(60 * HOURS)


def test_a_run_stays_at_home_as_long_as_its_deadline_holds_there() -> None:
    found = trained(hours=4, deadline_h=11, said=0.5, true=0.5)
    assert found.bought == ("own",)
    assert not found.missed
    assert float(found.cost_usd) == pytest.approx(8.1 * float(USD_PER_HOUR), rel=0.02)


def test_a_deadline_that_is_too_soon_for_home_is_kept_in_the_cloud_and_its_end_is_at_home() -> None:
    found = trained(hours=4, deadline_h=6, said=0.5, true=0.5)
    assert not found.missed
    assert found.bought[0] != "own"
    assert found.bought[-1] == "own"
    assert found.outcome == "completed"


def test_a_machine_that_is_slower_than_its_user_believes_is_left_in_time() -> None:
    found = trained(hours=4, deadline_h=6, said=1.0, true=0.4)
    assert found.bought[0] == "own"
    assert {*found.bought[1:]} & {"spot", "on_demand"}
    assert not found.missed


def test_a_machine_that_is_taken_for_an_hour_is_gone_home_to_after_it() -> None:
    found = trained(hours=4, taken=[(0.0, HOURS)])
    assert found.bought == ("spot", "own")
    assert found.losses == 0


@pytest.mark.exhaustive
def test_without_any_spot_slow_progress_at_home_is_more_than_a_wait() -> None:
    found = trained(hours=4, deadline_h=7, said=0.3, true=0.3, spot=False)
    assert not found.missed
    assert found.bought[0] == "own"
    alone = trained(hours=4, deadline_h=7, said=0.3, true=0.3, spot=False, taken=[(0.0, 60 * HOURS)])
    assert found.instances_usd < alone.instances_usd


@pytest.mark.parametrize("deadline_h", [5.0, 6.0, 8.0, 12.0])
@pytest.mark.parametrize("true", [0.25, 1.0, 2.0])
def test_no_deadline_is_missed_whatever_the_machine_is_worth(deadline_h: float, true: float) -> None:
    taken = [(1.5 * HOURS, 2.5 * HOURS), (4 * HOURS, 5 * HOURS)]
    assert not trained(hours=4, deadline_h=deadline_h, said=1.0, true=true, taken=taken).missed


# -- whether it is free -------------------------------------------------------------------------------------------


class Nvml:
    """The calls of NVML that are made, about so many processes on each GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self, *computing: int, fails: bool = False) -> None:
        self.computing, self.fails = computing, fails

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return len(self.computing)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Nvml]:
        return [self] * bool(self.computing[index])

    pid = 4711


def test_machine_is_taken_while_another_process_computes_on_its_gpus() -> None:
    assert taken_by(Nvml(0, 1)) == "1 other process computes on its GPUs (4711)"
    assert taken_by(Nvml(0, 0)) == ""
    assert taken_by(Nvml(fails=True)) == ""


def test_a_driver_that_never_answers_is_no_free_machine() -> None:
    import threading

    never = threading.Event()
    gpus = BusyGpus(lambda: str(never.wait()), within_s=0.01)
    assert gpus.taken_by() == "its GPU driver does not answer"
    assert gpus.taken_by() == "its GPU driver does not answer"
    never.set()
