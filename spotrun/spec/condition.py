"""
Parses a condition about the figures in a run's report: `usd_per_epoch > 0.42 or interruptions >= 5`.
`report.fail_if` in a job is such a condition. If it is true for the finished run, `launch` and `resume` fail.

    condition  = all { "or" all }
    all        = comparison { "and" comparison }
    comparison = FIGURE ( ">" | ">=" | "<" | "<=" | "==" | "!=" ) NUMBER [ "%" ]

Dollars and times are the totals of the run; times are in seconds. The text is parsed, never executed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import NoReturn

from spotrun.units import Unreadable

FIGURE_NAMES = (
    *("cost_usd", "spot_usd", "on_demand_usd", "own_usd", "storage_usd", "requests_usd", "egress_usd"),
    *("counterfactual_usd", "usd_per_epoch", "savings"),
    *("epochs", "interruptions", "steps_redone", "wall_s", "productive_s", "downtime_s", "paid_s"),
    *("goodput", "usd_per_productive_hour"),
)
"""The figures that a condition is allowed to name; `spotrun.report.limits` calculates them."""

Figures = Mapping[str, Decimal | None]
Operator = Callable[[Decimal, Decimal], bool]

_OPERATORS: dict[str, Operator] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_WORD = re.compile(r"\s*([A-Za-z_]+|[<>=!]+|-?\d+(?:\.\d+)?|%|\S)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
EXAMPLE = "usd_per_epoch > 0.42 or savings < 40%"
LENGTH_MAX = 1000
_ADVICE = f"write it like {EXAMPLE}"


@dataclass(frozen=True)
class Comparison:
    """A comparison of one figure with one number. A percentage is stored as a fraction: 40% as 0.4."""

    figure: str
    operator: str
    number: Decimal
    in_percent: bool = False

    def holds(self, found: Figures) -> bool:
        """
        Return True if the comparison holds, or if the run's report does not have the figure. A condition describes a
        failure, and a missing figure counts as a failure.
        """
        value = found[self.figure]
        return value is None or _OPERATORS[self.operator](value, self.number)

    def message(self, found: Figures) -> str:
        value = found[self.figure]
        now = "not known" if value is None else self._text(value)
        return f"{self.figure} is {now}, and {self.operator} {self._text(self.number)} is a failure"

    def _text(self, value: Decimal) -> str:
        return f"{value * 100:.6g}%" if self.in_percent else f"{value:.6g}"


@dataclass(frozen=True)
class Condition:
    """
    A condition with one or more alternatives, which `or` separates. An alternative holds if all of its comparisons
    hold, and the condition holds if at least one alternative does.
    """

    alternatives: tuple[tuple[Comparison, ...], ...]

    def met_by(self, found: Figures) -> tuple[Comparison, ...]:
        """Return the comparisons of the first alternative that holds. Return () if the condition does not hold."""
        return next((one for one in self.alternatives if all(each.holds(found) for each in one)), ())


def parse(text: str) -> Condition:
    """
    Parse the text of a condition.

    Raises:
        Unreadable: the text is not a condition; the message says where in the text the error is.
    """
    return _Reader(text).condition()


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise Unreadable(f"has more than {LENGTH_MAX} characters", _ADVICE)
        self._words = [(match[1], match.start(1) + 1) for match in _WORD.finditer(text)]
        self._words.append(("", len(text) + 1))

    def condition(self) -> Condition:
        alternatives = [self._all()]
        while self._taken("or"):
            alternatives.append(self._all())
        if self._words[0][0]:
            self._refuse("'and', 'or' or the end")
        return Condition(tuple(alternatives))

    def _all(self) -> tuple[Comparison, ...]:
        comparisons = [self._comparison()]
        while self._taken("and"):
            comparisons.append(self._comparison())
        return tuple(comparisons)

    def _comparison(self) -> Comparison:
        figure = self._one_of(FIGURE_NAMES, "a figure of the report")
        sign = self._one_of(tuple(_OPERATORS), "one of " + " ".join(_OPERATORS))
        word, _ = self._words[0]
        if not _NUMBER.fullmatch(word):
            self._refuse("a number")
        self._words.pop(0)
        in_percent = self._taken("%")
        return Comparison(figure, sign, Decimal(word) / (100 if in_percent else 1), in_percent)

    def _one_of(self, allowed: tuple[str, ...], what: str) -> str:
        word, _ = self._words[0]
        if word not in allowed:
            self._refuse(what, *get_close_matches(word, allowed, 1))
        self._words.pop(0)
        return word

    def _taken(self, word: str) -> bool:
        if self._words[0][0] != word:
            return False
        self._words.pop(0)
        return True

    def _refuse(self, wanted: str, nearest: str = "") -> NoReturn:
        word, column = self._words[0]
        found = f"{word!r} at character {column}" if word else "its end"
        advice = f"did you mean {nearest}?" if nearest else f"{_ADVICE}; figures: {', '.join(FIGURE_NAMES)}"
        raise Unreadable(f"expected {wanted}, found {found}", advice)
