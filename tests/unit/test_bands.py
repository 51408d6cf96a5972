"""What Amazon tells of how often it takes a type, in the choice between pools that no run has seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clock import system_clock
from spotrun.clouds.aws.advisor import bands_known
from spotrun.clouds.registry import clock_of, cloud_of
from spotrun.errors import CloudError
from spotrun.offering import Offering
from spotrun.policy.interruption_rates import relative_hazard
from spotrun.run import events as ev
from spotrun.runner.creation import newborn
from spotrun.spec.file import load_spec
from spotrun.strategies.history import MarketHistory
from tests.support.decisions import decided, events_of, spec
from tests.support.histories import ON_DEMAND, SPOT, History, offering

SELDOM, OFTEN = "g5.xlarge", "g4dn.xlarge"
BANDS = {f"us-east-1/{SELDOM}": "<5%", f"us-east-1/{OFTEN}": ">20%"}


def of_type(instance_type: str, price: str) -> Offering:
    return replace(offering(SPOT, price, "us-east-1a"), region="us-east-1", instance_type=instance_type)


def first_asked(bands: dict[str, str], *offered: Offering) -> str:
    """The type that is asked for, by a run that was told these bands."""
    dear = replace(of_type(OFTEN, "9"), capacity_type=ON_DEMAND)
    actions = decided(History(interruption_bands=bands), market=(*offered, dear))
    (intent,) = (event for event in events_of(actions) if isinstance(event, ev.LaunchIntended))
    return intent.offering.instance_type


@pytest.mark.parametrize(
    ("band", "relative"),
    [("<5%", 0.1), ("5-10%", 0.3), ("10-15%", 0.5), ("15-20%", 0.7), (">20%", 1.0), ("often", 1.0), ("1-2-3", 1.0)],
)
def test_a_band_speaks_for_its_pool_as_far_below_the_highest_as_its_middle_is(band: str, relative: float) -> None:
    assert relative_hazard(band) == pytest.approx(relative)


def test_pool_with_rare_interruptions_is_requested_before_one_about_as_cheap() -> None:
    offered = of_type(SELDOM, "0.303"), of_type(OFTEN, "0.300")
    assert first_asked({}, *offered) == OFTEN
    assert first_asked(BANDS, *offered) == SELDOM
    assert first_asked(BANDS, of_type(SELDOM, "0.400"), of_type(OFTEN, "0.300")) == OFTEN


def test_observed_losses_weigh_more_than_published_bands() -> None:
    told = MarketHistory(told={"a": 0.1})
    before, unknown = told.expected_life_s("a", 0.0, 7200.0), MarketHistory().expected_life_s("a", 0.0, 7200.0)
    assert before > 1.5 * unknown
    seen = told
    for now_s in (0.0, 600.0, 1200.0):
        seen = seen.observed({"a"}, now_s).observed(set(), now_s + 300.0)
    assert seen.told == told.told
    assert seen.expected_life_s("a", 1500.0, 7200.0) < unknown


# -- where it comes from ----------------------------------------------------------------------------------------------


@pytest.fixture
def advice(tmp_path: Path) -> Path:
    found = {SELDOM: {"s": 60, "r": 0}, OFTEN: {"s": 50, "r": 4}}
    ranges = [{"index": 0, "label": "<5%", "max": 5}, {"index": 4, "label": ">20%", "max": 100}]
    path = tmp_path / "advice.json"
    path.write_text(json.dumps({"ranges": ranges, "spot_advisor": {"us-east-1": {"Linux": found}}}))
    return path


def test_a_run_is_created_with_what_the_advisor_says_of_its_types(advice: Path) -> None:
    assert created_with(advice) == BANDS
    assert created_with(advice, instance_types=[SELDOM]) == {f"us-east-1/{SELDOM}": "<5%"}
    assert created_with(advice, regions=["eu-west-1"]) == {}
    assert bands_known(str(advice), ["us-east-1"], ["p5.48xlarge"], system_clock()) == {}


def test_unreadable_advisor_fails_before_anything_is_rented(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match=r"absent\.json"):
        created_with(tmp_path / "absent.json")


def test_advisor_file_is_relative_to_its_job(advice: Path) -> None:
    job = advice.with_name("job.yaml")
    text = "train: {run: 'true'}\nresources: {cloud: aws}\ncheckpoint: {uri: 's3://bucket/runs'}\naws: {advisor: %s}\n"
    job.write_text(text % advice.name)
    assert load_spec(job).aws.advisor == str(advice)
    job.write_text(text % "'https://example.org/advice.json'")
    assert load_spec(job).aws.advisor == "https://example.org/advice.json"


def test_the_local_cloud_has_no_advisor(advice: Path) -> None:
    assert created_with(advice, cloud="local") == {}


def created_with(advice: Path, cloud: str = "aws", **aws: object) -> dict[str, str]:
    uri = {"uri": "s3://bucket/runs"}
    wanted = spec(checkpoint=uri, resources={"cloud": cloud}, aws={"advisor": str(advice), **aws})
    created = newborn(wanted, cloud_of(wanted), clock_of(wanted)).created
    return created.interruption_bands
