"""
Measures the time that an interruption costs: ours, which requests the replacement at the notice and commits within it,
next to two rules that act after the loss, in the same simulated spot markets.

    make downtime    or    python -m benchmarks.downtime [--jobs 80] [--unannounced .1] [--recommended .5] [--json OUT]

Each job trains for 12 h in a market of its own seed: nine zones, boot 60-120 s, set-up 0-180 s, notices of 120 s, a
tenth of the losses without one. An interruption is a stretch without progress, from the last step that is kept to the
next that is new; steps done twice count as lost. Causes are those of spotrun/account/timeline.py:

    poll      training has stopped, and the decider does not know it yet          (detect)
    capacity  no capacity, or the runner is about to request it                    (wait)
    boot, set-up, restore                                                         of the new instance
    rework    steps after the newest durable checkpoint                           (rework)
    save      the last checkpoint, from the last step until it is durable         (stall)

Two things that only ours does need an assumption or a set-up that can be packed, so it is shown without each of them:

    notices only   on a cloud that does not recommend to rebalance, as GCP; EC2 does before some of its losses, and how
                   many of them and how long before is an assumption (`Setting`), so try others
    set up again    each instance runs the user's set-up, as where it leaves anything outside of what a pack holds;
                   packed, the later instances unpack what the first has made, in the share `--unpack` of the time

The others pay each set-up in full, as their tools do; "packed" is the first of them with packs like ours.
When ours moves
for a recommendation the loss that it was spared counts as an interruption, which cost the handover. Where no loss would
have followed, the cost of the move is counted and the move is not: its seconds fall on the interruptions.

Ours is the production code (benchmarks/downtime_ours.py); where the others' rules come from stands in
benchmarks/downtime_rivals.py. Last come gangs, which lose one member without a notice (benchmarks/downtime_gang.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks import downtime_gang
from benchmarks.arguments import at_least
from benchmarks.downtime_market import Market, Setting
from benchmarks.downtime_ours import OurWorld
from benchmarks.downtime_rivals import POLL_AND_RELAUNCH, POLL_WITH_PACKS, SCALING_GROUP, spans
from spotrun.account.timeline import Activity, Span, spent

CAUSES = downtime_gang.CAUSES | {"save": Activity.STALL}
OURS = {
    "ours": lambda setting: setting,
    "ours, notices only": lambda setting: setting.unwarned,
    "ours, set up again": lambda setting: setting.anew,
    "ours, notices only, set up again": lambda setting: setting.unwarned.anew,
}
"""The part of a setting that is left under each variant."""
RIVALS = (POLL_AND_RELAUNCH, POLL_WITH_PACKS, SCALING_GROUP)
TARGET = 0.40
"""Maximum share of the seconds that an interruption costs under poll and relaunch."""

Interruption = dict[str, float]
"""Seconds by cause."""


@dataclass(frozen=True)
class Lost:
    """The losses of one job under a rule. `in_vain` of its moves were for a loss that did not come."""

    stretches: list[Interruption]
    moves: int = 0
    in_vain: int = 0


def job(setting: Setting, seed: int) -> dict[str, Lost]:
    """Return the losses of one job under each rule."""
    market = Market(seed, setting)
    by_rule = {rule.name: Lost(list(interruptions(spans(rule, market)))) for rule in RIVALS}
    return {name: ours(Market(seed, left_of(setting))) for name, left_of in OURS.items()} | by_rule


def ours(market: Market) -> Lost:
    world = OurWorld(market)
    found = list(interruptions(world.life()))
    moves = list(world.moves())
    return Lost(found, len(moves), sum(not spared for spared in moves))


def interruptions(life: Sequence[Span]) -> Iterator[Interruption]:
    """
    Yield the stretches without progress between two that have some. A pause for a checkpoint alone is none of them.

    The first start is none, and one that the horizon cuts off is left out.
    """
    stretches = [list(group) for _, group in groupby(life, key=lambda span: span.kind is Activity.PRODUCTIVE)]
    for stretch in (
        stretches[2:-1] if stretches and stretches[0][0].kind is not Activity.PRODUCTIVE else stretches[1:-1]
    ):
        if stretch[0].kind is Activity.PRODUCTIVE or all(span.kind is Activity.STALL for span in stretch):
            continue
        lasted = spent(stretch)
        yield {cause: lasted[kind].total_seconds() for cause, kind in CAUSES.items()}


def figures(found: Iterable[Lost]) -> dict[str, float]:
    """Return means by cause, and the mean, median and P95 of their sum; seconds an interruption."""
    jobs = list(found)
    each = [one for lost in jobs for one in lost.stretches]
    in_vain = sum(lost.in_vain for lost in jobs)
    number = len(each) - in_vain
    sums = [sum(one.values()) for one in each]
    by_cause = {cause: round(sum(one[cause] for one in each) / number, 2) for cause in CAUSES}
    middle, high = (round(float(np.quantile(sums, share)), 1) for share in (0.5, 0.95))
    moves = {"moves": sum(lost.moves for lost in jobs), "in_vain": in_vain}
    return {
        "interruptions": number,
        **moves,
        **by_cause,
        "mean": round(sum(sums) / number, 1),
        "p50": middle,
        "p95": high,
    }


def show(found: dict[str, dict[str, float]]) -> None:
    columns = [*CAUSES, "mean", "p50", "p95"]
    counts = ["interruptions", "moves", "in_vain"]
    titles = (*columns, "number", "moves", "in vain")
    print(f"{'seconds lost an interruption':30}" + "".join(f"{name:>10}" for name in titles))
    for name, row in found.items():
        cells = [f"{row[column]:.1f}" for column in columns] + [f"{row[count]:.0f}" for count in counts]
        print(f"{name:30}" + "".join(f"{cell:>10}" for cell in cells))


def show_shares(shares: dict[str, dict[str, float]]) -> None:
    print(
        "\nof what these lose, who pay each set-up in full unless packed,"
        + "".join(f"{rule.name:>27}" for rule in RIVALS)
    )
    for name, of in shares.items():
        print(f"{name + ' loses':62}" + "".join(f"{of[rule.name]:27.0%}" for rule in RIVALS))
    met = [name for name, of in shares.items() if of[POLL_AND_RELAUNCH.name] <= TARGET]
    print(f"at most {TARGET:.0%} of {POLL_AND_RELAUNCH.name}: {'; '.join(met) or 'MISSED'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=at_least(1), default=80, help="each in a market of its own")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--workers", type=at_least(1), default=2)
    for field in fields(Setting):
        if field.type == "float":
            flag = "--" + field.name.removesuffix("_s").replace("_", "-")
            parser.add_argument(flag, type=float, default=field.default, dest=field.name)
    options = parser.parse_args()
    setting = Setting(**{name: value for name, value in vars(options).items() if name in Setting.__annotations__})
    began = time.monotonic()
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = list(pool.map(partial(job, setting), range(options.jobs)))
        gangs = downtime_gang.measure(setting, options.jobs, pool)
    found = {name: figures(each[name] for each in jobs) for name in jobs[0]}
    show(found)
    shares = {name: {rule.name: found[name]["mean"] / found[rule.name]["mean"] for rule in RIVALS} for name in OURS}
    show_shares(shares)
    by_size = {size: downtime_gang.figures(losses) for size, losses in gangs.items()}
    downtime_gang.show(by_size)
    print(f"{options.jobs} jobs of {setting.horizon_s / 3600:.0f} h in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(
            json.dumps({"setting": asdict(setting), "rules": found, "shares": shares, "gangs": by_size}, indent=2)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
