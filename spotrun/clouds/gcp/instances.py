"""
The instances of a project as Google lists and remembers them, in two calls for all zones at once.

Both find them by name, which never changes: a policy or a user may take a label away from what runs and is billed. The
label of a run finds what a user launches "like this", with our labels and under another name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.config import region_of
from spotrun.clouds.gcp.description import Record, run_of
from spotrun.clouds.gcp.names import OURS
from spotrun.clouds.gcp.operations import Operation, read_operations
from spotrun.clouds.gcp.request import RUN
from spotrun.errors import CloudUnavailable

_PAGE = {"maxResults": "500", "returnPartialSuccess": "true"}


class InstanceListing(NamedTuple):
    """`records` by name. `unreachable` are zones about which Google says nothing now: unknown, not empty."""

    records: dict[str, Record]
    unreachable: frozenset[str]


def look(google: Google, project: str, run_uid: str | None) -> InstanceListing:
    """
    Return what there is of a run, or of all runs.

    The rows come first: what begins or ends between the two calls is among the operations.
    """
    rows, unreachable = _rows(google, project, run_uid)
    operations, blind = _operations(google, project, run_uid)
    by_name: dict[str, list[Operation]] = {}
    for operation in operations:
        by_name.setdefault(operation.target, []).append(operation)
    names = {*rows, *by_name}
    records = {name: Record(name, rows.get(name), by_name.get(name, ())) for name in sorted(names)}
    return InstanceListing(records, unreachable | blind)


def require_seen(seen: InstanceListing, must_see: Collection[str]) -> None:
    """
    Raises:
        CloudUnavailable: Google says nothing about one of these zones, or about one in these regions.
    """
    missing = sorted(zone for zone in seen.unreachable if zone in must_see or region_of(zone) in must_see)
    if missing:
        raise CloudUnavailable(f"Google does not answer for {', '.join(missing)}")


def _rows(google: Google, project: str, run_uid: str | None) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    query = {**_PAGE, "filter": of_runs(run_uid)}
    call = Call(COMPUTE, "GET", f"projects/{project}/aggregated/instances", query)
    found, unreachable = _scopes(google, "list instances", call, "instances")
    return {row["name"]: row for row in found if run_uid in (None, run_of(row))}, unreachable


def of_runs(run_uid: str | None) -> str:
    """
    Return the filter of a list for what belongs to a run, or to any run.

    https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList: expressions, and OR between them.
    """
    labelled = f"labels.{RUN}:*" if run_uid is None else f'labels.{RUN} = "{_plain(run_uid)}"'
    return f"({labelled}) OR (name:{_prefix(run_uid)}*)"


def _operations(google: Google, project: str, run_uid: str | None) -> tuple[list[Operation], frozenset[str]]:
    """By a regular expression: it is the one kind of filter that finds a part of a link."""
    query = {**_PAGE, "filter": f'targetLink eq ".*/instances/{_prefix(run_uid)}.*"'}
    call = Call(COMPUTE, "GET", f"projects/{project}/aggregated/operations", query)
    found, unreachable = _scopes(google, "list what was done to instances", call, "operations")
    return read_operations(found), unreachable


def _scopes(google: Google, action: str, call: Call, of: str) -> tuple[list[Mapping[str, Any]], frozenset[str]]:
    """Return all rows, and the zones that do not answer, by the warning of a scope or the `unreachables` of a page."""
    rows: list[Mapping[str, Any]] = []
    unreachable: set[str] = set()
    for page in google.pages(action, call):
        unreachable.update(str(link).rpartition("/")[2] for link in page.get("unreachables", ()))
        for scope, part in page.get("items", {}).items():
            rows += part.get(of, ())
            unreachable.update(_blind(scope, part.get("warning", {})))
    return rows, frozenset(unreachable)


def _blind(scope: str, warning: Mapping[str, Any]) -> Iterator[str]:
    if warning.get("code") == "UNREACHABLE":
        yield scope.rpartition("/")[2]


def _prefix(run_uid: str | None) -> str:
    """Return how the names of a run's instances begin, or those of all runs."""
    return OURS if run_uid is None else f"{OURS}{_plain(run_uid)}-"


def _plain(run_uid: str) -> str:
    """A uid has letters and digits only; anything else finds nothing, and is no part of an expression."""
    return run_uid if re.fullmatch(r"[a-z0-9]{1,64}", run_uid) else "nobody"
