"""
Checks whether Google reports prices for a job's instance types. If it does not, a run uses the prices in spotrun's own
table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.price_list import read_part_prices
from spotrun.clouds.gcp.spot_prices import KEPT_BY_GOOGLE, spot_prices
from spotrun.doctor.finding import Finding, ok, warned
from spotrun.errors import CloudError
from spotrun.instance import PriceSegment

_NO_PAST = "grant compute.advice.capacityHistory (infra/gcp), or ignore this: spotrun rents spot instances anyway"
_LATER = "a run continues with these prices; check again later"


def price_findings(google: Google, project: str, region: str, types: Sequence[str], now: datetime) -> Iterator[Finding]:
    """
    Check spot prices. They come from Google's `advice.capacityHistory`, which is in Preview and has to be called once
    for each type.
    """
    found = spot_prices(google, project, region, types, now - KEPT_BY_GOOGLE, now)
    for name in types:
        yield _judged(f"{name} in {region}", found.segments.get(name, ()), found.troubles.get(name, ""))


def price_list_findings(google: Google, regions: Collection[str]) -> Iterator[Finding]:
    try:
        read_part_prices(google, regions)
    except CloudError as error:
        what = f"on-demand prices are from the shipped table: {error.message}"
        yield warned("price list", what, error.hint or _LATER)
    else:
        yield ok("price list", "on-demand prices are today's")


def _judged(what: str, past: Sequence[PriceSegment], trouble: str) -> Finding:
    if not past:
        why = f"the price of {what} is from the catalog or the shipped table: {trouble}"
        return warned("spot prices", why, _NO_PAST)
    prices = [segment.usd_per_hour for segment in past]
    return ok("spot prices", f"{what}: ${prices[-1]:.4f} an hour, in a year ${min(prices):.4f} to ${max(prices):.4f}")
