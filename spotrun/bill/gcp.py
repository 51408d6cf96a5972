"""
Reads Google Cloud's charges: the detailed usage cost export of Cloud Billing, as JSON or CSV.

Fields: https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/detailed-usage. BigQuery exports the
table as JSON with one object per line, or as CSV. A CSV file cannot hold lists or nested fields. So the query of a CSV
export has to convert the lists to JSON text (`TO_JSON_STRING(labels) AS labels`, and the same for `credits`), and give
flat names to nested fields (`sku.description AS sku_description`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import Any

from spotrun.bill.charge import Charge, ChargeKind, Coverage, LineFilter, Statement, of_amount
from spotrun.bill.rows import EXPORT_ANEW, BillRow, DuplicateLines, read_report
from spotrun.run.billing import COMPUTE_ENGINE_RULE

_TITLE = "Google Cloud billing export"
_NEEDED = ("usage_start_time", "usage_end_time", "cost", "currency")
RUN_LABEL = "spotrun-run"
"""The tag `spotrun:run`, written with the characters that a label allows."""
PRECISION_USD = Decimal("1e-6")
"""The smallest amount that a line can have. A separate line (`rounding_error`) holds the sum of all rounding errors."""
_COST_TYPES = {"tax": ChargeKind.TAX, "rounding_error": ChargeKind.ROUNDING, "adjustment": ChargeKind.CREDIT}
_NAMED = re.compile(r"spotrun-([a-z0-9]{1,20})-[0-9]{1,9}-[0-9a-f]{8}-[sd]-[a-z0-9-]+")
"""Pattern of the names that spotrun gives to instances and so to their boot disks. A name contains the run's uid."""
_SKUS = (
    (ChargeKind.USAGE, re.compile(r"Local SSD|Local Storage|running in|\bCore\b|\bRam\b", re.IGNORECASE)),
    (ChargeKind.VOLUME, re.compile(r"\bPD\b|\bDisk\b|Hyperdisk|Snapshot|\bImage\b", re.IGNORECASE)),
    (ChargeKind.NETWORK, re.compile(r"Egress|Ingress|Data Transfer|\bIP\b|Network", re.IGNORECASE)),
    (ChargeKind.USAGE, re.compile(r"\bGPU\b|Instance", re.IGNORECASE)),
)
"""
The kind of charge for each pattern of SKU names. The first pattern that matches counts. Local SSDs count as usage and
not as disks, because a machine's price includes them.
"""


def read_billing_export(paths: Sequence[Path], lines_of_run: LineFilter) -> Statement:
    """
    Read the lines about one run: lines of its instances and disks, and lines with its label. A large export consists of
    several files.

    Raises:
        SpecInvalid: a line cannot be read; the message names the file, the line and what to do.
    """
    coverage, duplicates = Coverage(), DuplicateLines()
    charges: list[Charge] = []
    for row in chain.from_iterable(read_report(path, _NEEDED, _TITLE) for path in paths):
        kind = _kind(row)
        if kind is ChargeKind.USAGE:
            coverage.add(row.moment("usage_start_time"), row.moment("usage_end_time"))
        if lines_of_run.includes(_run_of(row), _resource(row)):
            duplicates.check(row)
            charges += _charges(row, kind)
    sources = tuple(map(str, paths))
    return Statement(sources, _TITLE, COMPUTE_ENGINE_RULE, coverage.since, coverage.until, tuple(charges))


def _charges(row: BillRow, kind: ChargeKind) -> Iterator[Charge]:
    """
    Yield a charge for the line's cost before credits, and one for each of its credits:
    https://cloud.google.com/billing/docs/how-to/bq-examples. If the account has a negotiated price, the usage counts at
    the list price, as in the ledger, and the difference to `cost` is a credit of its own:
    https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/detailed-usage (cost_at_list).
    """
    if (currency := row.text("currency")) != "USD":
        raise row.refuse(f"is in {currency}, and the ledger is in USD", "divide cost by currency_conversion_rate first")
    cost_usd = row.amount("cost")
    has_list_price = kind is ChargeKind.USAGE and row.text("cost_at_list", optional=True)
    listed_usd = row.amount("cost_at_list") if has_list_price else cost_usd
    amounts = [(kind, row.text("sku_description", optional=True), listed_usd)]
    amounts += [(ChargeKind.CREDIT, "negotiated price", cost_usd - listed_usd)] if cost_usd != listed_usd else []
    amounts += [(ChargeKind.CREDIT, name, amount) for name, amount in _credits(row)]
    for each_kind, what, amount in amounts:
        yield Charge(
            path=str(row.path),
            line=row.line,
            resource=_resource(row),
            kind=of_amount(each_kind, amount),
            what=what,
            start=row.moment("usage_start_time"),
            end=row.moment("usage_end_time"),
            amount_usd=amount,
            precision_usd=PRECISION_USD,
        )


def _credits(row: BillRow) -> Iterator[tuple[str, Decimal]]:
    for credit in _listed(row, "credits"):
        try:
            yield str(credit.get("name", "credit")), Decimal(str(credit["amount"]))
        except (KeyError, InvalidOperation):
            raise row.refuse("has a credit without an amount", EXPORT_ANEW) from None


def _run_of(row: BillRow) -> str:
    """
    Return the run to which a line belongs, from the name of its resource. If this name does not contain a run, use the
    line's label. The label comes second because users can change labels.
    """
    labelled = next((str(label.get("value")) for label in _listed(row, "labels") if label.get("key") == RUN_LABEL), "")
    named = _NAMED.fullmatch(_resource(row))
    return labelled if named is None else named[1]


def _listed(row: BillRow, column: str) -> list[dict[str, Any]]:
    found = row.structure(column) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise row.refuse(f"{column} is not a list of objects", EXPORT_ANEW)
    return found


def _resource(row: BillRow) -> str:
    """Return `resource.name` or, without it, NAME from `//compute.googleapis.com/projects/P/zones/Z/instances/NAME`."""
    named = row.text("resource_name", optional=True)
    return named or row.text("resource_global_name", optional=True).rpartition("/")[2]


def _kind(row: BillRow) -> ChargeKind:
    by_type = _COST_TYPES.get(row.text("cost_type", optional=True))
    if by_type is not None:
        return by_type
    if row.text("service_description", optional=True) not in ("", "Compute Engine"):
        return ChargeKind.SERVICE
    sku = row.text("sku_description", optional=True)
    return next((kind for kind, pattern in _SKUS if pattern.search(sku)), ChargeKind.OTHER)
