"""
Reads the errors that Google reports: in the body of an HTTP answer (https://cloud.google.com/apis/design/errors), or in
a failed operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SHOWN_MAX = 400
"""Maximum characters of a message that is shown. A longer one may be an HTML page from a proxy."""
_SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)\b")
_CONSTRAINT = re.compile(r"\bconstraints/[\w.]+")
_ALL_REGIONS = re.compile(r"ALL[_-]REGIONS|\bglobally\b")


class Fault(NamedTuple):
    """An error that Google reports. `code` is its reason (in an HTTP answer) or its code (in an operation)."""

    code: str
    message: str
    details: tuple[Mapping[str, Any], ...] = ()

    @property
    def told(self) -> str:
        """The message, completed by facts from `details` that it lacks: quota, permission and constraint."""
        beside = (
            self._quota_told,
            self._named_beside(self._metadata("permission")),
            self._named_beside(self.constraint),
        )
        return " ".join(filter(None, (self.message, *beside)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons in the details. Newer services send them; they are more precise than `code`."""
        return tuple(str(each["reason"]) for each in self._infos if "reason" in each)

    @property
    def service(self) -> str:
        """The API that the error names, such as `compute.googleapis.com`; "" if it does not name one."""
        found = _SERVICE.search(self.message)
        return self._metadata("service") or (found[1] if found is not None else "")

    @property
    def constraint(self) -> str:
        """The organization policy constraint that the request violates; "" if there is none."""
        violations = (violation for detail in self.details for violation in detail.get("violations", ()))
        texts = (self.message, *(str(each.get("type", "")) for each in violations))
        return next((found[0] for text in texts if (found := _CONSTRAINT.search(text)) is not None), "")

    @property
    def zones_available(self) -> tuple[str, ...]:
        """The zones that have capacity, according to a stockout's details."""
        return tuple(zone.strip() for zone in self._metadata("zonesAvailable").split(",") if zone.strip())

    @property
    def is_of_all_regions(self) -> bool:
        """True if all regions share the exceeded quota. Another region does not help then."""
        return _ALL_REGIONS.search(self.told) is not None

    @property
    def _infos(self) -> Iterator[Mapping[str, Any]]:
        """The ErrorInfos. In an HTTP answer, they are the details; in an operation, each is a field of a detail."""
        return (detail.get("errorInfo", detail) for detail in self.details)

    def _metadata(self, name: str) -> str:
        found = ({**each.get("metadata", {}), **each.get("metadatas", {})}.get(name) for each in self._infos)
        return str(next(filter(None, found), ""))

    def _named_beside(self, name: str) -> str:
        return f"({name})" if name and name not in self.message else ""

    @property
    def _quota_told(self) -> str:
        """The exceeded quota and its limit, in parentheses; "" if the fault does not name a quota."""
        quota = next((each["quotaInfo"] for each in self.details if each.get("quotaInfo")), None)
        if quota is None:
            return ""
        name = quota.get("limitName") or quota.get("metricName", "")
        limit = f"limit {quota.get('limit', 'unknown')} of {name}"
        where = [f"{key} {value}" for key, value in sorted(quota.get("dimensions", {}).items()) if key != value]
        return f"({', '.join((limit, *where))})"


def faults_of_http(body: object) -> Iterator[Fault]:
    """
    Yield the faults in an HTTP answer. Older services list them in `error.errors`, newer services in `error.details`.
    Either list may be missing.
    """
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
    """Return the text of an HTML page without its tags."""
    return _shown(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


def _dicts(found: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _shown(message: object) -> str:
    return str(message or "")[:SHOWN_MAX]
