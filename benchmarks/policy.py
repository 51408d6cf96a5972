"""
Measures the cost of each strategy on recorded spot markets, next to the exact optimum.

    python benchmarks/policy.py --traces DIR [--json OUT]

DIR holds v100-2023-aligned-priced.npz (100 windows of 60 h, 9 zones, priced) and 2022-ping/ (8 zones, ADRS polarity).
Costs are shares of the on-demand-only bill. The constants of ours are those that do best on the first 50 windows
(benchmarks/tuning.py), so the second 50 are printed apart; the rule itself was designed with both in view. The optimum
is exact and slow, so it is computed in every few windows, and a gap is the mean difference to it on the same trials.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.arguments import at_least
from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.optimum import optimum
from spotrun.forecast.ticks import Outcome, Ticks, on_demand_bill, simulate
from spotrun.forecast.traces import Windows, read_json, read_windows
from spotrun.strategies.port import Job

HOUR_S = 3600.0
ON_DEMAND_USD = 3.06
TRACKS = {
    "S": [(zone,) for zone in range(9)],
    "R": [(0, 1, 2, 3), (4, 5), (6, 7, 8)],
    "G": [tuple(range(9))],
}
OFFSETS = 4
SHOWN = (
    *("ours", "greedy", "uniform_progress", "uniform_progress_no_hysteresis"),
    *("sticky_fallback", "eager_fallback"),
)
CELL_STRATEGIES = ("ours", "greedy", "uniform_progress")
PRICE_RATIOS = (1.1, 1.5, 2.0, 3.3, 5.0, 10.0)
CHANGEOVERS_MIN = (1, 3, 6, 12, 30)
CELL_WINDOWS = 20
CELL_LIMIT = 0.010
TABLE_3 = {"greedy": (30.8, 17.2), "uniform_progress": (25.1, 22.9)}


Cell = dict[str, float | int | None]
"""Mean cost, mean gap to the optimum where it was computed, misses, trials."""
Found = dict[str, dict[str, Cell]]
"""Per suite, or cell of the second table, and strategy."""


class Suite(NamedTuple):
    """Jobs of one length on one track. The optimum is taken in every `optimum_every`th window."""

    track: str
    work_h: float
    deadlines_h: tuple[float, ...]
    changeovers_s: tuple[float, ...]
    optimum_every: int
    target: float


SHORT, LONG = (9, 10, 12, 16), (40, 45, 54)
SUITES = {
    "S8": Suite("S", 8, SHORT, (360, 720), 20, 0.580),
    "R8": Suite("R", 8, SHORT, (360, 720), 20, 0.460),
    "G8": Suite("G", 8, SHORT, (360, 720), 20, 0.312),
    "S36": Suite("S", 36, LONG, (720,), 50, 0.595),
    "R36": Suite("R", 36, LONG, (720,), 50, 0.465),
}


class Trial(NamedTuple):
    """`key` is the suite, or the cell, that it belongs to. `share` is of the on-demand-only bill."""

    key: str
    strategy: str
    window: int
    case: tuple[float, ...]
    share: float
    missed: bool


@cache
def windows_of(traces: Path) -> Windows:
    return read_windows(traces / "v100-2023-aligned-priced.npz")


def offsets(windows: Windows, deadline_h: float, count: int = OFFSETS) -> list[int]:
    """Return first ticks, evenly spread over those that leave room for the deadline."""
    room = windows.up.shape[1] - int(np.ceil(deadline_h * HOUR_S / windows.tick_s))
    return [int(first) for first in np.linspace(0, room, count)]


def job_of(windows: Windows, work_h: float, deadline_h: float, changeover_s: float) -> Job:
    return Job(work_h * HOUR_S, deadline_h * HOUR_S, changeover_s, windows.tick_s, ON_DEMAND_USD)


def suite_trials(traces: Path, name: str, window: int) -> list[Trial]:
    """Return the trials of every strategy in one window; also of the optimum if it is that window's turn."""
    suite, windows, trials = SUITES[name], windows_of(traces), []
    for zones in TRACKS[suite.track]:
        market = windows.ticks(window, zones)
        for changeover_s, first in product(suite.changeovers_s, offsets(windows, max(suite.deadlines_h))):
            jobs = [job_of(windows, suite.work_h, hours, changeover_s) for hours in suite.deadlines_h]
            cases = [(zones[0], changeover_s, first, job.deadline_s) for job in jobs]
            for job, case in zip(jobs, cases, strict=True):
                trials += _by_each(SHOWN, name, window, case, job, market, first)
            if window % suite.optimum_every == 0:
                least = optimum(jobs[0], market, [job.deadline_s for job in jobs], first)
                bill = on_demand_bill(jobs[0])
                for case, usd in zip(cases, least, strict=True):
                    trials.append(Trial(name, "optimum", window, case, usd / bill, missed=False))
    return trials


def cell_trials(traces: Path, track: str, window: int) -> list[Trial]:
    """Ours, greedy and Uniform Progress over price ratios and changeovers; 8-hour jobs, a flat price in every zone."""
    windows, trials = windows_of(traces), []
    for ratio, zones in product(PRICE_RATIOS, TRACKS[track]):
        at_one_price = np.broadcast_to(ON_DEMAND_USD / ratio, windows.price.shape)
        flat = msgspec.structs.replace(windows, price=at_one_price).ticks(window, zones)
        for minutes, hours in product(CHANGEOVERS_MIN, SHORT):
            job = job_of(windows, 8, hours, minutes * 60)
            first = offsets(windows, max(SHORT))[(window // 5) % OFFSETS]
            key = f"{track} {ratio:g} {minutes}"
            trials += _by_each(CELL_STRATEGIES, key, window, (zones[0], hours), job, flat, first)
    return trials


def _by_each(
    strategies: Iterable[str], key: str, window: int, case: tuple[float, ...], job: Job, market: Ticks, first: int
) -> Iterator[Trial]:
    bill = on_demand_bill(job)
    for strategy in strategies:
        outcome = simulate(COMPARED[strategy], job, market, first)
        yield Trial(key, strategy, window, case, outcome.cost_usd / bill, outcome.missed(job))


def table_3(traces: Path) -> dict[str, tuple[float, float]]:
    """On-demand and spot hours of progress: a 48 h job due in 60 h, changeover 720 s, over the zones of 2022-ping."""
    hours: dict[str, list[Outcome]] = defaultdict(list)
    for path in sorted((traces / "2022-ping").glob("*.json")):
        record = read_json(path, "adrs", 1, ON_DEMAND_USD / 3)
        job = job_of(record, 48, 60, 720)
        market = record.ticks(0, (0,))
        for first, strategy in product(offsets(record, 60, count=40), TABLE_3):
            hours[strategy].append(simulate(COMPARED[strategy], job, market, first))
    return {
        strategy: (
            fmean(outcome.on_demand_progress_s for outcome in outcomes) / HOUR_S,
            fmean(outcome.spot_progress_s for outcome in outcomes) / HOUR_S,
        )
        for strategy, outcomes in hours.items()
    }


def summary(trials: list[Trial]) -> Found:
    """Return the trials by suite or cell and by strategy."""
    grouped: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    least = {(trial.key, trial.window, trial.case): trial.share for trial in trials if trial.strategy == "optimum"}
    for trial in trials:
        grouped[trial.key, trial.strategy].append(trial)
    found: Found = defaultdict(dict)
    for (key, strategy), group in grouped.items():
        places = [(trial, (trial.key, trial.window, trial.case)) for trial in group]
        gaps = [trial.share - least[place] for trial, place in places if place in least]
        found[key][strategy] = {
            "cost": round(fmean(trial.share for trial in group), 5),
            "gap": round(fmean(gaps), 5) if gaps else None,
            "misses": sum(trial.missed for trial in group),
            "trials": len(group),
        }
    return dict(found)


def show(found: Found, title: str) -> None:
    """Print one line a strategy; a strategy without trials in the chosen windows, such as the optimum, is a dash."""
    print(f"\n{title}: cost as a share of the on-demand bill (gap to the optimum), misses")
    print(f"{'':32}" + "".join(f"{name:>19}" for name in SUITES))
    for strategy in (*SHOWN, "optimum"):
        cells = [_shown(found.get(name, {}).get(strategy)) for name in SUITES]
        print(f"{strategy:32}" + "".join(f"{cell:>19}" for cell in cells))


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    gap = "  -  " if cell["gap"] is None else f"{cell['gap']:.3f}"
    return f"{cell['cost']:.4f} ({gap}) {cell['misses']}"


def show_cells(found: Found) -> float:
    """Ours minus the better of greedy and Uniform Progress, per cell; the worst of all."""
    worst = -1.0
    for track in TRACKS:
        print(f"\ntrack {track}, ours - min(greedy, UP); changeover (min) across, on-demand / spot price down")
        print(" " * 6 + "".join(f"{minutes:9}" for minutes in CHANGEOVERS_MIN))
        for ratio in PRICE_RATIOS:
            row = [_excess(found[f"{track} {ratio:g} {minutes}"]) for minutes in CHANGEOVERS_MIN]
            worst = max(worst, *row)
            print(f"{ratio:6}" + "".join(f"{excess:+9.4f}" for excess in row))
    return worst


def _excess(cell: dict[str, Cell]) -> float:
    cost = {strategy: cell[strategy]["cost"] or 0.0 for strategy in CELL_STRATEGIES}
    return cost["ours"] - min(cost["greedy"], cost["uniform_progress"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--workers", type=at_least(1), default=2)
    parser.add_argument("--every", type=at_least(1), default=1, help="take only every Nth window, for a quick look")
    options = parser.parse_args()
    began = time.monotonic()
    windows = windows_of(options.traces)
    print(f"{windows.up.shape[0]} windows, {windows.polarity}, on-demand ${ON_DEMAND_USD}")
    with ProcessPoolExecutor(options.workers) as pool:
        chosen = range(0, len(windows.up), options.every)
        tasks = [pool.submit(suite_trials, options.traces, name, window) for name in SUITES for window in chosen]
        spread = range(0, len(windows.up), len(windows.up) // CELL_WINDOWS)
        cells = [pool.submit(cell_trials, options.traces, track, window) for track in TRACKS for window in spread]
        trials = [trial for task in tasks for trial in task.result()]
        cell_found = summary([trial for task in cells for trial in task.result()])
    found, half = summary(trials), len(windows.up) // 2
    first, second = (summary([one for one in trials if (one.window >= half) is later]) for later in (False, True))
    show(found, "all windows")
    show(first, "first half, which the constants were chosen on")
    show(second, "second half")
    worst = show_cells(cell_found)
    paper = table_3(options.traces)
    print("\nthe paper's Table 3, on-demand h / spot h")
    for strategy, (on_demand_h, spot_h) in paper.items():
        print(f"{strategy:20} {on_demand_h:5.1f} / {spot_h:4.1f}   published {TABLE_3[strategy]}")
    print()
    reached = [f"{name}: {_verdict(found[name]['ours'], suite.target)}" for name, suite in SUITES.items()]
    print("\n".join(reached))
    print(f"worst cell {worst:+.4f}, to be at most {CELL_LIMIT:+.3f}; {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(
            json.dumps({**found, "first_half": first, "second_half": second, "cells": cell_found, "table_3": paper})
        )
    return 0


def _verdict(cell: Cell, target: float) -> str:
    cost = cell["cost"] or 0.0
    return f"{cost:.4f}, target {target:.3f} {'reached' if cost <= target and not cell['misses'] else 'MISSED'}"


if __name__ == "__main__":
    sys.exit(main())
