"""
Measures how much time checkpoint.every: auto loses on recorded spot lives, next to the best fixed interval in
hindsight.

    python benchmarks/intervals.py --traces DIR [--json OUT]

DIR holds v100-2023-aligned-priced.npz and 2022-ping/ as for benchmarks/policy.py. Each zone of each window is a run
that is lost whenever the zone is, always without a usable notice; it loses its stalls and the steps that each loss
undoes. The best fixed interval is one for all runs of a record, and knows how they end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.lives import best_fixed, lives_s, lost_by_auto
from spotrun.forecast.traces import Windows, read_json, read_windows

STALLS_S = (0.3, 1.0, 3.0, 10.0)
GRID_S = [float(each) for each in np.unique(np.round(np.geomspace(30, 3600, 60)))]
LIMIT = 1.10
"""Maximum ratio: auto may lose a tenth more than the best fixed interval in hindsight."""


def runs_of(windows: Windows) -> list[list[float]]:
    """Return the lives of each zone of each window, where there are any."""
    rng = np.random.default_rng(0)
    found = [lives_s(window[:, zone], windows.tick_s, rng) for window in windows.up for zone in range(window.shape[1])]
    return [run for run in found if run]


def records(traces: Path) -> dict[str, list[list[float]]]:
    priced = read_windows(traces / "v100-2023-aligned-priced.npz")
    ping = [read_json(path, "adrs", 1, 1.0) for path in sorted((traces / "2022-ping").glob("*.json"))]
    return {"2023, nine zones": runs_of(priced), "2022-ping": [run for each in ping for run in runs_of(each)]}


def row(runs: list[list[float]], stall_s: float) -> dict[str, float]:
    fixed_s, least = best_fixed(runs, stall_s, GRID_S)
    by_age, without = (sum(lost_by_auto(run, stall_s, by_age=aged) for run in runs) for aged in (True, False))
    return {
        "stall_s": stall_s,
        "best_fixed_s": fixed_s,
        "lost_h": least / 3600,
        "auto": by_age / least,
        "auto_without_age": without / least,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    found = {}
    for name, runs in records(options.traces).items():
        found[name] = [row(runs, stall_s) for stall_s in STALLS_S]
        print(f"\n{name}: {len(runs)} runs, {sum(map(len, runs))} lives")
        print("stall   best fixed   it loses   auto   auto without the instance's age")
        for each in found[name]:
            print(
                f"{each['stall_s']:4.1f} s {each['best_fixed_s']:8.0f} s {each['lost_h']:8.1f} h"
                f" {each['auto']:8.3f} {each['auto_without_age']:8.3f}"
            )
    worst = max(each["auto"] for rows in found.values() for each in rows)
    print(f"\nauto at worst {worst:.3f} of the best fixed interval, to be at most {LIMIT:.2f}")
    if options.json:
        options.json.write_text(json.dumps(found))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
