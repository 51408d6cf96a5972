"""
Battery: verify-resume never calls two trainings identical whose own records differ.

    make battery NAME=kinds                              40 random combinations of what scripts keep
    python -m tests.batteries.kinds --combinations 8 --seed 7

Each script writes down by itself what it has in the end (tests/support/jobs/kept.py), and is interrupted twice. A row
is wrong if verify-resume says identical and the record says other, or the other way round.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from tests.support.kept_kinds import UNSEEN, combinations, differing, not_named, verify

STEPS = 30


@dataclass(frozen=True)
class Verdict:
    """
    Of one combination: what the record says is another, and of that what is not named as another in any two trainings;
    what verify-resume says, and the first place it names.
    """

    kinds: tuple[str, ...]
    at: str
    differing: tuple[str, ...]
    lost: tuple[str, ...]
    identical: bool
    named: str

    @property
    def missed(self) -> bool:
        return bool(self.lost) and self.identical

    @property
    def false_alarm(self) -> bool:
        return not self.differing and not self.identical and not UNSEEN & set(self.kinds)

    def __str__(self) -> str:
        said = "identical" if self.identical else f"differs, {self.named}"
        record = ", ".join(self.differing) or "nothing"
        wrong = "  MISSED" if self.missed else "  FALSE ALARM" if self.false_alarm else ""
        return f"{','.join(self.kinds) or '-':50}  at {self.at:5}  record: {record}; said: {said}{wrong}"


def judge(kinds: list[str], at: str) -> Verdict:
    said, records = verify(kinds, at)
    first = said["first_difference"]
    named = "" if first is None else f"{first['kind']} {first['name']}"
    found, lost = tuple(differing(records)), tuple(not_named(said, records))
    return Verdict(tuple(kinds), at, found, lost, said["identical"], named)


def main(
    count: Annotated[int, typer.Option("--combinations", help="How many.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the kinds, and of the steps at which a training is interrupted.")] = 1,
) -> None:
    began, verdicts = time.monotonic(), list[Verdict]()
    rng = random.Random(seed)
    try:
        for kinds in combinations(count, seed):
            one, other = sorted(rng.sample(range(2, STEPS), 2))
            with tempfile.TemporaryDirectory(prefix="spotrun-kinds-") as folder:
                os.environ["TMPDIR"] = folder
                verdicts.append(judge(kinds, f"{one},{other}"))
            print(f"{len(verdicts):3}/{count}  {verdicts[-1]}", flush=True)
    finally:  # after a Ctrl-C too
        print(summary(verdicts, time.monotonic() - began))
    sys.exit(any(verdict.missed or verdict.false_alarm for verdict in verdicts))


def summary(verdicts: list[Verdict], seconds: float) -> str:
    lost = sum(bool(verdict.lost) for verdict in verdicts)
    missed, alarms = sum(verdict.missed for verdict in verdicts), sum(verdict.false_alarm for verdict in verdicts)
    return (
        f"{len(verdicts)} combinations; in {lost} the script's own record differs; identical was said of {missed} of"
        f" these; {alarms} false alarms; {seconds:.0f} s"
    )


if __name__ == "__main__":
    # Whoever starts this in the background of a script has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    typer.run(main)
