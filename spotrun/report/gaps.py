"""
Formats a run's gaps as text and as JSON. A gap is a change to the training's state that no checkpoint of the run
contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from spotrun.account.gaps import Gap
from spotrun.report.tables import plain
from spotrun.units import count_of

SHOWN = 3
"""Maximum number of gaps that are shown for each run in a list of runs."""

Told: TypeAlias = Mapping[str, Any]
"""A gap as `--json` prints it."""


def for_programs(gaps: Iterable[Gap]) -> list[dict[str, Any]]:
    return [
        {"place": plain(gap.place), "what": plain(gap.what), "step": gap.step, "resumes": gap.resumes} for gap in gaps
    ]


def in_words(gap: Told) -> str:
    since = f"; {count_of(gap['resumes'], 'resume')} since then continued without it" if gap["resumes"] else ""
    if not gap["step"]:  # a command has no steps
        return f"{gap['place']}: {gap['what']}{since}"
    return f"{gap['place']} ({gap['what']}) has changed by step {gap['step']:,} and is in no checkpoint{since}"


def briefly(gaps: Sequence[Told]) -> list[str]:
    """Return a line for each of the first `SHOWN` gaps, and one line with the number of others."""
    more = len(gaps) - SHOWN
    return [*map(in_words, gaps[:SHOWN]), *([f"{more} more in `spotrun why`"] if more > 0 else [])]
