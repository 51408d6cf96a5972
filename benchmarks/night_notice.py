"""
Measures the time from an interruption warning of EC2 to the request for a replacement, for a night without a machine of
its user.

    make night-notices    or    python -m benchmarks.night_notice [--notices 40] [--share 0.145] [--played] [--json OUT]

The function runs as `make function` has built it, under AWS's own runtime client, against moto. The instances execute
their user-data in namespaces of their own and train; each in turn is warned, by its metadata service and by the events
that EventBridge delivers, without a delay of its own. The request is the RunInstances that moto's server logs.
`--share` gives the function that share of a processor, as Lambda does: 256 MB of 1,769 MB are 0.145. It takes root.

An instance installs spotrun and PyTorch's imports take seconds, so a busy machine shows little else. With `--played` no
instance runs: its metadata service is the same, and its own watcher and the ledger play the agent's part at a notice.

The parts of the time:

    heard      until the notice is in the ledger: the function writes it, or the agent, which asks every 2 s
    answered   until the function has read the cloud, has decided, has written its intent, and sends the request
    moto       the part of either in which moto was serving one of their calls; the rest is ours
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from benchmarks.night_rehearsal import NIGHT, Called, NightRehearsal, Served, night_rehearsal
from spotrun.clouds.aws.cloud import Aws
from spotrun.folder.run_calls import read_calls
from spotrun.report.runner_calls import in_words
from spotrun.run.events import Entry, NoticeSeen
from spotrun.runs.open_run import OpenRun
from tests.support.ec2_server import INTERRUPTED
from tests.support.eventually import eventually
from tests.support.night_account import STORE

ARCHIVE = Path("build/function.zip")
APART_S = 4.0
"""Seconds between notices, so that they come at random moments of the agent's and the function's own rhythm."""
WITHIN_S = 900.0


class Answered(NamedTuple):
    """
    One notice: seconds from it to the request, their parts, and the function's calls of AWS once it had the notice.
    `cold`: a new environment was started.
    """

    total_s: float
    heard_s: float
    answered_s: float
    moto_s: float
    by_agent: bool
    requests: tuple[str, ...]
    cold: bool

    @property
    def ours_s(self) -> float:
        return self.total_s - self.moto_s


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon a night's function answers an interruption warning.")
    parser.add_argument("--notices", type=int, default=40)
    parser.add_argument("--share", type=float, default=None)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--played", action="store_true")
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "Tried to parse AWS")
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        night_rehearsal(
            asked.archive.read_bytes(), Path(folder), patch, asked.share, asked.nice, played=asked.played
        ) as rehearsal,
    ):
        found = rehearse(rehearsal, asked.notices, played=asked.played)
        calls = rehearsal.account.environments.called
    show(found)
    _show_requests(found)
    _show_calls("calls by the minute", [each for each in calls if each.kind == "tick" and not each.cold])
    _show_calls("calls of a new environment", [each for each in calls if each.cold])
    if asked.json is not None:
        asked.json.write_text(json.dumps([each._asdict() for each in found], indent=1))


def rehearse(rehearsal: NightRehearsal, notices: int, *, played: bool) -> list[Answered]:
    account, dice, found = rehearsal.account, random.Random(1), []
    rehearsal.install()
    begun = account.run({"kind": "begin", "due": "2026-11-27T22:00:00Z"})
    account.fire_each_minute()
    with account.as_administrator():
        run = OpenRun(f"{STORE}/{begun['run']}", "benchmark")
    last = ""
    for number in range(notices):
        agent = eventually(lambda: account.agent_of(run), within_s=WITHIN_S) if played else None
        last = eventually(partial(_trains, run, last), within_s=WITHIN_S)
        eventually(partial(_is_heard, rehearsal, last), within_s=WITHIN_S)
        time.sleep(dice.uniform(0, APART_S))
        found.append(_answer(rehearsal, run, last))
        print(f"{number + 1:3}: {_in_words(found[-1])}", flush=True)
        if agent is not None:
            agent.goes()
            account.end(agent.instance_id, INTERRUPTED)
    with account.as_administrator():
        counted = read_calls(run.store)
    if counted is not None:
        print(in_words(Aws().runner_calls(counted)))
    return found


def _is_heard(rehearsal: NightRehearsal, instance_id: str) -> bool:
    return instance_id in rehearsal.account.rule(NIGHT)["EventPattern"]


def _trains(run: OpenRun, before: str) -> str:
    """Return the instance that trains, if it is another one than `before`."""
    current = run.ledger.refresh().current
    if current is None or current.notice or not current.trainers or current.instance_id == before:
        return ""
    return current.instance_id


def _answer(rehearsal: NightRehearsal, run: OpenRun, instance_id: str) -> Answered:
    account = rehearsal.account
    began_s, began_at = time.monotonic(), run.clock.now()
    account.interrupt(instance_id)

    def request() -> Served | None:
        return next(
            (each for each in [*account.served] if each.action == "RunInstances" and each.began_s > began_s), None
        )

    asked = eventually(request, within_s=WITHIN_S)
    assert asked is not None
    entry = _notice(run, instance_id)
    total_s, heard_s = asked.began_s - began_s, (entry.at - began_at).total_seconds()
    is_agents, until_s, served = entry.writer == "agent", began_s + heard_s, [*account.served]
    functions = [each for each in served if each.who == "spotrun-night"]
    first = [each for each in served if each.who != "spotrun-night"] if is_agents else functions
    moto_s = _busy_s(first, began_s, until_s) + _busy_s(functions, until_s, asked.began_s)
    cold = any(each.cold and each.ended_s > began_s for each in account.environments.called)
    requests = [each.action for each in functions if until_s <= each.began_s < asked.began_s]
    return Answered(total_s, heard_s, total_s - heard_s, moto_s, is_agents, tuple(requests), cold)


def _notice(run: OpenRun, instance_id: str) -> Entry:
    state = run.ledger.refresh()
    number = next(each.number for each in reversed(state.attempts.values()) if each.instance_id == instance_id)
    told = (each for each in run.ledger.entries if isinstance(each.event, NoticeSeen) and each.event.attempt == number)
    return next(each for each in told if isinstance(each.event, NoticeSeen) and each.event.kind == "termination")


def _busy_s(served: Iterable[Served], since_s: float, until_s: float) -> float:
    """Return the seconds in which at least one of these calls was being served."""
    busy_s, done_s = 0.0, since_s
    for each in sorted(served, key=lambda each: each.began_s):
        start_s, end_s = max(each.began_s, done_s), min(each.ended_s, until_s)
        if end_s > start_s:
            busy_s, done_s = busy_s + end_s - start_s, end_s
    return busy_s


def _in_words(one: Answered) -> str:
    cold = ", an environment was started" if one.cold else ""
    return f"{one.total_s:.2f} s (heard {one.heard_s:.2f}, answered {one.answered_s:.2f}; moto {one.moto_s:.2f}){cold}"


def show(found: Sequence[Answered]) -> None:
    by_agent, cold = sum(each.by_agent for each in found), sum(each.cold for each in found)
    print(f"{len(found)} notices; the agent told {by_agent} of them first; an environment was started for {cold}")
    columns: dict[str, Callable[[Answered], float]] = {
        "to the request": lambda each: each.total_s,
        "  heard": lambda each: each.heard_s,
        "  answered": lambda each: each.answered_s,
        "of it moto's": lambda each: each.moto_s,
        "of it ours": lambda each: each.ours_s,
    }
    print(f"{'seconds':16} {'p50':>6} {'p95':>6} {'max':>6}")
    for name, figure in columns.items():
        _show_row(name, [figure(each) for each in found])


def _show_requests(found: Sequence[Answered]) -> None:
    usual = Counter(each.requests for each in found).most_common(1)[0][0]
    print(f"asked until then, mostly: {', '.join(each.rpartition('/runs/')[2] or each for each in usual)}")


def _show_row(name: str, figures: Sequence[float]) -> None:
    print(f"{name:16} {median(figures):6.2f} {quantile(figures, 0.95):6.2f} {max(figures):6.2f}")


def _show_calls(name: str, calls: Sequence[Called]) -> None:
    seconds = [each.ended_s - each.began_s for each in calls]
    if seconds:
        print(f"{len(seconds)} {name}: {median(seconds):.2f} s in the median, {max(seconds):.2f} s at most")


def quantile(figures: Sequence[float], share: float) -> float:
    """Return the smallest figure that the given share of all figures does not exceed."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


if __name__ == "__main__":
    main()
