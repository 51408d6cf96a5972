"""Which wish leaves no offering, and what a person is told to ask for instead."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.clouds.capacity_checks import CapacityRequest
from spotrun.clouds.instance_type import InstanceType
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.market import Market
from spotrun.errors import CloudError
from spotrun.market.wishes import suits, too_dear, unmet, wishes_by_flags, wishes_of
from spotrun.offering import Offering
from spotrun.spec.file import placed
from spotrun.spec.model import ResourcesSpec


@pytest.fixture(scope="module")
def offered() -> list[Offering]:
    """What the local cloud rents out."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Market(MarketConfig(), now).offerings(now)


@pytest.mark.parametrize(
    ("wanted", "key", "says", "advice"),
    [
        ({"region": "eu-north-1"}, "region", "with region eu-north-1", "there is us-east-1 from $0.0"),
        ({"region": "us-east-9", "accelerators": "V100:1"}, "region", "us-east-9", "did you mean us-east-1, from $0.8"),
        ({"accelerators": "V101:1"}, "accelerators", "with accelerators V101:1", "did you mean V100:1, from $0."),
        ({"accelerators": "a10"}, "accelerators", "a10:1", "did you mean A10G:1"),
        ({"accelerators": "V100:8"}, "accelerators", "V100:8", "did you mean V100:1"),
        ({"accelerators": "H100:1"}, "accelerators", "H100:1", "there is A100:1 from"),
        ({"instance_type": "g5.xlrge"}, "instance_type", "g5.xlrge", "did you mean g5.xlarge"),
        ({"zone": "us-east-1b1"}, "zone", "us-east-1b1", "did you mean us-east-1b"),
        ({"cpus": "64+"}, "cpus", "with cpus 64+", "there is 4 from"),
        ({"memory": 7}, "memory", "with memory 7", "there is 8 from"),
        (
            {"instance_type": "g5.xlarge", "accelerators": "V100:1"},
            "accelerators",
            "nothing with instance_type g5.xlarge is offered with accelerators V100:1",
            "there is A10G:1 from",
        ),
        ({"accelerators": "T4", "region": "us-west-2", "cpus": 8}, "cpus", "accelerators T4:1", "there is 4 from"),
    ],
)
def test_the_wish_that_leaves_none_is_named_with_what_there_is(
    offered: list[Offering],
    wanted: dict[str, object],
    key: str,
    says: str,
    advice: str,
) -> None:
    found = unmet(offered, wishes_of(ResourcesSpec.model_validate(wanted)))
    assert found is not None
    assert found.at == ("resources", key)
    assert says in found.message
    assert advice in str(found.suggestion)


@pytest.mark.parametrize(
    ("wanted", "types", "says", "advice"),
    [
        ({"instance_type": "c7i.lrage"}, (), "nothing is offered with instance_type c7i.lrage", "mean c7i.large?"),
        ({}, ("c7i.lrage",), "nothing is offered with instance_types c7i.lrage", "did you mean c7i.large?"),
        ({"instance_type": "c7i.large", "cpus": 8}, (), "with cpus 8", "there is 2"),
        ({"accelerators": "T4:1"}, (), "nothing is offered with accelerators T4:1", "leave it out"),
        ({}, (), "no zone of here offers an instance with one GPU", "there is no accelerator; or name another region"),
    ],
)
def test_doctor_names_the_requirement_that_nothing_meets_without_prices(
    wanted: dict[str, object], types: tuple[str, ...], says: str, advice: str
) -> None:
    request = CapacityRequest(ResourcesSpec.model_validate({"cloud": "aws", **wanted}), types)
    error = request.not_offered([*request.all_offered(InstanceType("c7i.large", "", 2, 4), "here", "a")], "here")
    assert says in error.message
    assert advice in str(error.hint)
    assert "$" not in str(error.hint)


@pytest.mark.parametrize(
    "wanted",
    [{"accelerators": "v100"}, {"instance_type": "G5.XLARGE", "region": "US-EAST-1"}, {"zone": "Us-West-2A"}, {}],
)
def test_capital_letters_make_no_difference(offered: list[Offering], wanted: dict[str, object]) -> None:
    resources = ResourcesSpec.model_validate(wanted)
    assert unmet(offered, wishes_of(resources)) is None
    assert any(suits(each, resources) for each in offered)


def test_flags_are_named_as_they_were_written(offered: list[Offering]) -> None:
    found = unmet(offered, wishes_by_flags(["us-east-1", "mars"], ["p3.2xlarge"], ["T4:1"]))
    assert found is not None
    assert found.at == ("--accelerators",)
    assert "nothing with --region us-east-1 or mars, --instance-type p3.2xlarge is offered" in found.message


def test_where_all_are_too_dear_the_cheapest_is_named(offered: list[Offering]) -> None:
    kinds = [each for each in offered if each.accelerators == "V100:1"]
    told = too_dear(kinds, ResourcesSpec.model_validate({"max_price": "0.01", "spot_policy": "on-demand"}))
    assert told.message == "no suitable on-demand offering is within max_price"
    assert str(told.suggestion).startswith("write 3.06 or more, the current price of p3.2xlarge on-demand in local/")
    cheapest = min(each.price_usd_per_hour for each in kinds)
    assert f"write {cheapest} or more" in str(too_dear(kinds, ResourcesSpec(max_price=Decimal("0.01"))).suggestion)


def test_an_error_of_the_market_has_the_line_or_the_flag(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("run: make\nresources:\n  use_spot: true\n  region: mars\n")

    def told(*key: str, **flags: object) -> str:
        with pytest.raises(CloudError) as caught, placed(job, flags):
            raise CloudError("there is none", hint="ask for less", key=key)
        return caught.value.message

    assert told("resources", "region") == f"{job}:4: resources.region: there is none"
    assert told("resources", "spot_policy") == f"{job}:3: resources.use_spot: there is none"
    assert told("resources", "region", **{"resources.region": "mars"}) == "--region: there is none"
    assert told("resources", "zone") == f"{job}:2: resources.zone: there is none"
    assert told() == "there is none"
