"""
Finds the constants with which our strategy does best on the first half of the recorded windows alone.

    python -m benchmarks.tuning --traces DIR [--set NAME=VALUE]… [--json OUT]

The score is the mean of the five suites of benchmarks/policy.py over windows 0 to 49, ours only; the second half is
never used. One constant after another goes over its GRID with the rest left alone and stays at the best value, until
none changes any more (coordinate descent); a gain within twice its standard error over windows is none. It begins at
the constants in the code, but for those of --set. A value that is worse by its standard error in a fifth of the windows
is not tried in the others. Each line has a difference to the best so far, with its standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from itertools import cycle, product
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType

from benchmarks.arguments import at_least
from benchmarks.policy import SUITES, TRACKS, job_of, offsets, windows_of
from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.ticks import Ticks, on_demand_bill, simulate
from spotrun.strategies import history, reserve

WINDOWS = range(50)
FEW = WINDOWS[::5]
HOUR_S = 3600.0
GRID: dict[str, tuple[ModuleType, tuple[float, ...]]] = {
    "RESERVE_SHARE": (reserve, (0.05, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25)),
    "RESERVE_CHANGEOVERS": (reserve, (1.0, 1.5, 2.0, 3.0, 4.0)),
    "SCARCITY": (reserve, (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)),
    "MOVE_SHARE": (reserve, (0.125, 0.25, 0.375, 0.5, 0.7, 1.0)),
    "FADING_S": (history, tuple(hours * HOUR_S for hours in (3, 4, 6, 8, 12, 16, 24))),
    "LOSSES_PRIOR": (history, (0.5, 0.7, 0.8, 0.9, 1.0, 1.2)),
    "UP_PRIOR_S": (history, (600.0, 900.0, 1800.0, 2700.0, 3600.0, 5400.0)),
    "REGION_SHARE": (history, (0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3)),
}
OF_SEVERAL_ZONES = {"MOVE_SHARE", "REGION_SHARE"}
"""Constants without effect if there is one zone."""
LEAST = 5e-5
"""Minimum gain of a change: the last digit that the figures are printed with."""

Constants = dict[str, float]
Scores = dict[str, dict[int, float]]
"""Per suite, the mean cost in each window."""
Score = Callable[[Constants, Iterable[int]], Scores]
"""The scores of constants in some windows."""


class Trials:
    """The simulated trials, so that none is simulated twice."""

    def __init__(self, pool: ProcessPoolExecutor, traces: Path) -> None:
        self._pool, self._traces = pool, traces
        self._known: dict[tuple[object, ...], Future[float]] = {}

    def scores(self, constants: Constants, windows: Iterable[int]) -> Scores:
        tasks = {name: {window: self._cost(name, window, constants) for window in windows} for name in SUITES}
        return {name: {window: task.result() for window, task in each.items()} for name, each in tasks.items()}

    def _cost(self, name: str, window: int, constants: Constants) -> Future[float]:
        idle = OF_SEVERAL_ZONES if SUITES[name].track == "S" else set()
        key = (name, window, *(value for constant, value in constants.items() if constant not in idle))
        if key not in self._known:
            self._known[key] = self._pool.submit(cost, self._traces, name, window, constants)
        return self._known[key]


def search(scores: Score, constants: Constants) -> Constants:
    """Coordinate descent from `constants`; every step is printed."""
    here = scores(constants, WINDOWS)
    print(f"{score(here):.5f}            {told(here)}  {constants}", flush=True)
    unchanged, names = 0, cycle(GRID)
    while unchanged < len(GRID):
        name = next(names)
        tried = {value: raced(scores, constants, name, value, here) for value in GRID[name][1]}
        whole = {value: found for value, found in tried.items() if found is not None}
        best = min(whole, key=lambda value: score(whole[value]))
        unchanged += 1
        if is_better(whole[best], here):
            constants, here, unchanged = constants | {name: best}, whole[best], 1
            print(f"{score(here):.5f}            {told(here)}  {name} = {best:g}", flush=True)
    return constants


def raced(scores: Score, constants: Constants, name: str, value: float, here: Scores) -> Scores | None:
    """Return the scores in all windows with another value of one constant; None if a few show that they are worse."""
    if value == constants[name]:
        return here
    changed, windows = constants | {name: value}, FEW
    mean, error = difference(scores(changed, windows), here)
    if mean <= error:
        windows = WINDOWS
        mean, error = difference(scores(changed, windows), here)
    found = scores(changed, windows)
    print(f"{mean:+.5f} +- {error:.5f}  {told(found)}  {len(windows)} windows, {name} = {value:g}", flush=True)
    return found if windows is WINDOWS else None


def is_better(found: Scores, here: Scores) -> bool:
    """
    Return whether the scores are better by more than chance: a gain within twice its standard error moves no constant.
    """
    mean, error = difference(found, here)
    return mean < -max(LEAST, 2 * error)


def score(found: Scores) -> float:
    return fmean(fmean(costs.values()) for costs in found.values())


def told(found: Scores) -> str:
    return "  ".join(f"{name} {fmean(costs.values()):.4f}" for name, costs in found.items())


def difference(found: Scores, other: Scores) -> tuple[float, float]:
    """Return the difference of two scores in the windows of the first, with its standard error over them."""
    each = [fmean(found[name][window] - other[name][window] for name in SUITES) for window in found["S8"]]
    return fmean(each), stdev(each) / sqrt(len(each))


def cost(traces: Path, name: str, window: int, constants: Constants) -> float:
    """
    Return the cost of ours in one window, as a share of the on-demand bill: the mean of its trials, none of which may
    be late.
    """
    for constant, value in constants.items():
        setattr(GRID[constant][0], constant, value)
    suite, windows, shares = SUITES[name], windows_of(traces), []
    for zones in TRACKS[suite.track]:
        market = _market(traces, window, zones)
        for changeover_s, first in product(suite.changeovers_s, offsets(windows, max(suite.deadlines_h))):
            for hours in suite.deadlines_h:
                job = job_of(windows, suite.work_h, hours, changeover_s)
                outcome = simulate(COMPARED["ours"], job, market, first)
                assert not outcome.missed(job), (name, window, constants)
                shares.append(outcome.cost_usd / on_demand_bill(job))
    return fmean(shares)


@cache
def _market(traces: Path, window: int, zones: tuple[int, ...]) -> Ticks:
    return windows_of(traces).ticks(window, zones)


def as_in_the_code() -> Constants:
    return {name: getattr(module, name) for name, (module, _) in GRID.items()}


def _given(words: Iterable[str]) -> Constants:
    pairs = (word.partition("=") for word in words)
    return {name: float(value) for name, _, value in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--workers", type=at_least(1), default=2)
    options = parser.parse_args()
    began, start = time.monotonic(), _given(options.set)
    if unknown := start.keys() - GRID.keys():
        parser.error(f"there is no {', '.join(unknown)}")
    with ProcessPoolExecutor(options.workers) as pool:
        trials = Trials(pool, options.traces)
        best = search(trials.scores, as_in_the_code() | start)
        found = trials.scores(best, WINDOWS)
    print(f"\n{score(found):.5f}  {told(found)}  {best}  {time.monotonic() - began:.0f} s")
    if options.json:
        suites = {name: fmean(costs.values()) for name, costs in found.items()}
        options.json.write_text(json.dumps({"constants": best, "score": score(found), "suites": suites}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
