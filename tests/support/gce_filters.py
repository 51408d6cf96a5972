"""
`filter` of Compute Engine's lists, as far as clients here use it: comparisons by `=`, by `:` with a star at the end,
and by `eq` with a regular expression, joined by OR. Anything else is refused.

https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList, https://google.aip.dev/160
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.gce_answers import Refusal

Matches = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(r"""\s*(?:[()=:]|"((?:[^"\\]|\\.)*)"|[^\s()=:"]+)""")


def matching(text: str, fields: Mapping[str, Any]) -> Matches:
    """
    What the filter lets through. `fields` are those that the resource has.

    Raises:
        Refusal: it is no filter, or names a field that is not there.
    """
    parser = _Parser(text, fields)
    found = parser.disjunction()
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
            found.append(token[0].strip() if token[1] is None else f'"{token[1]}')
        return found

    def _next(self) -> str:
        if not self.rest:
            raise self.refusal
        return self.rest.pop(0)

    def disjunction(self) -> Matches:
        parts = [self._term()]
        while self.rest and self.rest[0] == "OR":
            self.rest.pop(0)
            parts.append(self._term())
        return lambda item: any(part(item) for part in parts)

    def _term(self) -> Matches:
        token = self._next()
        if token == "(":
            inner = self.disjunction()
            if self._next() != ")":
                raise self.refusal
            return inner
        return self._comparison(token)

    def _comparison(self, name: str) -> Matches:
        first, *_ = path = name.split(".")
        operator, value = self._next(), self._next()
        compare, wanted = _OPERATORS.get(operator), value.removeprefix('"')
        if first not in self._fields or compare is None or (operator == ":" and not wanted.endswith("*")):
            raise self.refusal
        return lambda item: compare(_at(item, path), wanted)


def _at(item: Any, path: list[str]) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, Mapping) else None
    return item


def _equal(value: Any, wanted: str) -> bool:
    """A star at an end stands for anything: https://google.aip.dev/160"""
    if value is None:
        return False
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(pattern, str(value), re.DOTALL) is not None


def _whole(value: Any, wanted: str) -> bool:
    return re.fullmatch(wanted, "" if value is None else str(value)) is not None


_OPERATORS: Mapping[str, Callable[[Any, str], bool]] = {"=": _equal, ":": _equal, "eq": _whole}
