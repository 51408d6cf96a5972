"""
What Google says is wrong, as it says it: in the body of an answer of HTTP (https://cloud.google.com/apis/design/errors),
or in an operation that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SHOWN_MAX = 400
"""Of a message: a page of HTML that a proxy has sent is no sentence."""
_SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)\b")
_CONSTRAINT = re.compile(r"\bconstraints/[\w.]+")
_ALL_REGIONS = re.compile(r"ALL[_-]REGIONS|\bglobally\b")


class Fault(NamedTuple):
    """One thing that Google found wrong. `code` is its reason or code, `details` what came with it."""

    code: str
    message: str
    details: tuple[Mapping[str, Any], ...] = ()

    @property
    def told(self) -> str:
        """The message, and what only the details say."""
        beside = (
            self._quota_told,
            self._named_beside(self._metadata("permission")),
            self._named_beside(self.constraint),
        )
        return " ".join(filter(None, (self.message, *beside)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Those of newer services, which say more than `code`."""
        return tuple(str(each["reason"]) for each in self._infos if "reason" in each)

    @property
    def service(self) -> str:
        """The API that is named, such as `compute.googleapis.com`; "" if none is."""
        found = _SERVICE.search(self.message)
        return self._metadata("service") or (found[1] if found is not None else "")

    @property
    def constraint(self) -> str:
        """The constraint of an organization that is violated; "" if none is."""
        violations = (violation for detail in self.details for violation in detail.get("violations", ()))
        texts = (self.message, *(str(each.get("type", "")) for each in violations))
        return next((found[0] for text in texts if (found := _CONSTRAINT.search(text)) is not None), "")

    @property
    def zones_available(self) -> tuple[str, ...]:
        """The zones that a stockout names as having some."""
        return tuple(zone.strip() for zone in self._metadata("zonesAvailable").split(",") if zone.strip())

    @property
    def is_of_all_regions(self) -> bool:
        """Of a quota: another region has no more of it."""
        return _ALL_REGIONS.search(self.told) is not None

    @property
    def _infos(self) -> Iterator[Mapping[str, Any]]:
        """An operation has each in a field of its own."""
        return (detail.get("errorInfo", detail) for detail in self.details)

    def _metadata(self, name: str) -> str:
        found = ({**each.get("metadata", {}), **each.get("metadatas", {})}.get(name) for each in self._infos)
        return str(next(filter(None, found), ""))

    def _named_beside(self, name: str) -> str:
        return f"({name})" if name and name not in self.message else ""

    @property
    def _quota_told(self) -> str:
        """A quota with its number."""
        quota = next((each["quotaInfo"] for each in self.details if each.get("quotaInfo")), None)
        if quota is None:
            return ""
        name = quota.get("limitName") or quota.get("metricName", "")
        limit = f"limit {quota.get('limit', 'unknown')} of {name}"
        where = [f"{key} {value}" for key, value in sorted(quota.get("dimensions", {}).items()) if key != value]
        return f"({', '.join((limit, *where))})"


def faults_of_http(body: object) -> Iterator[Fault]:
    """`error.errors` has reasons, and `error.details` those of newer services; one list alone may be there."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return
    details, message = _dicts(error.get("details")), _shown(error.get("message"))
    found = _dicts(error.get("errors"))
    for each in found:
        yield Fault(str(each.get("reason", "")), _shown(each.get("message")) or message, details)
    if not found:
        yield Fault(str(error.get("status", "")), message, details)


def faults_of_operation(operation: Mapping[str, Any]) -> Iterator[Fault]:
    for each in _dicts(operation.get("error", {}).get("errors")):
        yield Fault(str(each.get("code", "")), _shown(each.get("message")), _dicts(each.get("errorDetails")))


def words_of(text: str) -> str:
    """What a person would read of a page."""
    return _shown(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


def _dicts(found: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _shown(message: object) -> str:
    return str(message or "")[:SHOWN_MAX]
