"""A decision as it is told, and many of them in few lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

PAIRS_MAX = 3
"""So many refusals in a row are each told; more are not, to people."""
REFUSED = "refused"
"""The kind of a launch given up as the cloud said no."""


@dataclass(frozen=True)
class Decision:
    """`number` is the entry that the decision became, or that brought it about; `kind` one word for programs."""

    number: int
    at: datetime
    kind: str
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


def briefly(made: list[Decision]) -> list[Decision]:
    """The same with one line for all but the first and the last of many asks in a row that were refused."""
    told: list[Decision] = []
    rest = made
    while rest:
        pairs = _refused_in_a_row(rest)
        if pairs > PAIRS_MAX:
            first, left_out = rest[:2], rest[2 : 2 * pairs - 2]
            entries = f"entries {left_out[0].number} to {left_out[-1].number}"
            words = f"asked {pairs - 2} times more, each time in vain ({entries})"
            told += [*first, Decision(left_out[0].number, left_out[0].at, REFUSED, words)]
            rest = rest[2 * pairs - 2 :]
        told += rest[:2] if pairs else rest[:1]
        rest = rest[2:] if pairs else rest[1:]
    return told


def _refused_in_a_row(made: list[Decision]) -> int:
    """How many asks at the beginning were each followed by their refusal."""
    pairs = 0
    while [each.kind for each in made[2 * pairs : 2 * pairs + 2]][1:] == [REFUSED]:
        pairs += 1
    return pairs
