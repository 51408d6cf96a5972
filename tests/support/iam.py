"""
What IAM would decide: policies, and one request to be allowed.

The part of IAM's language that the policies of infra/aws are written in, with `${aws:PrincipalTag/KEY}` as the only
variable; anything else raises NotImplementedError. The tags of who asks are in the context of what is asked.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]
Context = Mapping[str, str | tuple[str, ...]]
_VARIABLE = re.compile(r"\$\{(aws:PrincipalTag/[^},]+)\}")
_STATEMENT_KEYS = {"Sid", "Effect", "Action", "Resource", "Principal", "Condition"}


@dataclass(frozen=True)
class Asked:
    """One thing that a caller wants to do to one resource. Condition keys that are absent from `context` are absent."""

    action: str
    resource: str = "*"
    context: Context = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """`by` are the Sids that decided: those that deny where any does, else those that allow."""

    allowed: bool
    by: tuple[str, ...]


def decide(policies: Iterable[Document], asked: Asked) -> Decision:
    """One statement that denies wins; without one that allows, nothing is allowed."""
    matching = [each for policy in policies for each in policy["Statement"] if _matches(each, asked)]
    denying = tuple(each.get("Sid", "") for each in matching if each["Effect"] == "Deny")
    allowing = tuple(each.get("Sid", "") for each in matching if each["Effect"] == "Allow")
    return Decision(allowed=bool(allowing) and not denying, by=denying or allowing)


def _matches(statement: Mapping[str, Any], asked: Asked) -> bool:
    unknown = set(statement) - _STATEMENT_KEYS
    if unknown or statement["Effect"] not in ("Allow", "Deny") or statement.get("Principal", "*") != "*":
        raise NotImplementedError(f"{unknown or statement}")
    return (
        any(_like(pattern.lower(), asked.action.lower()) for pattern in listed(statement["Action"]))
        and any(_resource_like(pattern, asked) for pattern in listed(statement["Resource"]))
        and conditions_hold(statement.get("Condition", {}), asked.context)
    )


def _resource_like(pattern: str, asked: Asked) -> bool:
    """
    A variable without a value matches nothing:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html#policy-vars-no-value
    """
    values = {key.lower(): text for key, text in asked.context.items() if isinstance(text, str)}
    named = [name.lower() for name in _VARIABLE.findall(pattern)]
    if any(name not in values for name in named):
        return False
    assert not {"*", "?"} & set("".join(values[name] for name in named)), "no tag of IAM's has them in it"
    return _like(_VARIABLE.sub(lambda found: values[found[1].lower()], pattern), asked.resource)


def conditions_hold(conditions: Mapping[str, Any], context: Context) -> bool:
    """All operators and all their keys must hold; of the values of one key, one."""
    present = {key.lower(): values for key, values in context.items()}
    return all(
        _holds(operator, present.get(key.lower()), listed(wanted))
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    )


def _holds(operator: str, values: str | tuple[str, ...] | None, wanted: list[str]) -> bool:
    if operator == "Null":
        return (values is None) == (wanted == ["true"])
    if operator in _NEGATED:  # a key that is absent is unlike everything, says IAM's reference
        return values is None or not _holds(operator.replace("Not", ""), values, wanted)
    quantifier, _, plain = operator.rpartition(":")
    if plain not in _OPERATORS or quantifier not in ("", "ForAllValues"):
        raise NotImplementedError(operator)
    compare = _OPERATORS[plain]
    if quantifier == "ForAllValues":
        return all(any(compare(each, value) for each in wanted) for value in listed(values or ()))
    if isinstance(values, tuple):
        raise NotImplementedError(f"{operator} of several values")
    return values is not None and any(compare(each, values) for each in wanted)


def _like(pattern: str, text: str) -> bool:
    """`*` is any text, `?` one character."""
    if "${" in pattern:
        raise NotImplementedError(f"the variable in {pattern}")
    parts = [{"*": ".*", "?": "."}.get(each, re.escape(each)) for each in re.split(r"([*?])", pattern)]
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _arn_like(pattern: str, text: str) -> bool:
    """Each of the six parts of an ARN on its own: a `*` does not reach across a colon."""
    patterns, parts = pattern.split(":", 5), text.split(":", 5)
    return len(patterns) == len(parts) and all(map(_like, patterns, parts))


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda wanted, value: wanted == value,
    "StringLike": _like,
    "ArnEquals": _arn_like,  # the same as ArnLike, says IAM's reference
    "ArnLike": _arn_like,
    "Bool": lambda wanted, value: wanted.lower() == value.lower(),
    "NumericEquals": lambda wanted, value: float(wanted) == float(value),
}

_NEGATED = {"ArnNotLike", "StringNotLike"}


def listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
