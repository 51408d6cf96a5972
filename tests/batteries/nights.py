"""
Battery: 200 nights of a job with no machine of its user, and what may go wrong with the function that attends to them.

    make nights            # or: python -m tests.batteries.nights [NIGHTS [SEED]]

The function is killed, hangs until its time is over, is throttled, called twice at once and deployed anew; rights are
lost for an hour; instances are taken with a notice and without; the clock is put back and forward; a run still goes on
when the next night is due. Each night has to begin one run or to carry the last one on, in time, on no more instances
than it needs, with nothing left behind and a bill that is the account's own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.night_faults import live
from tests.support.night_world import utc

NIGHTS = 200
START = "2026-10-01T12:00:00"
"""Both changes of the clock in Berlin come within 200 nights."""


def main(nights: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        results = live(patch, Path(folder) / "work", nights, seed, utc(START), at="02:30")
    print(f"{results.nights} nights of seed {seed}, {results.runs} runs, {results.carried} carried on,", end=" ")
    print(f"{results.completed} complete; the function was called {results.calls:,} times")
    for name, number in sorted(results.faults.items()):
        print(f"  {name:32} {number:4}")
    sys.exit("\n".join(results.trouble))


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], *(str(NIGHTS), "1")[len(sys.argv) - 1 :])))
