"""
Random combinations of what tests/support/jobs/kept.py can keep: what verify-resume says of one, and what the script has
written down by itself.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.repository import JOBS

IDENTICAL, NOT_IDENTICAL = 0, 9
WITHIN_S = 400
"""Two processes start four times, on a machine that may be busy."""
CARRIED = (
    "plain", "history", "meters", "recent", "words", "array", "tensor", "slots", "namespace", "class", "global",
    "default", "generator", "flag", "log", "json", "saved", "table", "result", "anchor", "first",
    "closure", "chained", "local", "partial", "sampler", "parameter", "hook", "extremes", "loader", "timed",
)  # fmt: skip
OTHERS = (
    "iterator", "yield", "packed", "text", "entropy", "clock",
    "outside", "copied", "bound",
)  # fmt: skip
"""What no checkpoint holds today, or nothing ever could. Which of them a resume loses is for the record to say."""
UNSEEN = frozenset({"outside"})
"""Verify-resume may see a difference there, and the record does not look."""

BY_THEMSELVES = {"entropy": "drawn"}
"""Kinds that are others in any two trainings, with the attribute that verify-resume has to name as not compared."""


def verify(
    kinds: Sequence[str], at: str = "13,24", *arguments: str, kills: int = 0
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What verify-resume says of a script that keeps `kinds`, and its own records of the two trainings."""
    when = ("--kills", str(kills)) if kills else ("--at", at)
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(JOBS / "kept.py"), "--json", "--keep", *when]
    script = ["--", "--kinds", ",".join(kinds), *arguments]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode in (IDENTICAL, NOT_IDENTICAL), done.stdout + done.stderr
    said = json.loads(done.stdout)
    kept = Path(said["folder"])
    return said, [json.loads((kept / f"{name}.trace-record").read_text()) for name in ("uninterrupted", "interrupted")]


def combinations(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    drawn = [rng.sample(CARRIED, rng.randint(0, 4)) + rng.sample(OTHERS, rng.randint(0, 2)) for _ in range(count)]
    return [sorted(kinds) for kinds in drawn]


def differing(records: list[dict[str, Any]]) -> list[str]:
    one, other = ({**record, **record["kinds"]} for record in records)
    return [name for name in one if name != "kinds" and one[name] != other[name]]


def not_named(said: dict[str, Any], records: list[dict[str, Any]]) -> list[str]:
    """What the records say is another, without what verify-resume has named as another before any interruption."""
    apart = {each["name"].rpartition(".")[2].removesuffix("[]") for each in said["not_compared"]}
    return [kind for kind in differing(records) if BY_THEMSELVES.get(kind) not in apart]
