"""
Finds a project's instances in all zones with two calls. One call lists the existing instances, the other lists past
operations on instances.

Both calls search by name, because an instance's name never changes. A search by label would miss an instance whose
label a policy or a user has removed. The first call searches by label too. This finds a copy that a user has made of an
instance: it has spotrun's labels, but another name. A copy is no instance of the run, because the runner's role can end
only instances with spotrun's names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.config import region_of
from spotrun.clouds.gcp.description import Record, last_part, run_of
from spotrun.clouds.gcp.names import OURS, read_name
from spotrun.clouds.gcp.operations import Operation, read_operations
from spotrun.clouds.gcp.request import RUN
from spotrun.errors import CloudUnavailable

_ZONE = re.compile(r"(?:^|/)[a-z]+(?:-[a-z]+)+\d+-[a-z]$")
UNNAMED = "zones that it does not name"
_PAGE = {"maxResults": "500", "returnPartialSuccess": "true"}


class InstanceListing(NamedTuple):
    """
    The result of `look`. `records` are the records of instances, keyed by name. `unreachable` names the zones whose
    instances Google could not list; it has UNNAMED if Google does not name them. `copies` maps the name of each
    instance that has a run's label, but a name that spotrun does not give, to its zone.
    """

    records: dict[str, Record]
    unreachable: frozenset[str]
    copies: dict[str, str]


def look(google: Google, project: str, run_uid: str | None) -> InstanceListing:
    """
    List the instances of a run, or of all runs if `run_uid` is None.

    List instances first, then operations. An instance that starts or ends between the two calls then appears among the
    operations.
    """
    rows, unreachable = _rows(google, project, run_uid)
    operations, blind = _operations(google, project, run_uid)
    by_name: dict[str, list[Operation]] = {}
    for operation in operations:
        by_name.setdefault(operation.target, []).append(operation)
    names = {*rows, *by_name}
    records = {name: Record(name, rows.get(name), by_name.get(name, ())) for name in sorted(names) if read_name(name)}
    copies = {name: last_part(row["zone"]) for name, row in rows.items() if run_of(row) and name not in records}
    return InstanceListing(records, unreachable | blind, copies)


def require_seen(seen: InstanceListing, must_see: Collection[str]) -> None:
    """
    Raise CloudUnavailable if Google did not list the instances in one of the zones or regions that `must_see` names. A
    zone that Google does not name may be any of them.
    """
    missing = sorted(
        zone for zone in seen.unreachable if must_see and (zone == UNNAMED or {zone, region_of(zone)} & {*must_see})
    )
    if missing:
        raise CloudUnavailable(f"Google did not list the instances in {', '.join(missing)}")


def _rows(google: Google, project: str, run_uid: str | None) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    query = {**_PAGE, "filter": of_runs(run_uid)}
    call = Call(COMPUTE, "GET", f"projects/{project}/aggregated/instances", query)
    found, unreachable = _scopes(google, "list instances", call, "instances")
    return {row["name"]: row for row in found if run_uid in (None, run_of(row))}, unreachable


def of_runs(run_uid: str | None) -> str:
    """
    Return a filter that selects the resources of one run, or of all runs if `run_uid` is None.

    The syntax of filters is described at
    https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList.
    """
    labelled = f"labels.{RUN}:*" if run_uid is None else f'labels.{RUN} = "{_plain(run_uid)}"'
    return f"({labelled}) OR (name:{_prefix(run_uid)}*)"


def _operations(google: Google, project: str, run_uid: str | None) -> tuple[list[Operation], frozenset[str]]:
    """
    Return the operations, and the unreachable zones. An operation names its instance only at the end of a link. Only a
    regular expression can match part of a link.
    """
    query = {**_PAGE, "filter": f'targetLink eq ".*/instances/{_prefix(run_uid)}.*"'}
    call = Call(COMPUTE, "GET", f"projects/{project}/aggregated/operations", query)
    found, unreachable = _scopes(google, "list what was done to instances", call, "operations")
    return read_operations(found), unreachable


def _scopes(google: Google, action: str, call: Call, of: str) -> tuple[list[Mapping[str, Any]], frozenset[str]]:
    """
    Return the rows of all zones, and the names of the zones that did not answer. Google reports such a zone in one of
    three ways: by a warning in the zone's part of the answer, in the page's list `unreachables`, or by a warning of the
    page, whose `data` may name it
    (https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList#response-body).
    """
    rows: list[Mapping[str, Any]] = []
    unreachable: set[str] = set()
    for page in google.pages(action, call):
        named = {str(link).rpartition("/")[2] for link in page.get("unreachables", ())}
        unreachable |= named or set(_blind_page(page.get("warning", {})))
        for scope, part in page.get("items", {}).items():
            rows += part.get(of, ())
            unreachable.update(_blind(scope, part.get("warning", {})))
    return rows, frozenset(unreachable)


def _blind_page(warning: Mapping[str, Any]) -> Iterator[str]:
    """Yield the zones that a page's warning names; UNNAMED if it names none."""
    if warning.get("code") == "UNREACHABLE":
        values = (str(each.get("value", "")) for each in warning.get("data", ()))
        yield from [value.rpartition("/")[2] for value in values if _ZONE.search(value)] or [UNNAMED]


def _blind(scope: str, warning: Mapping[str, Any]) -> Iterator[str]:
    if warning.get("code") == "UNREACHABLE":
        yield scope.rpartition("/")[2]


def _prefix(run_uid: str | None) -> str:
    """Return the prefix of the names of a run's instances or, if `run_uid` is None, of the instances of all runs."""
    return OURS if run_uid is None else f"{OURS}{_plain(run_uid)}-"


def _plain(run_uid: str) -> str:
    """
    Return `run_uid` if it is safe to insert into a filter, because it has only letters and digits, like every uid.
    Otherwise return a word that matches no instance.
    """
    return run_uid if re.fullmatch(r"[a-z0-9]{1,64}", run_uid) else "nobody"
