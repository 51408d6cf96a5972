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
    goes, at its own price, and nothing is done twice. What is moved to is paid for beside what runs until its
    changeover is over, and may be lost before. While something trains, spot is asked for once in `ask_every_s`. The
    first `unbilled_s` of every start cost nothing: clouds bill from the end of the boot.
    """

    notice_s: float
    warned: tuple[bool, ...]
    ask_every_s: float = 0.0
    unbilled_s: float = 0.0


def simulate(
    strategy: Strategy,
    job: Job,
    market: Ticks,
    first: int = 0,
    *,
    keep_places: bool = False,
    rework_s: float = 0.0,
    standby: Standby | None = None,
    believed: Job | None = None,
) -> Outcome:
    """
    Run `job` from tick `first` of `market` on, as `strategy` chooses. A loss undoes `rework_s` at most.

    Without a `standby` every start pays its whole changeover. `believed` is the job as the strategy is told of it,
    where that is more careful than what is true.
    """
    told = believed or job
    tick_s, work_s, changeover_s, usd = job.tick_s, job.work_s, 0.0, 0.0
    running: str | None = None
    coming: str | None = None
    coming_s = 0.0
    boot_s = 0.0 if standby is None else min(standby.unbilled_s, job.changeover_s)
    free_s = coming_free_s = 0.0
    starts, progress, kept_s = 0, {True: 0.0, False: 0.0}, 0.0
    losses, paid_changeover_s, redone_s = 0, 0.0, 0.0
    places: list[str | None] = []
    finished_s: float | None = None
    since_s = asked_s = 0.0
    history = MarketHistory()
    choose = strategy.choose
    for number in range(first, len(market)):
        spot = market[number]
        elapsed_s = (number - first) * tick_s
        history = history.observed(spot, elapsed_s)
        ahead_s = 0.0
        if coming is not None and coming != ON_DEMAND and coming not in spot:
            coming = None  # what was asked for is gone before it was ready
        if running is not None and running != ON_DEMAND and running not in spot:
            warned = standby is not None and standby.warned[losses % len(standby.warned)]
            ahead_s = standby.notice_s if standby is not None and warned else 0.0
            undone_s = 0.0 if warned else min(rework_s, kept_s)
            losses, work_s, redone_s = losses + 1, work_s + undone_s, redone_s + undone_s
            running, since_s = None, elapsed_s
        if coming is not None and (running is None or coming_s <= 0):
            running, changeover_s, kept_s = coming, max(0.0, coming_s), 0.0
            coming, free_s, since_s = None, coming_free_s, elapsed_s + changeover_s
        settled = changeover_s <= 0
        place = running
        if coming is None:
            seen, kept_for_s = spot, elapsed_s - since_s
            if standby is not None and running is not None:
                kept_for_s = min(kept_for_s, elapsed_s - asked_s)
                seen = _asked(spot, running, settled and elapsed_s - asked_s >= standby.ask_every_s)
            place = choose(Situation(told, elapsed_s, work_s, running, settled, seen, history, kept_for_s))
            if standby is not None and seen is spot and not any(pool != running for pool in spot):
                asked_s = elapsed_s
        if keep_places:
            places.append(place)
        if place != running:
            starts += place is not None
            if standby is not None and running is not None and place is not None and settled:
                coming, coming_s, coming_free_s, asked_s = place, job.changeover_s, boot_s, elapsed_s
            else:
                ready_s = min(ahead_s, job.changeover_s) if settled and place is not None else 0.0
                if place is not None:
                    usd += _price(job, spot, place) * max(0.0, ready_s - boot_s) / SECONDS_PER_HOUR
                    free_s = max(0.0, boot_s - ready_s)
                running, changeover_s, kept_s = place, job.changeover_s - ready_s, 0.0
                since_s = elapsed_s if place is None else elapsed_s + changeover_s
        if running is None:
            continue
        busy_s = min(tick_s, changeover_s + work_s)
        paid_s = busy_s
        if coming is not None:
            usd += _price(job, spot, coming) * max(0.0, busy_s - coming_free_s) / SECONDS_PER_HOUR
            coming_free_s = max(0.0, coming_free_s - busy_s)
            paid_s, coming_s = min(busy_s, coming_s), coming_s - busy_s
        if free_s > 0:
            paid_s, free_s = max(0.0, paid_s - free_s), max(0.0, free_s - paid_s)
        price = job.on_demand_usd_per_hour if running == ON_DEMAND else spot[running]
        usd += price * paid_s / SECONDS_PER_HOUR
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


def _asked(spot: Mapping[str, float], running: str, now: bool) -> Mapping[str, float]:
    """What is seen of the market while something runs."""
    if now:
        return spot
    return {running: spot[running]} if running in spot else {}


def _price(job: Job, spot: Mapping[str, float], place: str) -> float:
    return job.on_demand_usd_per_hour if place == ON_DEMAND else spot[place]


def on_demand_bill(job: Job) -> float:
    """What the job costs on demand only, its one changeover included, in USD."""
    return job.on_demand_usd_per_hour * (job.work_s + job.changeover_s) / SECONDS_PER_HOUR
