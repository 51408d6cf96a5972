"""
The prices of capacity that spotrun does not rent: TPUs, SageMaker's training jobs, Colab.

Prices were read on 2026-11-27 from dated sources; each row names its own. A price without such a source is left out,
such as that of ml.p4d.24xlarge. They are list prices in dollars, without tax, and some are years old: check today's
price before you pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches

import msgspec

from spotrun.units import Unreadable, shown


class ListPrice(msgspec.Struct, frozen=True, kw_only=True):
    """
    A list price by the hour, or by the month for at most `hours_per_month`. `what` says what it buys, `as_of` its date,
    and `source` where it can be read. `spot_usd_per_hour` is None if no spot price below that on demand is known.
    """

    type: str
    region: str = ""
    what: str
    as_of: str
    source: str
    usd_per_hour: Decimal | None = None
    spot_usd_per_hour: Decimal | None = None
    usd_per_month: Decimal | None = None
    hours_per_month: Decimal | None = None


def find_price(table: str, type_name: str, region: str | None = None) -> ListPrice:
    """
    Return a price from a table; without a region, that of the first one in the table.

    Raises:
        Unreadable: the table has no such price, or there is no such table.
    """
    prices = PRICE_LISTS.get(table)
    if prices is None:
        raise Unreadable(f"there is no table {shown(table)!r}", f"tables: {', '.join(PRICE_LISTS)}")
    of_type = {price.region: price for price in prices if price.type == type_name}
    if not of_type:
        known = tuple(dict.fromkeys(price.type for price in prices))
        near = get_close_matches(type_name[:100], known, 3, cutoff=0.4) or known
        raise Unreadable(f"table {table} has no price of {shown(type_name)!r}", f"near it: {', '.join(near)}")
    if region is not None and region not in of_type:
        regions = ", ".join(filter(None, of_type)) or "write no region: its price is the same everywhere"
        raise Unreadable(f"table {table} has no price of {type_name} in {shown(region)}", f"known: {regions}")
    return of_type[region] if region is not None else next(iter(of_type.values()))


# -- Cloud TPU ---------------------------------------------------------------------------------------------------------

_TPU_SOURCE = (
    "cloud.google.com/tpu/pricing and cloud.google.com/spot-vms/pricing, as written down in "
    "https://github.com/dstackai/gpuhunt/blob/b707e743b2c27d7ec9be17e87e689997cbcbbeaf"
    "/src/gpuhunt/resources/tpu_pricing.json"
)
"""Prices by chip, on demand and spot. If the source's spot price exceeds on demand (v2, v3 and v4), it is left out."""
_IOWA_SOURCE = "https://github.com/skypilot-org/skypilot/pull/3113"


def _tpu(type_name: str, region: str, usd: str, spot_usd: str | None = None, chips: int = 1) -> ListPrice:
    """Return the price of `chips` chips; `usd` and `spot_usd` are those of one chip."""
    return ListPrice(
        type=type_name,
        region=region,
        what="a chip with its part of the machine" if chips == 1 else f"{chips} chips with their machine",
        as_of="2024-12-23",
        source=_TPU_SOURCE,
        usd_per_hour=chips * Decimal(usd),
        spot_usd_per_hour=None if spot_usd is None else chips * Decimal(spot_usd),
    )


_TPU = (
    ListPrice(
        type="v2-8",
        region="us-central1",
        what="4 chips with their machine",
        as_of="2024-02-07",
        source=_IOWA_SOURCE,
        usd_per_hour=Decimal("4.50"),
        spot_usd_per_hour=Decimal("1.35"),
    ),
    _tpu("v2-8", "europe-west4", "1.2375", chips=4),
    _tpu("v2-8", "asia-east1", "1.305", "0.3915", chips=4),
    _tpu("v3-8", "europe-west4", "2.2", chips=4),
    _tpu("v4", "us-central2", "3.22"),
    _tpu("v5e", "us-central1", "1.2", "0.63"),
    _tpu("v5e", "us-east5", "1.2", "0.6"),
    _tpu("v5e", "us-west4", "1.2", "0.51"),
    _tpu("v5e", "europe-west4", "1.56", "0.663"),
    _tpu("v5p", "us-east5", "4.2", "2.415"),
    _tpu("v5p", "us-east1", "4.2", "2.1"),
    _tpu("v6e", "us-east5", "2.7", "1.89"),
    _tpu("v6e", "us-east1", "2.7", "1.89"),
    _tpu("v6e", "europe-west4", "2.97", "2.08"),
    _tpu("v6e", "asia-northeast1", "3.24", "2.27"),
)

# -- SageMaker ---------------------------------------------------------------------------------------------------------

_PRINTED = (
    "AWS's price list API, as printed in https://github.com/aws-samples/amazon-sagemaker-training-jobs-benchmarks/blob"
    "/870e2d490ef2e1767d553661e3afec275b3868f3/instance_types_RoBERTa_benchmark/instance_types_benchmark_roberta.ipynb"
)
_BILLED = (
    "AWS's bill of that month, in https://github.com/aws-samples/sagemaker-ssh-helper/blob"
    "/b6bf9ba39119784eb6ce6683ae9a6a2ed8ef4cd3/Sample_Costs.md"
)
_VIRGINIA, _IRELAND = ("us-east-1", "2022-04-14", _PRINTED), ("eu-west-1", "2023-12", _BILLED)


def _sagemaker(type_name: str, usd: str, place: tuple[str, str, str]) -> ListPrice:
    region, as_of, source = place
    return ListPrice(
        type=type_name,
        region=region,
        what="an instance of a training job, without its storage",
        as_of=as_of,
        source=source,
        usd_per_hour=Decimal(usd),
    )


_SAGEMAKER = (
    _sagemaker("ml.m5.xlarge", "0.257", _IRELAND),
    _sagemaker("ml.g4dn.xlarge", "0.822", _IRELAND),
    _sagemaker("ml.g5.xlarge", "1.57", _IRELAND),
    _sagemaker("ml.g5.2xlarge", "1.515", _VIRGINIA),
    _sagemaker("ml.p3.2xlarge", "3.825", _VIRGINIA),
    _sagemaker("ml.p3.2xlarge", "4.131", _IRELAND),
)

# -- Colab -------------------------------------------------------------------------------------------------------------

_UNITS_PER_HOUR = {"T4": "1.84", "V100": "4.91", "L4": "4.82", "A100": "11.77"}
"""Compute units per hour, seen in California on 2024-04-10 (T4, V100) and 2024-04-22 (L4, A100). They change."""
_PLANS = {"Pro": ("9.99", 100), "Pro+": ("49.99", 500)}
"""
Dollars a month, as of 2026-09-17, and compute units, by Colab's own answers in 2024 and 2023:
https://github.com/googlecolab/colabtools/issues/4395 and https://github.com/googlecolab/colabtools/issues/3440
"""
_USD_PER_UNIT = Decimal("9.99") / 100
"""USD per compute unit without a plan, as of 2026-09-17."""
_COLAB_SOURCE = (
    "https://mccormickml.com/2024/04/23/colab-gpus-features-and-pricing (units an hour), "
    "https://github.com/IgorGanapolsky/ThumbGate/pull/3901 (what Colab's page asked on 2026-09-17)"
)


def _colab(gpu: str, per_hour: Decimal) -> Iterator[ListPrice]:
    for plan, (usd, units) in _PLANS.items():
        yield ListPrice(
            type=f"{plan} {gpu}",
            what=f"{units} compute units, of which an hour takes {per_hour}",
            as_of="2024-04",
            source=_COLAB_SOURCE,
            usd_per_month=Decimal(usd),
            hours_per_month=units / per_hour,
        )
    yield ListPrice(
        type=f"pay-as-you-go {gpu}",
        what=f"{per_hour} compute units at $9.99 a hundred",
        as_of="2024-04",
        source=_COLAB_SOURCE,
        usd_per_hour=per_hour * _USD_PER_UNIT,
    )


_COLAB = tuple(price for gpu, per_hour in _UNITS_PER_HOUR.items() for price in _colab(gpu, Decimal(per_hour)))

PRICE_LISTS: Mapping[str, tuple[ListPrice, ...]] = {"tpu": _TPU, "sagemaker": _SAGEMAKER, "colab": _COLAB}
"""The price lists by name. The first row of a type has its price if a study names no region."""
