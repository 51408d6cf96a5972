"""
One job in one recorded market, tick by tick.

Decisions fall on tick starts and see the coming tick's availability; a loss falls on a tick boundary. Every start pays
a changeover in time and at the new instance's price, stopping is free, progress is kept, and billing is by the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from spotrun.strategies.history import MarketHistory
from spotrun.strategies.port import ON_DEMAND, Job, Situation, Strategy

SECONDS_PER_HOUR = 3600.0
ROUNDING_S = 1e-6

Ticks = Sequence[Mapping[str, float]]
"""Per tick the zones that have spot, with their price in USD per hour."""


class Outcome(msgspec.Struct, frozen=True):
    """
    What a job came to. `finished_s` is None where the market's record ended before the job did.

    `losses` are the instances that the market took; `changeover_s` was paid without progress, `rework_s` done again.
    """

    cost_usd: float
    finished_s: float | None
    starts: int
    on_demand_progress_s: float
    spot_progress_s: float
    places: tuple[str | None, ...] = ()
    losses: int = 0
    changeover_s: float = 0.0
    rework_s: float = 0.0

    def missed(self, job: Job) -> bool:
        return self.finished_s is None or self.finished_s > job.deadline_s + ROUNDING_S * 1000


class Standby(msgspec.Struct, frozen=True):
    """
    Replacements that start before they are needed, as the runner's do: beside what still trains.

    Of a loss that is `warned` of, in turns, the replacement has had `notice_s` of its changeover when the old instance
    goes, at its own price, and nothing is done twice. A move between two that run costs the old price for a changeover
    more, and no time.
    """

    notice_s: float
    warned: tuple[bool, ...]


def simulate(
    strategy: Strategy,
    job: Job,
    market: Ticks,
    first: int = 0,
    *,
    keep_places: bool = False,
    rework_s: float = 0.0,
    standby: Standby | None = None,
) -> Outcome:
    """
    Run `job` from tick `first` of `market` on, as `strategy` chooses. A loss undoes `rework_s` at most.

    Without a `standby` every start pays its whole changeover.
    """
    tick_s, work_s, changeover_s, usd = job.tick_s, job.work_s, 0.0, 0.0
    running: str | None = None
    starts, progress, kept_s = 0, {True: 0.0, False: 0.0}, 0.0
    losses, paid_changeover_s, redone_s = 0, 0.0, 0.0
    places: list[str | None] = []
    finished_s: float | None = None
    since_s = 0.0
    history = MarketHistory()
    choose = strategy.choose
    for number in range(first, len(market)):
        spot = market[number]
        elapsed_s = (number - first) * tick_s
        history = history.observed(spot, elapsed_s)
        ahead_s = 0.0
        if running is not None and running != ON_DEMAND and running not in spot:
            warned = standby is not None and standby.warned[losses % len(standby.warned)]
            ahead_s = standby.notice_s if standby is not None and warned else 0.0
            undone_s = 0.0 if warned else min(rework_s, kept_s)
            losses, work_s, redone_s = losses + 1, work_s + undone_s, redone_s + undone_s
            running, since_s = None, elapsed_s
        settled = changeover_s <= 0
        place = choose(Situation(job, elapsed_s, work_s, running, settled, spot, history, elapsed_s - since_s))
        if keep_places:
            places.append(place)
        if place != running:
            starts += place is not None
            ready_s = 0.0
            if standby is not None and settled and place is not None:
                ready_s = min(ahead_s, job.changeover_s) if running is None else job.changeover_s
                usd += _price(job, spot, running or place) * ready_s / SECONDS_PER_HOUR
            running, changeover_s, kept_s, since_s = place, job.changeover_s - ready_s, 0.0, elapsed_s
        if running is None:
            continue
        busy_s = min(tick_s, changeover_s + work_s)
        usd += _price(job, spot, running) * busy_s / SECONDS_PER_HOUR
        done_s = max(0.0, busy_s - changeover_s)
        paid_changeover_s += busy_s - done_s
        changeover_s = max(0.0, changeover_s - busy_s)
        work_s -= done_s
        kept_s += done_s
        progress[running == ON_DEMAND] += done_s
        if work_s <= ROUNDING_S and changeover_s <= 0:
            finished_s = elapsed_s + busy_s
            break
    sums = (losses, paid_changeover_s, redone_s)
    return Outcome(usd, finished_s, starts, progress[True], progress[False], tuple(places), *sums)


def _price(job: Job, spot: Mapping[str, float], place: str) -> float:
    return job.on_demand_usd_per_hour if place == ON_DEMAND else spot[place]


def on_demand_bill(job: Job) -> float:
    """What the job costs on demand only, its one changeover included, in USD."""
    return job.on_demand_usd_per_hour * (job.work_s + job.changeover_s) / SECONDS_PER_HOUR
