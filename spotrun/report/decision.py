"""A decision in words, and many decisions in few lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

PAIRS_MAX = 3
"""This many refusals in a row are each shown to people; more are shortened."""
REFUSED = "refused"
"""The kind of decision for a launch that the cloud refused."""


@dataclass(frozen=True)
class Decision:
    """`number` is the ledger entry of the decision, or of its cause. `kind` is a word for programs."""

    number: int
    at: datetime
    kind: str
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


def briefly(made: list[Decision]) -> list[Decision]:
    """The same decisions, but with one line for all refused requests in a row except the first and the last."""
    shortened: list[Decision] = []
    rest = made
    while rest:
        pairs = _refused_in_a_row(rest)
        if pairs > PAIRS_MAX:
            first, left_out = rest[:2], rest[2 : 2 * pairs - 2]
            entries = f"entries {left_out[0].number} to {left_out[-1].number}"
            words = f"asked {pairs - 2} more times, and was refused each time ({entries})"
            shortened += [*first, Decision(left_out[0].number, left_out[0].at, REFUSED, words)]
            rest = rest[2 * pairs - 2 :]
        shortened += rest[:2] if pairs else rest[:1]
        rest = rest[2:] if pairs else rest[1:]
    return shortened


def _refused_in_a_row(made: list[Decision]) -> int:
    """How many requests at the beginning were each followed by their refusal."""
    pairs = 0
    while [each.kind for each in made[2 * pairs : 2 * pairs + 2]][1:] == [REFUSED]:
        pairs += 1
    return pairs
