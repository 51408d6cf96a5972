"""Arguments of benchmarks that are counts."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser for `type=`: a whole number that is not below `least`."""

    def count(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least:,}, not {value:,}")
        return value

    return count
