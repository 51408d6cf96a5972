"""Removes the parts of a text that differ between any two trainings: names of instances, times and durations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

Clean = Callable[[str], str]
"""
A function that removes from a text what differs between any two trainings. If two trainings differ in nothing else, the
texts are then the same.
"""

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T _]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d+)?(?![\d:])"
)
"""A date with a time of day, or a time of day."""
TIMES = ("_runtime", "_per_second", "_preparation_time")
"""Suffixes of the metrics in which transformers logs durations."""
_DURATION = re.compile(
    r"(?:^|[^a-z0-9])(?:(?:wall_?|run)?time|timestamp|elapsed|duration|took|secs?|seconds|throughput|fps)"
    r"(?:_?(?:s|ms|secs?|seconds|min|minutes))?$"
    r"|_per_s(?:ec(?:ond)?)?$|(?:^|[^a-z0-9])(?:s|ms|secs?|seconds)_per_[a-z]+$"
)
"""Matches the name of a field that holds a duration or a rate, by the end of the name."""
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WITH_UNIT = re.compile(
    r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)? ?"
    r"(?:s|ms|us|µs|secs?|seconds?|mins?|minutes?|it/s|s/it|(?:samples|tokens|steps|batches|images)/s(?:ec)?)(?![\w/])"
)
"""A number with a unit of time: `0.53s`, `12 it/s`."""
_TOOK = re.compile(rf'("?\w*(?:{"|".join(TIMES)})[\'"]?: )[\'"]?[0-9.e+-]+')


def without_instances(folder: str) -> Clean:
    """
    Return a function that replaces the paths of instances' folders in a text with `<instance>`. An instance's folder
    lies directly below `folder`.
    """
    roots = {folder, os.path.realpath(folder)} - {""}
    if not roots:
        return lambda text: text
    places = "|".join(re.escape(root.rstrip("/")) for root in sorted(roots, key=len, reverse=True))
    pattern = re.compile(rf"(?:{places})/[^/\s\"']+")
    return lambda text: pattern.sub("<instance>", text)


def without_times(text: str) -> str:
    """Replace the times of day and the durations in a log line by `<time>`."""
    return _WITH_UNIT.sub("<time>", _TOOK.sub(r"\1<time>", _TIME.sub("<time>", text)))


def is_duration(name: str) -> bool:
    """Return whether a field of this name holds a duration or a rate, such as `epoch_time`, `elapsed_s` or `fps`."""
    return _DURATION.search(_CAPITAL.sub("_", name).lower()) is not None
