"""What places cost, how fast they are, and what follows from both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.estimate.assumptions import assumptions
from spotrun.estimate.bench_speeds import BenchedSpeed, with_benches
from spotrun.estimate.cloud_prices import with_prices
from spotrun.estimate.cost_study import CostStudy
from spotrun.estimate.cost_study_file import load_study
from spotrun.estimate.costs import Cost, break_even_days, costs, costs_at
from spotrun.estimate.list_prices import with_list_prices
from spotrun.estimate.price_lists import PRICE_LISTS, find_price
from spotrun.estimate.prices import usd_per_hour, usd_per_month
from spotrun.estimate.published import compared
from spotrun.estimate.report import digits
from spotrun.estimate.speeds import samples_per_second, speedup
from spotrun.instance import PriceSegment
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType
from spotrun.spec.file import SpecFileInvalid
from spotrun.spec.own_machine import Machine
from tests.support.called_spotrun import Spotrun
from tests.support.histories import offering
from tests.support.repository import ROOT

STUDIES = sorted((ROOT / "examples" / "studies").glob("*.yaml"))
NOW = datetime(2026, 11, 1, tzinfo=UTC)
BOX: dict[str, Any] = {
    "purchase_usd": 6500,
    "months": 30,
    "days_per_month": 10,
    "watts": 1000,
    "usd_per_kwh": Decimal("0.2"),
}


def study(places: dict[str, Any], **more: Any) -> CostStudy:
    return CostStudy.model_validate(
        {"title": "t", "trainings": {"job": {"samples": 3_600_000}}, "places": places, **more}
    )


def only(found: CostStudy, place: str) -> Cost:
    (cost,) = costs_at(found, place, "job")
    return cost


def test_each_study_of_the_examples_reproduces_what_was_published() -> None:
    assert len(STUDIES) == 3
    rows = [row for path in STUDIES for row in compared(load_study(path))]
    assert [row.figure for row in rows if not row.agrees and row.differs is None] == []
    assert [row.published for row in rows if row.differs is not None] == [Decimal("1.3")]
    assert len(rows) > 50


def test_a_machine_of_ones_own_costs_less_an_hour_the_more_it_is_used() -> None:
    machine = Machine.model_validate(BOX)
    assert machine.usd_per_hour() == pytest.approx(Decimal("1.10278"), abs=Decimal("0.00001"))
    assert machine.usd_per_hour(Decimal(1)) == pytest.approx(Decimal("9.2278"), abs=Decimal("0.0001"))
    kept = Machine.model_validate({**BOX, "maintenance_usd": 6500})
    assert kept.usd_per_hour() == pytest.approx(2 * machine.usd_per_hour() - Decimal("0.2"))


@given(st.integers(1, 3000), st.integers(1, 40))
def test_at_the_break_even_a_sample_costs_the_same_in_both_places(times: int, dollars: int) -> None:
    rival = {"usd_per_hour": dollars, "like": {"place": "box", "times": {"job": Decimal(times) / 100}}}
    found = study({"box": {"own": BOX, "samples_per_second": {"job": 100}}, "rival": rival})
    days = break_even_days(found, "box", only(found, "rival"))
    if days is None:
        assert Decimal(dollars) / times * 100 <= Decimal("0.2")
        return
    machine = found.places["box"].own
    assert machine is not None
    at_home = machine.usd_per_hour(days) / 360_000
    assert at_home == pytest.approx(1 / only(found, "rival").samples_per_usd, rel=Decimal("1e-15"))


def test_interruptions_lengthen_a_training_on_spot() -> None:
    spot = {
        "usd_per_hour": 1,
        "low": Decimal("0.5"),
        "high": 2,
        "interruptions_per_hour": Decimal("0.5"),
        "restart": "12m",
    }
    found = study({"p": {"usd_per_hour": 3, "spot": spot, "samples_per_second": {"job": 100}}})
    dear, cheap = costs_at(found, "p", "job")
    assert (dear.capacity, dear.hours, dear.usd) == ("on-demand", 10, 30)
    assert cheap.capacity == "spot"
    assert cheap.hours == pytest.approx(Decimal(10) / Decimal("0.9"), rel=Decimal("1e-20"))
    assert (cheap.usd_low, cheap.usd, cheap.usd_high) == (cheap.hours / 2, cheap.hours, cheap.hours * 2)


def test_a_subscription_is_paid_by_whole_months() -> None:
    place = {"subscription": {"usd_per_month": 10, "hours_per_month": 4}, "samples_per_second": {"job": 100}}
    assert only(study({"p": place}), "p").usd == 30


def test_parts_add_up_and_a_month_has_the_days_that_the_study_says() -> None:
    parts = {"machine": {"usd_per_hour": Decimal("3.04")}, "V100": {"usd_per_hour": Decimal("2.48"), "count": 8}}
    found = study({"p": {"parts": parts}}, month_days=30)
    assert usd_per_hour(found.places["p"]) == Decimal("22.88")
    assert usd_per_month(found, found.places["p"]) == Decimal("22.88") * 720


def test_a_speed_by_another_place_is_that_of_its_devices_times_the_mean_of_the_ratios() -> None:
    one = {"usd_per_hour": 1, "samples_per_second": {"job": 100}}
    four = {
        "usd_per_hour": 4,
        "like": {"place": "one", "devices": 4, "times": {"job": [Decimal("0.7"), Decimal("0.9")]}},
    }
    found = study({"one": one, "four": four, "twice": {"usd_per_hour": 8, "like": {"place": "four", "devices": 2}}})
    assert samples_per_second(found, "four", "job") == 320
    assert samples_per_second(found, "twice", "job") == 640


def test_a_part_of_a_step_that_is_faster_speeds_up_no_more_than_its_share() -> None:
    assert speedup({"data": Decimal("0.05"), "compute": Decimal("0.05")}, {"compute": Decimal(10)}) == pytest.approx(
        Decimal("1.8181818"), abs=Decimal("1e-6")
    )
    assert speedup({}, {"compute": Decimal(10)}) is None


def test_parts_that_are_faster_in_several_places_one_after_the_other_still_obey_amdahl() -> None:
    places: dict[str, Any] = {"a": {"usd_per_hour": 1, "samples_per_second": {"job": 100}}}
    for before, name, faster in (("a", "b", 10), ("b", "c", 10), ("c", "d", 1000)):
        places[name] = {"usd_per_hour": 1, "like": {"place": before, "faster": {"compute": faster}}}
    half = {"job": {"samples": 10, "step_s": {"data": 1, "compute": 1}}}
    found = study(places, trainings=half)
    speeds = [samples_per_second(found, name, "job") for name in "bcd"]
    assert speeds == [pytest.approx(Decimal(200) / (1 + Decimal(1) / n)) for n in (10, 100, 100_000)]


def test_a_base_on_spot_alone_is_its_own_measure_and_can_be_compared() -> None:
    spot = {
        "spot": {"usd_per_hour": 1, "interruptions_per_hour": 1, "restart": "30m"},
        "samples_per_second": {"job": 100},
    }
    published = [
        {"figure": "hours", "place": "base", "training": "job", "value": 20},
        {"figure": "usd", "place": "base", "training": "job", "value": 20},
        {"figure": "normalised_time", "place": "dear", "against": "base", "training": "job", "value": Decimal("0.5")},
    ]
    dear = {"usd_per_hour": 2, "samples_per_second": {"job": 100}}
    found = study({"base": spot, "dear": dear}, published=published)
    assert [(cost.normalised_time, cost.normalised_cost) for cost in costs_at(found, "base", "job")] == [(1, 1)]
    assert [(cost.normalised_time, cost.normalised_cost) for cost in costs_at(found, "dear", "job")] == [
        (Decimal("0.5"), 1)
    ]
    assert all(row.agrees for row in compared(found))


def test_free_place_has_no_samples_per_dollar_and_no_ratio() -> None:
    free = {"usd_per_hour": 0, "samples_per_second": {"job": 100}}
    paid = {"own": BOX, "samples_per_second": {"job": 100}}
    published = [{"figure": "price_ratio", "place": "paid", "against": "free", "value": 1}]
    found = study({"free": free, "paid": paid}, published=published)
    assert [cost.samples_per_usd for cost in costs_at(found, "free", "job")] == [None]
    assert [cost.normalised_cost for cost in costs_at(found, "paid", "job")] == [None]
    assert break_even_days(found, "paid", only(found, "free")) is None
    assert [row.ours for row in compared(found)] == [None]


def test_place_without_a_speed_has_no_cost_and_costs_come_cheapest_first() -> None:
    found = study(
        {
            "dear": {"usd_per_hour": 9, "samples_per_second": {"job": 100}},
            "unknown": {"usd_per_hour": 1},
            "cheap": {"usd_per_hour": 2, "samples_per_second": {"job": 50}},
        }
    )
    assert [cost.place for cost in costs(found)] == ["cheap", "dear"]
    assert [(cost.normalised_time, cost.normalised_cost) for cost in costs(found)][1] == (1, 1)


def test_a_figure_that_cannot_be_reckoned_does_not_agree() -> None:
    published = [
        {"figure": "spot_share", "place": "p", "value": 1},
        {"figure": "hours", "place": "p", "training": "job", "value": 1},
    ]
    rows = compared(study({"p": {"usd_per_hour": 1}}, published=published))
    assert [(row.ours, row.agrees) for row in rows] == [(None, False), (None, False)]


def _quote(capacity: CapacityType, usd: str, *history: str) -> Quote:
    segments = tuple(
        PriceSegment(since=NOW - timedelta(days=10 * (len(history) - n)), usd_per_hour=Decimal(price))
        for n, price in enumerate(history)
    )
    asked = msgspec.structs.replace(
        offering(), capacity_type=capacity, price_usd_per_hour=Decimal(usd), price_list="a list of 2026-10-30"
    )
    return Quote(offering=asked, history=segments, on_demand_usd_per_hour=None)


def test_a_rented_place_has_the_prices_of_its_cloud() -> None:
    quotes = (
        _quote(CapacityType.ON_DEMAND, "3"),
        _quote(CapacityType.SPOT, "0.9", "1", "2"),
        _quote(CapacityType.SPOT, "0.8", "3", "4"),
    )
    rented = {"rented": {"cloud": "aws", "instance_type": "g5.xlarge"}, "samples_per_second": {"job": 100}}
    found = with_prices(study({"p": rented}), lambda *_: Quotes(at=NOW, quotes=quotes))
    place = found.places["p"]
    assert place.spot is not None
    assert (usd_per_hour(place), place.spot.usd_per_hour) == (3, Decimal("1.5"))
    assert (place.spot.low, place.spot.high) == (1, 2)
    asked = "aws for g5.xlarge in all regions asked, SIMULATED: nobody bills them, a list of 2026-10-30"
    assert f"p: prices of 2026-11-01 00:00 UTC from {asked}, spot over 20 days" in assumptions(found)
    assert len(list(costs_at(found, "p", "job"))) == 2


@pytest.mark.parametrize(
    ("days", "mean", "low", "told"),
    [(90, "1.25", "1", "spot over 40 days"), (30, "1.33333", "1", "spot over 30 days"), (15, "1.6667", "1", "15 days")],
)
def test_spread_of_spot_covers_the_requested_days(days: int, mean: str, low: str, told: str) -> None:
    quote = _quote(CapacityType.SPOT, "2", "1", "1", "1", "2")
    rented = {"rented": {"cloud": "aws", "instance_type": "g5.xlarge", "days": days}}
    found = with_prices(study({"p": rented}), lambda *_: Quotes(at=NOW, quotes=(quote,)))
    spot = found.places["p"].spot
    assert spot is not None
    assert float(spot.usd_per_hour) == pytest.approx(float(mean), abs=0.001)
    assert (spot.low, spot.high) == (Decimal(low), 2)
    assert any(line.endswith(told) for line in assumptions(found))


def test_spot_without_a_history_has_its_present_price() -> None:
    rented = {"rented": {"cloud": "aws", "instance_type": "g5.xlarge"}}
    quotes = Quotes(at=NOW, quotes=(_quote(CapacityType.SPOT, "0.7"),))
    found = with_prices(study({"p": rented}), lambda *_: quotes)
    spot = found.places["p"].spot
    assert spot is not None
    assert (spot.usd_per_hour, spot.low, spot.high) == (Decimal("0.7"), None, None)
    assert any(line.endswith("spot as it is now") for line in assumptions(found))


def listed(**key: object) -> CostStudy:
    asked = {"p": {"listed": key, "samples_per_second": {"job": 100}}}
    return with_list_prices(study(asked), lambda _, wanted: find_price(wanted.table, wanted.type, wanted.region))


def test_a_measured_speed_is_that_of_a_bench_times_the_instances_and_says_in_which_run() -> None:
    by = {"job": "train.yaml", "type": "T4:1", "count": 2}
    found = with_benches(
        study({"p": {"usd_per_hour": 1, "measured": {"job": by}}}),
        lambda name, measured: BenchedSpeed(Decimal(100), f"{measured.job}-bench", datetime(2026, 11, 27, tzinfo=UTC)),
    )
    assert samples_per_second(found, "p", "job") == 200
    assert "p: the speed of job was measured on 2026-11-27, in run train.yaml-bench" in assumptions(found)


def test_unmeasured_speed_is_reported_with_the_bench_command(spotrun: Spotrun, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(GOOD.replace("samples_per_second: {job: 1}", "measured: {job: {job: train.yaml, type: T4}}"))
    (tmp_path / "train.yaml").write_text(f"train: {{run: python train.py}}\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    called = spotrun("estimate", str(path))
    assert called.code == 2
    assert "study.yaml:4: places.p: " in called.err
    assert "train.yaml was not measured on T4" in called.err
    assert "train.yaml --types T4" in called.err


def test_a_listed_place_has_the_price_of_its_table_and_says_where_that_is_from() -> None:
    found = listed(table="tpu", type="v5e", region="us-west4", count=8, interruptions_per_hour=1, restart="6m")
    place = found.places["p"]
    assert place.spot is not None
    assert (usd_per_hour(place), place.spot.usd_per_hour) == (Decimal("9.6"), Decimal("4.08"))
    (told,) = (line for line in assumptions(found) if line.startswith("p: prices"))
    assert told.startswith("p: prices of 2024-12-23 from table tpu, 8 x v5e in us-west4 (a chip with its part of")
    assert "cloud.google.com/tpu/pricing" in told
    on_demand, spot = costs_at(found, "p", "job")
    assert spot.hours == pytest.approx(on_demand.hours / Decimal("0.9"))


def test_a_subscription_of_a_table_is_paid_by_months() -> None:
    place = listed(table="colab", type="Pro T4").places["p"]
    assert place.subscription is not None
    assert place.subscription.usd_per_month == Decimal("9.99")
    assert float(place.subscription.hours_per_month) == pytest.approx(54.35, abs=0.01)
    assert place.spot is None


@pytest.mark.parametrize(
    ("key", "problem", "fix"),
    [
        ({"table": "sagemaker", "type": "ml.g5.4xlarge"}, "no price of 'ml.g5.4xlarge'", "ml.g5.xlarge, ml.g5.2xlarge"),
        (
            {"table": "tpu", "type": "v5e", "region": "mars"},
            "no price of v5e in mars",
            "us-central1, us-east5, us-west4",
        ),
        ({"table": "colab", "type": "Pro T4", "region": "mars"}, "no price of Pro T4 in mars", "write no region"),
        ({"table": "tpus", "type": "v5e"}, "no table 'tpus'", "tpu, sagemaker, colab"),
    ],
)
def test_unlisted_price_is_reported_with_those_near_it(
    key: dict[str, str], problem: str, fix: str, file: Callable[[str], Path], spotrun: Spotrun
) -> None:
    written = ", ".join(f"{name}: {value}" for name, value in key.items())
    called = spotrun("estimate", str(file(GOOD.replace("usd_per_hour: 1", f"listed: {{{written}}}"))))
    assert called.code == 2
    assert "study.yaml:4: places.p: t" in called.err
    assert problem in called.err
    assert fix in called.err


def test_each_listed_price_says_of_when_it_is_and_where_that_can_be_read() -> None:
    for table, prices in PRICE_LISTS.items():
        assert len({(price.type, price.region) for price in prices}) == len(prices), table
        for price in prices:
            assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", price.as_of), price.type
            assert "https://" in price.source
            assert price.what
            assert (price.usd_per_hour is None) != (price.usd_per_month is None)
            assert (price.usd_per_month is None) == (price.hours_per_month is None)
            if price.spot_usd_per_hour is not None:
                assert price.usd_per_hour is not None
                assert price.spot_usd_per_hour < price.usd_per_hour


@pytest.mark.parametrize("kind", ["rented: {cloud: aws, instance_type: g5.xlarge", "listed: {table: tpu, type: v5e"])
def test_interruptions_that_leave_no_time_are_refused_before_a_price_is_looked_up(
    kind: str, file: Callable[[str], Path], spotrun: Spotrun
) -> None:
    key = f"{kind}, interruptions_per_hour: 20, restart: 6m}}"
    called = spotrun("estimate", str(file(GOOD.replace("usd_per_hour: 1", key))))
    assert called.code == 2
    assert "restart: takes all of the time, so no time is left for training" in called.err


@pytest.mark.parametrize(
    ("number", "written"),
    [
        ("45.0541", "45.05"),
        ("153600000", "153,600,000"),
        ("0.00012346", "0.0001235"),
        ("1", "1.000"),
        ("9.99999", "10.000"),
    ],
)
def test_figures_have_four_significant_digits(number: str, written: str) -> None:
    assert digits(Decimal(number)) == written


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("study.yaml").write_text(text)
        return Path("study.yaml")

    return write


GOOD = "title: t\ntrainings: {job: {samples: 10}}\nplaces:\n  p: {usd_per_hour: 1, samples_per_second: {job: 1}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "study.yaml:1: the file is empty; begin with title: My study"),
        ("train: {script: t.py}\n", "study.yaml:1: is a job, but a cost study was expected"),
        (GOOD.replace("samples: 10", "samples: -1"), "study.yaml:2: trainings.job.samples: -1 is not allowed here"),
        (GOOD.replace("samples: 10", "batch: 2"), "trainings.job: batch and steps belong together"),
        (GOOD.replace("samples: 10", "samples: 1, batch: 2, steps: 2"), "needs exactly one length"),
        (
            GOOD.replace("usd_per_hour", "usd_per_huor"),
            "study.yaml:4: places.p.usd_per_huor: unknown key; did you mean usd_per_hour?",
        ),
        (GOOD.replace("{job: 1}", "{jobb: 1}"), "there is no 'jobb' here; did you mean job?"),
        (GOOD.replace("usd_per_hour: 1", "usd_per_hour: 1, like: {place: p}"), "has both samples_per_second and like"),
        (GOOD.replace("samples_per_second: {job: 1}", "like: {place: p}"), "like.place: leads back to this place"),
        (GOOD.replace("usd_per_hour: 1", f"usd_per_hour: 1{'0' * 16}"), "is not allowed here"),
        (GOOD + "base: q\n", "study.yaml:5: base: there is no 'q' here; known here: p"),
        (
            GOOD + "published: [{figure: hour, place: p, value: 1}]\n",
            "'hour' is no figure that spotrun computes; did you mean hours?",
        ),
        (
            GOOD + "published: [{figure: hours, place: p, value: 1}]\n",
            "published[0]: hours needs a training; add training: NAME",
        ),
        (GOOD.replace("samples: 10", "samples: 1e6"), "must be a number, not text; write 1000000"),
        (GOOD.replace("usd_per_hour: 1", 'usd_per_hour: "$1,200.50"'), "must be a number, not text; write 1200.50"),
        (GOOD.replace("usd_per_hour: 1", "usd_per_hour: 31%"), "must be a number, not text; write 0.31"),
        (GOOD.replace("usd_per_hour: 1", "parts: {}"), "study.yaml:4: places.p.parts: is empty"),
        (
            GOOD.replace("usd_per_hour: 1", "usd_per_hour: 1, within: 1"),
            "places.p.within: unknown key; write within at the top of the file",
        ),
        (GOOD.replace("  p:", '  " p":'), "is a name with spaces around it"),
        (
            GOOD.replace("usd_per_hour: 1", "own: {purchase_usd: 1, months: 1, days_per_month: 1, watts: 5}"),
            "places.p.own: watts and usd_per_kwh belong together",
        ),
        (
            GOOD.replace("usd_per_hour: 1", "spot: {usd_per_hour: 1, low: 2}"),
            "places.p.spot.low: is more than usd_per_hour, the mean price",
        ),
        (
            GOOD.replace("usd_per_hour: 1", "spot: {usd_per_hour: 1, interruptions_per_hour: 60, restart: 1m}"),
            "places.p.spot.restart: takes all of the time",
        ),
    ],
)
def test_mistake_in_a_study_is_reported_with_its_line(file: Callable[[str], Path], text: str, said: str) -> None:
    with pytest.raises(SpecFileInvalid) as refused:
        load_study(file(text))
    assert said in refused.value.message
    assert "spotrun" in (refused.value.hint or "")


def test_a_published_figure_that_is_another_ends_with_1_and_is_named(
    file: Callable[[str], Path], spotrun: Spotrun
) -> None:
    path = file(GOOD + "published: [{figure: usd, place: p, training: job, value: 60}]\n")
    called = spotrun("estimate", str(path), "--json")
    assert called.code == 1
    assert json.loads(called.out)[0]["published"][0]["agrees"] is False
    assert "p, job: usd" in called.err
    path.write_text(path.read_text().replace("value: 60", "value: 60, differs: they slept"))
    called = spotrun("estimate", str(path))
    assert (called.code, "they slept" in called.out) == (0, True)


def test_all_that_is_assumed_is_listed_and_the_page_has_the_figures(
    file: Callable[[str], Path], spotrun: Spotrun
) -> None:
    studies = [str(path) for path in STUDIES]
    called = spotrun("estimate", *studies, "--html", "page.html")
    assert called.code == 0, called.err
    page = Path("page.html").read_text()
    printed = spotrun("estimate", *studies).out
    for line in (line for path in STUDIES for line in assumptions(load_study(path))):
        assert line in printed
        assert line.replace("'", "&#x27;") in page
    assert "$49.81" in page


def test_a_page_does_not_take_the_place_of_a_study(file: Callable[[str], Path], spotrun: Spotrun) -> None:
    path = file(GOOD)
    called = spotrun("estimate", "--html", str(path), str(path))
    assert (called.code, path.read_text()) == (2, GOOD)
    assert "looks like a study; the report would overwrite that file" in called.err


def test_of_many_rivals_the_cheapest_are_shown(file: Callable[[str], Path], spotrun: Spotrun) -> None:
    box = "  box: {own: {purchase_usd: 5000, months: 30, days_per_month: 9}, samples_per_second: {job: 1}}\n"
    rivals = "".join(f"  r{n}: {{usd_per_hour: {n}, like: {{place: box}}}}\n" for n in range(1, 31))
    printed = spotrun("estimate", str(file(GOOD + box + rivals))).out
    shown = printed.partition("Cheaper on your own machine")[2].partition("Assumed")[0]
    assert ("r1 " in shown, "r30 " in shown, "and 11 dearer ones" in shown) == (True, False, True)


def test_unavailable_place_is_reported(file: Callable[[str], Path], spotrun: Spotrun) -> None:
    place = "rented: {cloud: local, instance_type: nothing.xlarge}"
    called = spotrun("estimate", str(file(GOOD.replace("usd_per_hour: 1", place))))
    assert called.code == 2
    assert (
        "study.yaml:4: places.p: local does not offer nothing.xlarge\n  try: spotrun offers --cloud local" in called.err
    )
