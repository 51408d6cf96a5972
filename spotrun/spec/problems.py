"""
What is wrong with a spec: each problem with its key, and with what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from spotrun.spec.values import kind_of
from spotrun.units import Unreadable, shown

UNBUILT = frozenset(
    {
        *("file_mounts", "schedule", "labels", "job_recovery"),
        *("resources.labels", "resources.image_id", "resources.disk_size"),
        *("resources.any_of", "resources.ordered", "resources.job_recovery"),
    }
)
"""Keys that are planned and not built yet. They are refused, never ignored (docs/design/architecture.md)."""
SHORTHANDS = {"run": "train.run", "resources.use_spot": "resources.spot_policy"}
"""Keys that a file may use, and the key of the model that they become (see `spotrun.spec.file`)."""
ELSEWHERE = {
    "gpu": "resources.accelerators",
    "gpus": "resources.accelerators",
    "spot": "resources.use_spot",
    "command": "run",
    "commands": "run",
    "timeout": "max_duration",
}
"""The words of other tools, and our keys."""

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a spec: where (`key`), what, and what to write instead."""

    key: Key
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        return sentence(dotted(self.key), self.message, self.suggestion)


def sentence(*parts: str | None) -> str:
    """`where: key: message; suggestion`, without the parts that are empty. The suggestion is the last part."""
    *before, suggestion = parts
    told = ": ".join(part for part in before if part)
    return f"{told}; {suggestion}" if suggestion else told


def dotted(key: Key) -> str:
    """`local.script[0].when`, safe to show."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in key)
    return written.removeprefix(".")


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Every failure that pydantic found in a `model`, as a problem in plain words."""
    return [_problem(dict(detail), model) for detail in error.errors(include_url=False)]


def _problem(detail: dict[str, Any], model: type[BaseModel]) -> Problem:
    key: Key = detail["loc"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, Unreadable):
        return Problem(key + cause.at, cause.message, cause.suggestion)
    if detail["type"] == "extra_forbidden":
        return unknown_key(key, model)
    return Problem(key, *_in_our_words(detail["type"], detail["input"], detail.get("ctx", {}), detail["msg"]))


def _in_our_words(kind: str, value: object, limits: Mapping[str, Any], otherwise: str) -> tuple[str, str | None]:
    match kind:
        case "missing":
            return "is missing", "add it"
        case "model_type" | "dict_type":
            return f"must be a mapping, not {kind_of(value)}", "write key: value lines below it"
        case "tuple_type" | "list_type":
            return f"must be a list, not {kind_of(value)}", "write it as [ … ] or as lines that start with a dash"
        case "too_long":
            return f"has {limits['actual_length']} items, and at most {limits['max_length']} are allowed", "remove some"
        case "int_type":
            return f"must be a whole number, not {kind_of(value)}", _number_in(value)
        case "bool_type":
            return f"must be true or false, not {shown(value)!r}", "write true or false, without quotes"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}, not {shown(value)}", f"write {limits['ge']} or more"
        case "less_than_equal":
            return f"must be at most {limits['le']}, not {shown(value)}", f"write {limits['le']} or less"
        case _:
            return otherwise, None


def _number_in(value: object) -> str:
    number = re.match(r"\d{1,9}", str(value), re.ASCII)
    return f"write {number[0]}" if number else "write it like 3"


def unknown_key(key: Key, model: type[BaseModel]) -> Problem:
    """A problem for a key that is not built yet, belongs elsewhere, is misspelt, or is unknown."""
    section = ".".join(str(part) for part in key[:-1] if isinstance(part, str))
    name = str(key[-1])[:60]
    full = f"{section}.{name}" if section else name
    if full in UNBUILT:
        return Problem(key, "is known, but not built yet", "remove it for now")
    return Problem(key, "unknown key", _meant(section, name, [*keys_of(model), *SHORTHANDS]))


def _meant(section: str, name: str, known: list[str]) -> str:
    """The key that the user probably meant: from another tool, similar here, or the same in another section."""
    if name in ELSEWHERE:
        return f"did you mean {ELSEWHERE[name]}?"
    siblings = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == section]
    near = difflib.get_close_matches(name.lower().replace("-", "_"), siblings, 1, cutoff=0.6)
    longer = [sibling for sibling in siblings if sibling.startswith(f"{name}_")]
    elsewhere = [path for path in known if path.rpartition(".")[2] == name]
    guesses = near or longer or elsewhere
    return f"did you mean {guesses[0]}?" if guesses else f"known here: {', '.join(siblings)}"


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """`resources.max_price` and so on, without the indices of lists."""
    for name, field in model.model_fields.items():
        yield above + name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys_of(inner, f"{above}{name}.")
