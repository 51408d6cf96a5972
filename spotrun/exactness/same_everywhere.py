"""Removes from texts what differs on each instance and at each time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

Clean = Callable[[str], str]
"""Returns a text that is the same for two trainings that differ in nothing else."""

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T _]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d+)?(?![\d:])"
)
"""A date with a time of day, or a time of day."""
TIMES = ("_runtime", "_per_second", "_preparation_time")
"""Suffixes of metrics in which transformers logs durations."""
_TOOK = re.compile(rf'("?\w*(?:{"|".join(TIMES)})[\'"]?: )[\'"]?[0-9.e+-]+')


def without_instances(folder: str) -> Clean:
    """Return a function that begins paths below the folders in `folder`, one for each instance, with `<instance>`."""
    roots = {folder, os.path.realpath(folder)} - {""}
    if not roots:
        return lambda text: text
    places = "|".join(re.escape(root.rstrip("/")) for root in sorted(roots, key=len, reverse=True))
    pattern = re.compile(rf"(?:{places})/[^/\s\"']+")
    return lambda text: pattern.sub("<instance>", text)


def without_times(text: str) -> str:
    """Replace times in a line of a log."""
    return _TOOK.sub(r"\1<time>", _TIME.sub("<time>", text))
