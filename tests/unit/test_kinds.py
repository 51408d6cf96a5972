"""A choice of kinds of instances: how a job writes it, and which of them is asked for."""

from __future__ import annotations

from datetime import timedelta
from math import sqrt
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clouds.aws.catalog import instance_type_of
from spotrun.instance import EndedBy
from spotrun.market.published_speeds import published_speed
from spotrun.market.wishes import not_named, suitable
from spotrun.market.world import World
from spotrun.offering import Offering
from spotrun.policy.deadline import unreachable
from spotrun.policy.facts import Facts
from spotrun.policy.ranking import on_demand_now, spot_now
from spotrun.policy.throughput import PRIOR_SPREAD, PUBLISHED_DOUBT, another_kind, choice, speeds, works_of_hours
from spotrun.policy.workload import pace, workload
from spotrun.spec.file import load_spec
from spotrun.spec.kinds import AnyOf, NamedType
from spotrun.spec.model import RunSpec
from spotrun.spec.values import Accelerators
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, SPOT, History, offering

T4, A10G, V100, CPU = "T4:1", "A10G:1", "V100:1", "c5.xlarge"
PRICES = {T4: ("0.16", "0.526"), A10G: ("0.30", "1.006"), V100: ("0.92", "3.06"), CPU: ("0.06", "0.17")}
TYPES = {T4: "g4dn.xlarge", A10G: "g5.xlarge", V100: "p3.2xlarge", CPU: "c5.xlarge"}


def offered(kind: str, capacity_type: object = SPOT, price: str | None = None) -> Offering:
    spot, on_demand = PRICES[kind]
    usual = spot if capacity_type is SPOT else on_demand
    has = "" if kind == CPU else kind
    cloudy = offering(capacity_type, price or usual)  # type: ignore[arg-type]
    return replace(cloudy, accelerators=has, instance_type=TYPES[kind], cpus=4, memory_gib=16)


MARKET = tuple(offered(kind, capacity_type) for kind in PRICES for capacity_type in (SPOT, ON_DEMAND))


def wanted(*kinds: str, **more: object) -> RunSpec:
    return spec(resources={"accelerators": {"any_of": list(kinds)}}, **more)


def facts_of(history: History, job: RunSpec, market: tuple[Offering, ...] = MARKET, **world: object) -> Facts:
    there = tuple(suitable(market, job))
    seen = World(offerings=there, instances=(), **world)  # type: ignore[arg-type]
    return Facts(history.state, job, seen, history.now)


def trained(history: History, kind: str, step_s: float, steps: int = 100, commits: int = 4) -> History:
    """An instance of a kind that made so many steps between commits, and was lost."""
    there = offered(kind)
    launch = history.running(
        SPOT, str(there.price_usd_per_hour), accelerators=there.accelerators, instance_type=there.instance_type
    )
    for _ in range(commits):
        history.after(steps * step_s)
        history.step += steps
        history.commit()
    history.gone(launch, EndedBy.CLOUD, ended_at=history.now)
    return history


# -- the job ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        "{any_of: [T4:1, A10G:1, V100:1]}",
        "[T4, 'A10G:1', {V100: 1}]",
        "{T4: 1, A10G: 1, V100: 1}",
        "{T4:1, A10G:1, V100:1}",
        "{T4, A10G, V100}",
        "{T4: null, A10G:1, V100: ~}",
    ],
)
def test_a_choice_is_written_in_each_of_skypilots_forms(tmp_path: Path, written: str) -> None:
    (tmp_path / "job.yaml").write_text(f"run: 'true'\nresources: {{accelerators: {written}}}\n")
    job = load_spec(tmp_path / "job.yaml")
    assert job.resources.kinds == (Accelerators("T4"), Accelerators("A10G"), Accelerators("V100"))
    assert RunSpec.from_dict(job.to_dict()) == job


def test_a_choice_of_one_is_no_choice() -> None:
    assert wanted(T4).resources.accelerators == Accelerators("T4")
    assert wanted(T4).spec_sha256 == spec(resources={"accelerators": T4}).spec_sha256


def test_an_entry_may_be_an_instance_type() -> None:
    job = wanted(CPU, T4)
    assert job.resources.accelerators == AnyOf((NamedType(CPU), Accelerators("T4")))
    assert {each.instance_type for each in suitable(MARKET, job)} == {CPU, "g4dn.xlarge"}


def test_unavailable_kind_is_reported_with_its_place() -> None:
    refused = not_named(MARKET, wanted(T4, "V10:1").resources, ())
    assert refused is not None
    assert refused.at == ("resources", "accelerators", "any_of", 1)
    assert "V10:1" in refused.message
    assert not_named(MARKET, wanted(T4, V100).resources, ()) is None


def test_a_choice_may_have_a_deadline_that_its_first_kind_would_miss() -> None:
    """Another kind may be faster, so only the boot alone can be known to overrun it."""
    job = wanted(T4, V100, policy={"deadline": "2h", "expected_work": "8h"})
    assert unreachable(job, timedelta(hours=2)) is None
    with pytest.raises(ValueError, match="an instance boots in 3h"):
        wanted(T4, V100, policy={"deadline": "2h"}, local={"boot": "3h"})


# -- by published speeds ---------------------------------------------------------------------------------------------


def test_published_speeds_are_in_the_order_that_everybody_knows() -> None:
    known = {kind: published_speed(offered(kind)) or 0 for kind in PRICES}
    assert known[CPU] < known[T4] < known[A10G] < known[V100] == 1
    eight = published_speed(replace(offered(V100), accelerators="V100:8"))
    assert eight == pytest.approx(9510 / 1270)
    assert published_speed(replace(offered(V100), accelerators="ODD:1")) is None


@pytest.mark.parametrize(("type_name", "mib", "named"), [("p4d", 40960, "A100:8"), ("p4de", 81920, "A100-80GB:8")])
def test_amazons_a100_with_80_gb_has_a_name_of_its_own(type_name: str, mib: int, named: str) -> None:
    gpu = {"Name": "A100", "Count": 8, "MemoryInfo": {"SizeInMiB": mib}}
    row = {"InstanceType": f"{type_name}.24xlarge", "GpuInfo": {"Gpus": [gpu]}}
    found = instance_type_of({**row, "VCpuInfo": {"DefaultVCpus": 96}, "MemoryInfo": {"SizeInMiB": 1 << 20}})
    assert found.accelerators == named
    assert published_speed(replace(offered(V100), accelerators=named)) is not None


def test_dollars_for_the_same_training_decide_and_not_dollars_an_hour() -> None:
    """The CPU is the cheapest by the hour, and would take weeks."""
    facts = facts_of(History(), wanted(CPU, T4, A10G, V100))
    assert [each.instance_type for each in spot_now(facts)] == ["g4dn.xlarge", "g5.xlarge", "p3.2xlarge", "c5.xlarge"]
    assert on_demand_now(facts)[0].instance_type == "g4dn.xlarge"


def test_without_a_choice_the_price_decides() -> None:
    facts = facts_of(History(), spec())
    assert (choice(facts), works_of_hours(facts, MARKET)) == ((), {})
    assert spot_now(facts)[0].instance_type == CPU


# -- by what was measured --------------------------------------------------------------------------------------------


def test_measured_speed_of_a_kind_replaces_the_published_one() -> None:
    """Three times as slow as published: the other kind is the cheaper one."""
    history = trained(History(), T4, 1.0)
    trained(history, A10G, 0.25)
    found = speeds(facts_of(history, wanted(T4, A10G)))
    t4, a10g = found[Accelerators("T4")], found[Accelerators("A10G")]
    assert (t4.times, a10g.times) == (1, pytest.approx(4, rel=0.05))
    assert a10g.low < 4 < a10g.high < 5
    assert spot_now(facts_of(history.after(1200), wanted(T4, A10G)))[0].instance_type == "g5.xlarge"


def test_one_measured_kind_says_how_many_steps_a_second_the_others_should_make() -> None:
    facts = facts_of(trained(History(), T4, 2.0), wanted(T4, V100))
    other = speeds(facts)[Accelerators("V100")]
    assert other.measured is None
    assert other.times == pytest.approx((published_speed(offered(V100)) or 0) / (published_speed(offered(T4)) or 1))
    assert other.spread > PRIOR_SPREAD
    assert other.high / other.times == pytest.approx(PUBLISHED_DOUBT ** sqrt(8 / 3), rel=0.01)


def test_the_work_left_is_that_on_the_first_kind() -> None:
    history = trained(History(), A10G, 1.0)
    facts = facts_of(history, wanted(T4, A10G), steps_total=1000)
    times = speeds(facts)[Accelerators("A10G")].times
    measured, left = pace(facts), workload(facts)
    assert measured is not None
    assert left is not None
    assert measured.step_s == pytest.approx(1.0 * times, rel=0.02)
    assert left.left_s == pytest.approx(600 * times, rel=0.02)


# -- bits ------------------------------------------------------------------------------------------------------------


def test_change_of_kinds_is_reported_with_its_effect_on_the_training() -> None:
    facts = facts_of(trained(History(), T4, 1.0), wanted(T4, V100))
    assert another_kind(facts, offered(T4)) == ""
    assert "V100:1 after T4:1: the same samples in the same order" in another_kind(facts, offered(V100))


def test_exact_bits_bind_a_run_to_the_kind_of_its_first_checkpoint() -> None:
    job = wanted(T4, V100, checkpoint={"exact": "bits"})
    assert {each.instance_type for each in spot_now(facts_of(History(), job))} == {"g4dn.xlarge", "p3.2xlarge"}
    facts = facts_of(trained(History(), V100, 1.0).after(1200), job)
    assert {each.instance_type for each in spot_now(facts)} == {"p3.2xlarge"}
    assert {each.instance_type for each in on_demand_now(facts)} == {"p3.2xlarge"}
