"""
`filter` of Compute Engine's lists: both languages that its reference describes. Of a text, `:` finds a part, or what
begins so before a star, as Google's own slurm-gcp lists the nodes of a cluster, by `name:CLUSTER-*`.

https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList. Expressions stand beside one another,
which is AND, or are joined by AND and OR, of which OR binds tighter (https://google.aip.dev/160).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tests.support.gce_answers import Refusal

Matches = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(r"""\s*(?:([()])|(!=|<=|>=|=|<|>|:)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s()=!<>:"']+))""")


def matching(text: str, fields: Mapping[str, Any]) -> Matches:
    """
    What the filter lets through. `fields` are those that the resource has.

    Raises:
        Refusal: it is no filter, or names a field that is not there.
    """
    parser = _Parser(text, fields)
    found = parser.conjunction()
    if parser.rest:
        raise parser.refusal
    return found


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, Any]) -> None:
        self.refusal = Refusal(
            400, "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
        )
        self.rest = list(self._tokens(text))
        self._fields = fields

    def _tokens(self, text: str) -> list[str]:
        found, at = [], 0
        while text[at:].strip():
            token = _TOKEN.match(text, at)
            if token is None:
                raise self.refusal
            at = token.end()
            quoted = token[3] if token[3] is not None else token[4]
            found.append(token[0].strip() if quoted is None else f'"{quoted}')
        return found

    def _next(self) -> str:
        if not self.rest:
            raise self.refusal
        return self.rest.pop(0)

    def conjunction(self) -> Matches:
        parts = [self._disjunction()]
        while self.rest and self.rest[0] != ")":
            if self.rest[0] == "AND":
                self.rest.pop(0)
            parts.append(self._disjunction())
        return lambda item: all(part(item) for part in parts)

    def _disjunction(self) -> Matches:
        parts = [self._term()]
        while self.rest and self.rest[0] == "OR":
            self.rest.pop(0)
            parts.append(self._term())
        return lambda item: any(part(item) for part in parts)

    def _term(self) -> Matches:
        token = self._next()
        if token in ("NOT", "-"):
            inner = self._term()
            return lambda item: not inner(item)
        if token == "(":
            inner = self.conjunction()
            if self._next() != ")":
                raise self.refusal
            return inner
        return self._comparison(token)

    def _comparison(self, name: str) -> Matches:
        first, *_ = path = name.split(".")
        operator, value = self._next(), self._next()
        compare = _OPERATORS.get(operator)
        if first not in self._fields or compare is None:
            raise self.refusal
        any_value = operator == ":" and value == "*"
        wanted = value.removeprefix('"')
        if any_value:
            return lambda item: _at(item, path) not in (None, "")
        return lambda item: compare(_at(item, path), wanted)


def _at(item: Any, path: list[str]) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, Mapping) else None
    return item


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(value: Any, wanted: str) -> bool:
    """A star at an end stands for anything: https://google.aip.dev/160"""
    if value is None:
        return False
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(pattern, _text(value), re.DOTALL) is not None


def _has(value: Any, wanted: str) -> bool:
    if isinstance(value, Mapping | list):
        return wanted in value
    if wanted.endswith("*"):
        return _equal(value, wanted)
    return value is not None and wanted in _text(value)


def _whole(value: Any, wanted: str) -> bool:
    return re.fullmatch(wanted, "" if value is None else _text(value)) is not None


def _order(value: Any, wanted: str) -> int | None:
    """Of moments, numbers, or texts; None if it is not set. Moments count, not how they are written."""
    for read in (datetime.fromisoformat, float, str):
        try:
            left, right = read(str(value)), read(wanted)
            return (left > right) - (left < right)  # type: ignore[operator]
        except (TypeError, ValueError):
            continue
    raise AssertionError(value)


def _ordered(*results: int) -> Callable[[Any, str], bool]:
    return lambda value, wanted: value is not None and _order(value, wanted) in results


_OPERATORS: Mapping[str, Callable[[Any, str], bool]] = {
    "=": _equal,
    "!=": lambda value, wanted: not _equal(value, wanted),
    ":": _has,
    "<": _ordered(-1),
    "<=": _ordered(-1, 0),
    ">": _ordered(1),
    ">=": _ordered(0, 1),
    "eq": _whole,
    "ne": lambda value, wanted: not _whole(value, wanted),
}
