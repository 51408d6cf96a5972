"""
Conditions of Google's IAM: the part of CEL that those of infra/gcp are written in. Anything else raises
NotImplementedError.

    resource.name.extract("/ledger/{entry}") == "" && !(resource.type.startsWith("x") || …)

https://cloud.google.com/iam/docs/conditions-attribute-reference
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|resource\.(?:name|type|service)|&&|\|\||==|!=|[!().]|[a-zA-Z]\w*)')
_METHODS: Mapping[str, Callable[[str, str], str | bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "extract": lambda text, template: extracted(text, template),
}


@dataclass(frozen=True)
class Resource:
    """What a condition may ask of."""

    name: str
    type: str = ""
    service: str = ""


def holds(expression: str, resource: Resource) -> bool:
    reader = _Reader(_tokens(expression), resource)
    value = reader.either()
    if reader.tokens or not isinstance(value, bool):
        raise NotImplementedError(f"{expression}: left over {reader.tokens}")
    return value


def extracted(text: str, template: str) -> str:
    """
    What stands in the place of the template's one variable: from behind the first occurrence of what is before it, up
    to the next occurrence of what is after it, or to the end if nothing is. Empty where one of the two does not occur.
    """
    parts = re.fullmatch(r"([^{}]*)\{\w+\}([^{}]*)", template)
    if parts is None:
        raise NotImplementedError(template)
    before, after = parts.groups()
    _, found, rest = text.partition(before) if before else ("", "from the start", text)
    value, ended, _ = rest.partition(after) if after else (rest, "at the end", "")
    return value if found and ended else ""


def _tokens(expression: str) -> list[str]:
    found, at = [], 0
    while expression[at:].strip():
        token = _TOKEN.match(expression, at)
        if token is None:
            raise NotImplementedError(expression[at:])
        found.append(token[1])
        at = token.end()
    return found


class _Reader:
    """Each method reads what binds as tightly as its name says, and gives its value."""

    def __init__(self, tokens: list[str], resource: Resource) -> None:
        self.tokens = tokens
        self._resource = resource

    def either(self) -> str | bool:
        value = self._both()
        while self._next_is("||"):
            other = self._both()
            value = _truth(value) or _truth(other)
        return value

    def _both(self) -> str | bool:
        value = self._compared()
        while self._next_is("&&"):
            other = self._compared()
            value = _truth(value) and _truth(other)
        return value

    def _compared(self) -> str | bool:
        value = self._called()
        if self._next_is("=="):
            return value == self._called()
        if self._next_is("!="):
            return value != self._called()
        return value

    def _called(self) -> str | bool:
        value = self._plain()
        while self._next_is("."):
            method = _METHODS.get(self._take())
            if method is None or not isinstance(value, str) or not self._next_is("("):
                raise NotImplementedError(f"before {self.tokens}")
            argument = self.either()
            self._close()
            value = method(value, str(argument))
        return value

    def _plain(self) -> str | bool:
        token = self._take()
        if token == "!":
            return not _truth(self._called())
        if token == "(":
            value = self.either()
            self._close()
            return value
        if token.startswith('"'):
            return str(json.loads(token))
        if token.startswith("resource."):
            return str(getattr(self._resource, token.removeprefix("resource.")))
        raise NotImplementedError(token)

    def _take(self) -> str:
        if not self.tokens:
            raise NotImplementedError("an expression that ends too early")
        return self.tokens.pop(0)

    def _next_is(self, token: str) -> bool:
        if self.tokens[:1] != [token]:
            return False
        self._take()
        return True

    def _close(self) -> None:
        if not self._next_is(")"):
            raise NotImplementedError(f"no ) before {self.tokens}")


def _truth(value: str | bool) -> bool:
    if not isinstance(value, bool):
        raise NotImplementedError(f"{value!r} is no truth")
    return value
