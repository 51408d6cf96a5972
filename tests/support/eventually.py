"""Waiting for other processes, without guessing how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], within_s: float = 60.0) -> T:
    """The first true value of `condition`; asked again and again, for so many seconds of system time at most."""
    give_up_at = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"not within {within_s} s: {condition}"
        time.sleep(0.01)
    return value
