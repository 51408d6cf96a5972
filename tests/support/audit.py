"""What has to hold of a run after whatever was done to it, each reckoned anew from what did not come from spotrun."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from spotrun.run.state import RunState
from tests.support.sandbox import Sandbox


class Harm(NamedTuple):
    """
    What interruptions did to a training, by its own trace.

    `redone`: steps trained once more. `differ`: steps of the history that stayed with other samples, another loss or
    learning rate than undisturbed. `twice` and `never`: samples that an epoch of that history saw too often, or not.
    """

    redone: int
    differ: int
    twice: int
    never: int


def harm(lines: list[str], wanted: dict[int, set[str]], samples: int) -> Harm:
    """Of a trace, a line a step; where a step has several, the last one stayed."""
    stayed = {int(line.split()[0]): line for line in lines}
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for line in stayed.values():
        seen[line.split()[1]].update(_samples_of(line))
    return Harm(
        redone=len(lines) - len(stayed),
        differ=sum(wanted.get(step) != {line} for step, line in stayed.items()),
        twice=sum(count - 1 for counts in seen.values() for count in counts.values()),
        never=sum(samples - len(counts) for counts in seen.values()),
    )


def _samples_of(line: str) -> list[int]:
    found: list[int] = json.loads(line[line.index("[") : line.index("]") + 1])
    return found


def samples_are_whole(trace: dict[int, set[str]], epochs: int, samples: int) -> bool:
    """Whether every step was always trained on the same samples, and each of them once in each epoch."""
    seen: dict[str, list[int]] = defaultdict(list)
    for lines in trace.values():
        if len(lines) != 1:
            return False
        (line,) = lines
        seen[line.split()[1]] += _samples_of(line)
    return len(seen) == epochs and all(sorted(found) == list(range(samples)) for found in seen.values())


def one_attempt_at_a_time(state: RunState) -> bool:
    pairs = pairwise(state.attempts.values())
    return all(one.end is not None and one.end.known_at <= next_one.started_at for one, next_one in pairs)


def books(sandbox: Sandbox, name: str) -> tuple[Fraction, Fraction]:
    """The dollars for instances by the report, and by our own arithmetic over the cloud's own log."""
    total = sandbox.call_json("report", name)["total"]
    ours = Decimal(total["spot_usd"]) + Decimal(total["on_demand_usd"])
    return Fraction(ours), sum(_bill(lines) for lines in _cloud_log(sandbox, sandbox.run(name).created.uid).values())


def _cloud_log(sandbox: Sandbox, run_uid: str) -> dict[str, list[dict[str, str]]]:
    lines = {line: json.loads(line) for line in (sandbox.folder / "cloud" / "log.jsonl").read_text().splitlines()}
    instances: dict[str, list[dict[str, str]]] = defaultdict(list)
    ours = {fact["instance_id"] for fact in lines.values() if fact.get("run_uid") == run_uid and "instance_id" in fact}
    for fact in lines.values():
        if fact.get("instance_id") in ours:
            instances[fact["instance_id"]].append(fact)
    return instances


def _bill(facts: list[dict[str, str]]) -> Fraction:
    """Per second, 60 s at least, free when the cloud took it in the first minute."""
    by_kind = {fact["event"]: fact for fact in facts}
    if "metered" not in by_kind:
        return Fraction(0)
    start, end = (datetime.fromisoformat(by_kind[kind]["at"]) for kind in ("metered", "ended"))
    seconds = Fraction((end - start).total_seconds())
    if by_kind["ended"]["by"] == "cloud" and seconds < 60:
        return Fraction(0)
    prices = {fact["usd_per_hour"] for fact in facts if fact["event"] == "price"}
    assert len(prices) == 1, "the calm market has one price"
    return Fraction(prices.pop()) * max(seconds, Fraction(60)) / 3600
