"""
Battery: 200 nights of a job with no machine of its user, and what may go wrong with the function that takes care of
them.

    make battery NAME=nights            # or: python -m tests.batteries.nights [NIGHTS [SEED [aws|gcp]]]

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

from tests.batteries.night_faults import live
from tests.support.gcp_night_world import GcpNightWorld
from tests.support.night_world import NightWorld, utc

NIGHTS = 200
START = "2026-10-01T12:00:00"
"""Both changes of the clock in Berlin come within 200 nights."""


CLOUDS = {"aws": NightWorld, "gcp": GcpNightWorld}


def main(nights: int = NIGHTS, seed: int = 1, cloud: str = "aws") -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        start, of = utc(START), CLOUDS[cloud]
        results = live(patch, Path(folder) / "work", nights, seed, start, at="02:30", of=of)
    print(f"{results.nights} nights on {cloud} of seed {seed}, {results.runs} runs,", end=" ")
    print(f"{results.carried} carried on, {results.completed} complete;", end=" ")
    print(f"the function was called {results.calls:,} times")
    for name, number in sorted(results.faults.items()):
        print(f"  {name:32} {number:4}")
    sys.exit("\n".join(results.trouble) or 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
