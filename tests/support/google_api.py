"""
What is wrong with a call to Google Cloud, or with its answer, by Google's own description of it.

    called = api.called("POST", "/compute/v1/projects/p/zones/us-central1-a/instances?requestId=…")
    faults = [*called.faults, *api.request_faults(called, body)]

Google itself is more lenient than its description in one way (`UNDESCRIBED`) and takes some numbers as text:
https://protobuf.dev/programming-guides/json/. `null` is a field that is not set.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.repository import ROOT

UNDESCRIBED: Mapping[str, Mapping[str, Any]] = {"returnPartialSuccess": {"type": "boolean"}}
"""
Query parameters of the lists of Compute Engine that v1's document lacks. They are in its reference, and gcloud sends
them: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
"""
UNDESCRIBED_OF_SECRETS: Mapping[str, Mapping[str, Any]] = {
    "$alt": {"type": "string", "pattern": "json;enum-encoding=int"}
}
"""What Google's own client sends: https://cloud.google.com/apis/docs/system-parameters."""
_DOCUMENTS = ROOT / "tests" / "data" / "google"
_BOUNDS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
_DURATION = re.compile(r"-?\d{1,12}(\.\d{1,9})?s")
_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")


def slices() -> dict[str, Any]:
    """Google's own discovery documents by their names, each cut down by tests/data/google_slices.py."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(_DOCUMENTS.glob("*.json"))}


class Method(NamedTuple):
    """`id` is as Google writes it: compute.instances.insert."""

    id: str
    service: str
    parameters: Mapping[str, Mapping[str, Any]]
    request: Mapping[str, Any] | None
    response: Mapping[str, Any] | None
    uploads: bool


class Called(NamedTuple):
    """What a URL calls: `arguments` are those in its path, decoded. `faults` are of both, and of the query."""

    method: Method
    arguments: Mapping[str, str]
    query: Mapping[str, str]
    faults: tuple[str, ...]


class Asked(NamedTuple):
    """
    One call that has arrived, whatever became of it. `who` is the member that its token is of; `path` is that of its
    URL, from `projects/` on if it is one of Compute Engine; `nth` counts the calls of this method.
    """

    who: str
    method: str
    arguments: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    at: datetime
    path: str = ""
    nth: int = 1

    @property
    def is_of_compute(self) -> bool:
        return self.method.startswith("compute.")

    @property
    def name(self) -> str:
        """That of the object that it is for."""
        return str(self.arguments.get("object") or self.query.get("name") or (self.body or {}).get("name", ""))

    @property
    def resource(self) -> str:
        """The path of what it is for, also of an instance that it makes."""
        return f"{self.path}/{self.body['name']}" if self.method == "compute.instances.insert" else self.path


class Unknown(LookupError):
    """Nothing that tests know of Google's is called so."""


class GoogleApi:
    """All slices. They are on one host here: none of their paths is another's."""

    def __init__(self) -> None:
        self._slices = slices()
        self._routes = [route for service in self._slices for route in self._routes_of(service)]

    @property
    def methods(self) -> set[str]:
        return {method.id for _, _, method in self._routes}

    def called(self, verb: str, target: str) -> Called:
        """
        What a request with this verb and target (path and query) is for.

        Raises:
            Unknown: there is no such method.
        """
        url = urlsplit(target)
        for of_verb, pattern, method in self._routes:
            if of_verb == verb and (found := pattern.fullmatch(url.path)):
                arguments = {name: unquote(text) for name, text in found.groupdict().items()}
                query = parse_qsl(url.query, keep_blank_values=True)
                faults = chain(_argument_faults(method, arguments), _query_faults(method, query))
                return Called(method, arguments, dict(query), tuple(faults))
        raise Unknown(f"{verb} {url.path}")

    def request_faults(self, called: Called, body: Any) -> list[str]:
        """None is a request without a body."""
        method = called.method
        if method.request is None:
            return [] if body in (None, {}) else [f"{method.id} takes no body"]
        return list(self._faults(method, method.request, {} if body is None else body, is_answer=False))

    def answer_faults(self, called: Called, body: Any) -> list[str]:
        """Of an answer that is no error."""
        method = called.method
        if method.response is None:
            return [] if body in (None, {}) else [f"{method.id} answers no body"]
        return list(self._faults(method, method.response, body, is_answer=True))

    def _faults(self, method: Method, schema: Mapping[str, Any], body: Any, is_answer: bool) -> Iterator[str]:
        check = _Check(self._slices[method.service]["schemas"], method.id, is_answer)
        return check.faults(schema, body, "answer" if is_answer else "body")

    def _routes_of(self, service: str) -> Iterator[tuple[str, re.Pattern[str], Method]]:
        document = self._slices[service]
        name = service.partition(".")[0]
        for within, described in document["methods"].items():
            parameters = {**document["parameters"], **described["parameters"]}
            if name == "compute" and "pageToken" in parameters:
                parameters |= UNDESCRIBED
            if name == "secretmanager":
                parameters |= UNDESCRIBED_OF_SECRETS
            method = Method(
                f"{name}.{within}", service, parameters, described.get("request"), described.get("response"), False
            )
            path = document["servicePath"] + described["path"]
            yield described["httpMethod"], _pattern(path, parameters), method
            for upload in described.get("uploads", ()):
                yield described["httpMethod"], _pattern(upload, parameters), method._replace(uploads=True)


class _Check(NamedTuple):
    """Of one body, by the schemas of one service."""

    schemas: Mapping[str, Any]
    method: str
    is_answer: bool

    def faults(self, schema: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
        if value is None:
            return
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind = schema["type"]
        if kind == "object":
            yield from self._of_object(schema, value, place)
        elif kind == "array":
            yield from self._of_array(schema, value, place)
        elif kind != "any" and (fault := _scalar_fault(schema, value, self.is_answer)):
            yield f"{place}: {fault}"

    def _of_object(self, schema: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{place}: {value!r} is no object"
            return
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, each in value.items():
            inner = properties.get(name, others)
            if inner is None:
                yield f"{place}: no field is called {name}"
            else:
                yield from self.faults(inner, each, f"{place}.{name}")
        if not self.is_answer:
            yield from (f"{place}: {name} is missing" for name in self._required(properties) - _set_in(value))

    def _of_array(self, schema: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{place}: {value!r} is no list"
            return
        for number, each in enumerate(value):
            if each is None:
                yield f"{place}[{number}]: null in a list"
            yield from self.faults(schema["items"], each, f"{place}[{number}]")

    def _required(self, properties: Mapping[str, Any]) -> set[str]:
        return {
            name for name, each in properties.items() if self.method in each.get("annotations", {}).get("required", ())
        }


def _set_in(value: Mapping[str, Any]) -> set[str]:
    return {name for name, each in value.items() if each is not None}


def _scalar_fault(schema: Mapping[str, Any], value: Any, is_answer: bool) -> str | None:
    form = schema.get("format")
    match schema["type"]:
        case "boolean":
            return None if isinstance(value, bool) else f"{value!r} is no boolean"
        case "integer":
            return _integer_fault(value, form)
        case "number":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return None if is_number else f"{value!r} is no number"
        case _ if form in ("int64", "uint64"):
            return _text_number_fault(value, form, is_answer)
        case _:
            return _text_fault(schema, value)


def _integer_fault(value: Any, form: str | None) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{value!r} is no integer"
    low, high = _BOUNDS[form or "int64"]
    return None if low <= value <= high else f"{value} is not within {form}"


def _text_number_fault(value: Any, form: str, is_answer: bool) -> str | None:
    """Numbers of 64 bits are written as text; of requests Google reads both."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value):
        return _integer_fault(int(value), form)
    return f"{value!r} is no {form} as text" if is_answer or isinstance(value, str) else _integer_fault(value, form)


def _text_fault(schema: Mapping[str, Any], value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} is no text"
    if "enum" in schema and value not in schema["enum"]:
        return f"{value!r} is none of {', '.join(schema['enum'])}"
    if "pattern" in schema and not _compiled(schema["pattern"]).fullmatch(value):
        return f"{value!r} does not match {schema['pattern']}"
    return None if _has_form(value, schema.get("format")) else f"{value!r} is no {schema['format']}"


def _has_form(text: str, form: str | None) -> bool:
    if form in ("date-time", "google-datetime"):
        return _is_moment(text)
    if form == "google-duration":
        return _DURATION.fullmatch(text) is not None
    return _is_base64(text) if form == "byte" else True


def _is_moment(text: str) -> bool:
    """RFC 3339."""
    try:
        return "T" in text and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        return False
    return True


# -- paths and queries -----------------------------------------------------------------------------------------------


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _pattern(path: str, parameters: Mapping[str, Mapping[str, Any]]) -> re.Pattern[str]:
    """`{+name}` is as long as its pattern says, `{name}` ends at the next slash: RFC 6570."""

    def group(found: re.Match[str]) -> str:
        whole, name = found[1], found[2]
        if not whole:
            return f"(?P<{name}>[^/]+)"
        inner = parameters[name]["pattern"].removeprefix("^").removesuffix("$")
        return f"(?P<{name}>{inner})".replace("[^/]+", "[^/:]+")  # a colon is before a verb of its own

    parts = _VARIABLE.split(path)
    texts = (re.escape(text) for text in parts[::3])
    groups = (group(found) for found in _VARIABLE.finditer(path))
    return re.compile("".join(chain.from_iterable(zip(texts, (*groups, ""), strict=True))))


def _argument_faults(method: Method, arguments: Mapping[str, str]) -> Iterator[str]:
    for name, text in arguments.items():
        fault = _text_fault({"type": "string", **method.parameters[name]}, text)
        if fault is not None:
            yield f"path {name}: {fault}"


def _query_faults(method: Method, query: Iterable[tuple[str, str]]) -> Iterator[str]:
    seen: set[str] = set()
    for name, text in query:
        parameter = method.parameters.get(name)
        if parameter is None or parameter.get("location", "query") != "query":
            yield f"query: no parameter is called {name}"
            continue
        if name in seen and not parameter.get("repeated"):
            yield f"query {name}: given twice"
        seen.add(name)
        if fault := _query_fault(parameter, text):
            yield f"query {name}: {fault}"
    yield from (f"query: {name} is missing" for name in _required(method) - seen)


def _query_fault(parameter: Mapping[str, Any], text: str) -> str | None:
    match parameter["type"]:
        case "boolean":
            return None if text.lower() in ("true", "false") else f"{text!r} is no boolean"  # gcloud sends True
        case "integer":
            return _number_fault(parameter, text)
        case _ if parameter.get("format") in ("int64", "uint64"):
            return _text_number_fault(text, parameter["format"], is_answer=False)
        case _:
            return _text_fault(parameter, text)


def _number_fault(parameter: Mapping[str, Any], text: str) -> str | None:
    if not re.fullmatch(r"-?\d{1,10}", text):
        return f"{text!r} is no integer"
    low, high = _BOUNDS[parameter["format"]]
    low = max(low, int(parameter.get("minimum", low)))
    high = min(high, int(parameter.get("maximum", high)))
    return None if low <= int(text) <= high else f"{text} is not between {low} and {high}"


def _required(method: Method) -> set[str]:
    return {
        name
        for name, each in method.parameters.items()
        if each.get("required") and each.get("location", "query") == "query"
    }


described = cache(GoogleApi)
"""Reading what Google describes takes longer than most tests."""
