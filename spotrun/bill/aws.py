"""
Reads AWS's charges: the Cost and Usage Report, and the Spot Instance data feed.

The report contains a run's tag only if `spotrun:run` is activated as a cost allocation tag; otherwise spotrun finds
the run's lines by instance id.

Columns of the report: https://docs.aws.amazon.com/cur/latest/userguide/Lineitem-columns.html, and in CUR 2.0:
https://docs.aws.amazon.com/cur/latest/userguide/table-dictionary-cur2.html.
Data feed: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-data-feeds.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path

from spotrun.bill.charge import Charge, ChargeKind, Coverage, LineFilter, Statement, of_amount
from spotrun.bill.rows import EXPORT_ANEW, BillRow, DuplicateLines, read_lines, read_report
from spotrun.errors import SpecInvalid
from spotrun.run.billing import EC2_RULE, ZERO
from spotrun.units import count_of

REPORT_PRECISION_USD = Decimal("1e-10")
"""Maximum rounding error of an amount in the report, which writes ten decimals."""
_TITLE = "AWS Cost and Usage Report"
_NEEDED = (
    *("line_item_line_item_type", "line_item_usage_type", "line_item_usage_start_date", "line_item_usage_end_date"),
    *("line_item_usage_amount", "line_item_unblended_cost", "line_item_currency_code"),
)
_TAG = "user_spotrun_run"
_USAGE_TYPES = ("Usage", "DiscountedUsage", "SavingsPlanCoveredUsage")
_CREDIT_TYPES = ("Credit", "Refund", "SavingsPlanNegation")
_KINDS = (
    (ChargeKind.USAGE, ("SpotUsage", "BoxUsage", "DedicatedUsage", "HostBoxUsage")),
    (ChargeKind.VOLUME, ("EBS:", "EBSOptimized")),
    (ChargeKind.NETWORK, ("DataTransfer", "-Bytes", "PublicIPv4", "ElasticIP", "NatGateway")),
)
_FEED_FIELDS = (
    *("timestamp", "usage_type", "operation", "instance_id", "my_bid_id"),
    *("my_max_price", "market_price", "charge", "version"),
)


def read_cost_and_usage_report(paths: Sequence[Path], lines_of_run: LineFilter) -> Statement:
    """
    Read the lines about one run from a report of either generation, in CSV or Parquet. A report may have several files.

    Raises:
        SpecInvalid: a line cannot be read; the message names the file, the line and what to do.
    """
    coverage, duplicates = Coverage(), DuplicateLines()
    charges: list[Charge] = []
    for row in chain.from_iterable(read_report(path, _NEEDED, _TITLE) for path in paths):
        kind = _kind(row)
        start, end = row.moment("line_item_usage_start_date"), row.moment("line_item_usage_end_date")
        if kind is ChargeKind.USAGE:
            coverage.add(start, end)
        resource = row.text("line_item_resource_id", optional=True)
        if not lines_of_run.includes(_tagged_run(row), resource):
            continue
        duplicates.check(row)
        if (currency := row.text("line_item_currency_code")) != "USD":
            raise row.refuse(f"is in {currency}, and the ledger is in USD", "export the report in US dollars")
        whole = Charge(
            path=str(row.path),
            line=row.line,
            resource=resource,
            kind=kind,
            what=f"{row.text('line_item_line_item_type')} {row.text('line_item_usage_type')}".strip(),
            start=start,
            end=end,
            amount_usd=ZERO,
            precision_usd=REPORT_PRECISION_USD,
            hours=row.amount("line_item_usage_amount") if kind is ChargeKind.USAGE else None,
        )
        charges += _priced(whole, row)
    return Statement(tuple(map(str, paths)), _TITLE, EC2_RULE, coverage.since, coverage.until, tuple(charges))


def _priced(charge: Charge, row: BillRow) -> Iterator[Charge]:
    """
    Yield the charge with its amount and, if a machine was charged at a negotiated price, a second charge.

    The ledger has public prices. So the usage of a machine counts at the public price, and the difference to the paid
    price is a credit of its own. The report has the paid price in a net column, and the discount in no line of its own,
    unless the account has chosen `Manual discount compatibility`. It has a public price only for machines on demand:
    for spot, `publicOnDemandCost` is what the same machine costs on demand.
    """
    cost = row.amount("line_item_unblended_cost")
    paid = _amount_or(cost, row, "line_item_net_unblended_cost")
    public = paid
    if charge.kind is ChargeKind.USAGE:
        public = cost if "SpotUsage" in charge.what else _amount_or(ZERO, row, "pricing_public_on_demand_cost") or cost
    yield replace(charge, kind=of_amount(charge.kind, public), amount_usd=public)
    if paid != public:
        yield replace(charge, kind=ChargeKind.CREDIT, what="negotiated price", amount_usd=paid - public, hours=None)


def _amount_or(default: Decimal, row: BillRow, column: str) -> Decimal:
    """Return the amount in an optional column, which older exports lack; `default` if there is none."""
    return row.amount(column) if row.text(column, optional=True) else default


def _tagged_run(row: BillRow) -> str:
    """
    Return the run named in the line's tag. In CUR 2.0, one column contains all tags as a map. In older reports, each
    tag has its own column.
    """
    tags = row.structure("resource_tags")
    if tags is None:
        return row.text(f"resource_tags_{_TAG}", optional=True)
    return str(dict(tags).get(_TAG, ""))


def _kind(row: BillRow) -> ChargeKind:
    line_type, usage_type = row.text("line_item_line_item_type"), row.text("line_item_usage_type")
    if line_type == "Tax":
        return ChargeKind.TAX
    if line_type in _CREDIT_TYPES or line_type.endswith("Discount"):
        return ChargeKind.CREDIT
    if line_type not in _USAGE_TYPES:
        return ChargeKind.OTHER
    if row.text("line_item_product_code", optional=True) not in ("", "AmazonEC2", "AmazonVPC", "AWSDataTransfer"):
        return ChargeKind.SERVICE
    return next((kind for kind, marks in _KINDS if any(mark in usage_type for mark in marks)), ChargeKind.OTHER)


def read_spot_data_feed(paths: Sequence[Path], lines_of_run: LineFilter) -> Statement:
    """
    Read the lines about one run's instances. The feed has no tags, lists only spot instances, and has a separate file
    for each hour.

    Raises:
        SpecInvalid: a line cannot be read; the message names the file, the line and what to do.
    """
    coverage, duplicates = Coverage(), DuplicateLines()
    charges = []
    for row in chain.from_iterable(map(_feed_rows, paths)):
        start = row.moment("timestamp").replace(minute=0, second=0, microsecond=0)
        end = start + timedelta(hours=1)
        coverage.add(start, end)
        if lines_of_run.includes("", row.text("instance_id")):
            duplicates.check(row)
            charges.append(
                Charge(
                    path=str(row.path),
                    line=row.line,
                    resource=row.text("instance_id"),
                    kind=ChargeKind.USAGE,
                    what=row.text("usage_type"),
                    start=start,
                    end=end,
                    amount_usd=_dollars(row, "charge"),
                    precision_usd=_half_of_last_place(_dollars(row, "charge")),
                )
            )
    title = "EC2 Spot Instance data feed"
    return Statement(
        tuple(map(str, paths)), title, EC2_RULE, coverage.since, coverage.until, tuple(charges), spot_only=True
    )


def _feed_rows(path: Path) -> Iterator[BillRow]:
    for line, text in read_lines(path):
        if text.startswith("#"):
            continue
        fields = text.split("\t")
        if len(fields) != len(_FEED_FIELDS):
            has = count_of(len(fields), "field")
            message = f"{path}:{line}: has {has}, separated by tabs; a line of the feed has {len(_FEED_FIELDS)}"
            raise SpecInvalid(message, hint=EXPORT_ANEW)
        yield BillRow(path, line, dict(zip(_FEED_FIELDS, fields, strict=True)))


def _dollars(row: BillRow, column: str) -> Decimal:
    if not row.text(column).endswith(" USD"):
        raise row.refuse(f"{column} is {row.text(column)!r}, which is not in USD", EXPORT_ANEW)
    return row.amount(column, " USD")


def _half_of_last_place(amount: Decimal) -> Decimal:
    """Return the maximum rounding error of `amount`. Older feeds have three decimal places, newer ones ten."""
    exponent = amount.as_tuple().exponent
    assert isinstance(exponent, int)
    return Decimal(1).scaleb(exponent) / 2
