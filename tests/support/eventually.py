"""Wait for other processes without guessing how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], within_s: float = 60.0) -> T:
    """Call `condition` until it returns a true value, for at most `within_s` of system time. Returns that value."""
    give_up_at = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"not within {within_s} s: {condition}"
        time.sleep(0.01)
    return value
