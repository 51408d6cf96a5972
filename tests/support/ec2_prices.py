"""What an EC2 account on this machine tells of prices: the spot price history, and the on-demand price list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from werkzeug.wrappers import Response

from spotrun.clock import Clock
from tests.support.ec2_spot import answered

SPOT_SHARE = "0.1578"
LONG_AGO = timedelta(days=100)


class SpotRow(NamedTuple):
    """A field that is None is absent from the answer."""

    instance_type: str | None
    zone: str | None
    usd: str | None
    at: datetime | None


class PriceFeed:
    """
    `rows` is the spot price history, in any order: until a test says otherwise, one price for ever. Asked from a moment
    on, EC2 tells the price then in effect and each later one, newest first, `page_size` rows a page. `on_demand` are
    the prices of the price list.
    """

    def __init__(self, clock: Clock, on_demand: Mapping[str, str], zones: Sequence[str]) -> None:
        self.on_demand = dict(on_demand)
        self.rows = [SpotRow(kind, zone, SPOT_SHARE, clock.now() - LONG_AGO) for kind in on_demand for zone in zones]
        self.page_size = 1000

    def spot_history(self, asked: Mapping[str, str]) -> Response:
        types = {text for name, text in asked.items() if name.startswith("InstanceType.")}
        since = datetime.fromisoformat(asked["StartTime"]) if "StartTime" in asked else datetime.min.replace(tzinfo=UTC)
        rows = [row for row in self._since(since) if not types or row.instance_type in types | {None}]
        first = int(asked.get("NextToken", 0))
        more = first + self.page_size if first + self.page_size < len(rows) else ""
        items = "".join(map(_item, rows[first : first + self.page_size]))
        text = f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken>{more}</nextToken>"
        return answered("DescribeSpotPriceHistory", text)

    def products(self, asked: Mapping[str, Any]) -> list[str]:
        """The price list: each product is a text of JSON."""
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        kinds = [kind for kind in self.on_demand if wanted.get("instanceType", kind) == kind]
        return [json.dumps(_product(kind, self.on_demand[kind])) for kind in kinds]

    def _since(self, since: datetime) -> Iterator[SpotRow]:
        seen: set[tuple[str | None, str | None]] = set()
        for row in sorted(self.rows, key=lambda row: row.at or since, reverse=True):
            if row.at is not None and row.at <= since:
                if row[:2] in seen:
                    continue
                seen.add(row[:2])
            yield row


def _item(row: SpotRow) -> str:
    fields = {
        "instanceType": row.instance_type,
        "productDescription": "Linux/UNIX",
        "spotPrice": row.usd,
        "timestamp": None if row.at is None else f"{row.at:%Y-%m-%dT%H:%M:%S.000Z}",
        "availabilityZone": row.zone,
    }
    return f"<item>{''.join(f'<{name}>{text}</{name}>' for name, text in fields.items() if text is not None)}</item>"


def _product(kind: str, usd: str) -> dict[str, Any]:
    dimensions = {"d": {"unit": "Hrs", "pricePerUnit": {"USD": usd}}}
    return {
        "product": {"attributes": {"instanceType": kind}},
        "terms": {"OnDemand": {"t": {"priceDimensions": dimensions}}},
    }
