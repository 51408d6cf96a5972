"""What must hold of a run whatever was done to it. Nothing here trusts figures of spotrun: it counts anew from traces
and the cloud's log."""

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

    `redone` counts steps that were trained again. The final history is each step's last line. `differ` counts the steps
    in it with other samples, another loss or learning rate than in the undisturbed training. `twice` and `never` count
    the samples that one of its epochs saw too often, or not at all.
    """

    redone: int
    differ: int
    twice: int
    never: int


def harm(lines: list[str], wanted: dict[int, set[str]], samples: int, ranks: int = 1) -> Harm:
    """The harm in a trace, in which each rank has a line for each step. If a step has more, the last ones stay."""
    by_step: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        by_step[int(line.split()[0])].append(line)
    stayed = {step: found[-ranks:] for step, found in by_step.items()}
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for line in (line for found in stayed.values() for line in found):
        seen[line.split()[1]].update(_samples_of(line))
    return Harm(
        redone=sum(-(-len(found) // ranks) - 1 for found in by_step.values()),
        differ=sum(wanted.get(step) != {*found} for step, found in stayed.items()),
        twice=sum(count - 1 for counts in seen.values() for count in counts.values()),
        never=sum(samples - len(counts) for counts in seen.values()),
    )


def _samples_of(line: str) -> list[int]:
    found: list[int] = json.loads(line[line.index("[") : line.index("]") + 1])
    return found


def samples_are_whole(trace: dict[int, set[str]], epochs: int, samples: int, ranks: int = 1) -> bool:
    """Whether each step was always trained on the same samples, and each epoch saw each sample once."""
    seen: dict[str, list[int]] = defaultdict(list)
    for lines in trace.values():
        if len(lines) != ranks:
            return False
        for line in lines:
            seen[line.split()[1]] += _samples_of(line)
    return len(seen) == epochs and all(sorted(found) == list(range(samples)) for found in seen.values())


def one_attempt_at_a_time(state: RunState) -> bool:
    pairs = pairwise(state.attempts.values())
    return all(one.end is not None and one.end.known_at <= next_one.started_at for one, next_one in pairs)


def instance_dollars(sandbox: Sandbox, name: str) -> tuple[Fraction, Fraction]:
    """The dollars for instances: those of the report, and those counted here from the cloud's log."""
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
    """Billed by the second, for 60 s at least; free if the cloud took the instance in its first minute."""
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
