"""
Lists as Compute Engine answers them: filtered, by name, a page at a time, by zone or of all zones together.

A zone that does not answer is named in `unreachables`; without `returnPartialSuccess` the whole list fails.
https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tests.support.gce_answers import BACKEND_ERROR, URL, Json, Refusal
from tests.support.gce_filters import matching
from tests.support.google_api import slices

PAGE_MAX = 500
_SCHEMAS = slices()["compute.v1"]["schemas"]


class Listed(NamedTuple):
    """One resource in its scope, as `zones/us-central1-a`."""

    scope: str
    resource: Json


class Lists(NamedTuple):
    project: str
    unreachable: frozenset[str] = frozenset()

    def plain(self, schema: str, query: Mapping[str, str], resources: Iterable[Json], scope: str) -> Json:
        """Of one zone, one region, or all the world."""
        if scope in self.unreachable:
            raise replace(BACKEND_ERROR)
        shown, rest = self._page(schema, query, [Listed(scope, each) for each in resources])
        head = self._head(f"{schema[0].lower()}{schema[1:]}List", scope, schema)
        items = {"items": [each.resource for each in shown]} if shown else {}
        return {**head, **items, **rest}

    def aggregated(
        self, schema: str, field: str, query: Mapping[str, str], listed: Iterable[Listed], scopes: Sequence[str]
    ) -> Json:
        gone = [scope for scope in scopes if scope in self.unreachable]
        if gone and query.get("returnPartialSuccess") != "true":
            raise replace(BACKEND_ERROR)
        shown, rest = self._page(schema, query, [each for each in listed if each.scope not in gone])
        items = {scope: self._scoped(field, scope, scope in gone, shown) for scope in scopes}
        head = self._head(f"{schema[0].lower()}{schema[1:]}AggregatedList", "aggregated", schema)
        told = {"unreachables": gone, "warning": _warning("UNREACHABLE", "There is no answer.")} if gone else {}
        return {**head, "items": items, **rest, **told}

    def _head(self, kind: str, scope: str, schema: str) -> Json:
        path = f"projects/{self.project}/{scope}/{schema[0].lower()}{schema[1:]}s"
        return {"kind": f"compute#{kind}", "id": path, "selfLink": f"{URL}{path}"}

    def _scoped(self, field: str, scope: str, is_gone: bool, shown: Sequence[Listed]) -> Json:
        here = [each.resource for each in shown if each.scope == scope]
        if here:
            return {field: here}
        if is_gone:
            return {"warning": _warning("UNREACHABLE", f"Scope '{scope}' did not answer.", scope)}
        return {
            "warning": _warning("NO_RESULTS_ON_PAGE", f"There are no results for scope '{scope}' on this page.", scope)
        }

    def _page(self, schema: str, query: Mapping[str, str], listed: Sequence[Listed]) -> tuple[Sequence[Listed], Json]:
        """What is on the page that is asked for, and the token of the next."""
        if text := query.get("filter"):
            matches = matching(text, _SCHEMAS[schema]["properties"])
            listed = [each for each in listed if matches(each.resource)]
        ordered = sorted(listed, key=_key)
        start = bisect_right(ordered, _marker(query.get("pageToken")), key=_key) if "pageToken" in query else 0
        shown = ordered[start : start + self._size(query)]
        if not shown or start + len(shown) == len(ordered):
            return shown, {}
        return shown, {"nextPageToken": _token(_key(shown[-1]))}

    def _size(self, query: Mapping[str, str]) -> int:
        size = int(query.get("maxResults", PAGE_MAX))
        if size > PAGE_MAX:
            raise Refusal(400, "invalid", f"Invalid value '{size}'. Values must be within the range: [0, {PAGE_MAX}]")
        return size or PAGE_MAX


def _key(each: Listed) -> list[str]:
    return [each.scope, each.resource["name"]]


def _token(key: Sequence[Any]) -> str:
    """It says after what the next page begins: what is made or deleted between two pages moves no other."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _marker(token: str | None) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(token or ""))
    except ValueError:
        raise Refusal(400, "invalid", f"Invalid value for field 'pageToken': '{token}'.") from None


def _warning(code: str, message: str, scope: str | None = None) -> Json:
    data = {"data": [{"key": "scope", "value": scope}]} if scope is not None else {}
    return {"code": code, "message": message, **data}
