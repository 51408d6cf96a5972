"""
Simulates one job in one recorded market, tick by tick.

A strategy decides at the start of each tick, and knows which zones have spot capacity in that tick. Instances are lost
only between ticks. Starting an instance takes one changeover, which is billed at the new instance's price. Stopping an
instance costs nothing and loses no progress. Billing is by the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec

from spotrun.strategies.history import MarketHistory
from spotrun.strategies.port import NO_TOLLS, ON_DEMAND, Job, Situation, Strategy

SECONDS_PER_HOUR = 3600.0
ROUNDING_S = 1e-6

Ticks = Sequence[Mapping[str, float]]
"""
For each tick, a mapping from the zones that have spot to their prices (USD per hour). If nothing changes from one tick
to the next, both ticks have the same mapping object, so a comparison with `is` detects a change.
"""


class Outcome(msgspec.Struct, frozen=True):
    """
    The result of a job. `finished_s` is None if the market's record ended before the job was done.

    `losses` counts the instances that the market took. `changeover_s` are the seconds spent in changeovers, without
    progress. `rework_s` are the seconds of work that had to be repeated after losses.
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
    The rules for a replacement that starts while the old instance still trains, as in real runs.

    Notices: `warned` has a value for each loss, in order: True if the loss has a notice. If there are more losses than
    values, the values repeat. A notice comes `notice_s` before the loss, and the replacement is started then. So at the
    loss, `notice_s` seconds of the replacement's changeover are already over; they are billed at the replacement's
    price. No work is repeated after such a loss. For a strategy that considers how long spot has been unavailable, that
    time begins at the notice, not at the loss.

    Moves to another place: until the changeover to the new place is over, the instances at both places are billed, and
    the new instance can be lost too. While an instance trains, the strategy requests spot only every `ask_every_s`.

    Starts: the first `unbilled_s` seconds of every start are free, because clouds bill only from the end of the boot.
    The first start that leads to training runs all of `setup` and packs the result. Later starts only unpack it, so
    each takes only the share `later_start` of a changeover.
    """

    notice_s: float
    warned: tuple[bool, ...]
    ask_every_s: float = 0.0
    unbilled_s: float = 0.0
    later_start: float = 1.0


class LoneLosses(msgspec.Struct, frozen=True):
    """
    The losses of a gang of `size` members in which one member is lost alone. `ticks` maps a zone to the numbers of the
    ticks in which a gang there loses a member, although the zone keeps its capacity.

    Only this member is replaced, in the same zone. The other members wait for the replacement, and are billed while
    they wait. The prices of a market in which a gang trains are those of all members together.
    """

    size: int = 1
    ticks: Mapping[str, Set[int]] = {}


NO_LOSSES = LoneLosses()


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
    tolls: Mapping[str, float] = NO_TOLLS,
    lone_losses: LoneLosses = NO_LOSSES,
) -> Outcome:
    """
    Simulate `job` in `market`, starting at tick `first`. At each tick `strategy` chooses a place: a zone, on-demand or
    none.

    After a loss without notice, the job has to repeat the work that it did since its start at that place, but at most
    `rework_s` seconds of work. Without `standby`, every start takes a full changeover, all of which is billed. The
    simulation uses the figures of `job`. If `believed` is given, the strategy bases its decisions on the more cautious
    figures of that job. `tolls` is the extra cost, in USD, of each start at a place.
    """
    life = _Life(job, rework_s, standby, tolls)
    told, choose, history = believed or job, strategy.choose, MarketHistory()
    places: list[str | None] = []
    before: Mapping[str, float] | None = None
    for number in range(first, len(market)):
        spot = market[number]
        life.elapsed_s = elapsed_s = (number - first) * job.tick_s
        if spot is not before:
            history, before = history.observed(spot, elapsed_s), spot
        life.see(spot)
        if life.running is not None and number in lone_losses.ticks.get(life.running, ()):
            life.lose_member(spot, lone_losses.size)
        place = life.running
        if life.coming is None:
            seen, since_s = life.seen(spot)
            settled = life.changeover_s <= 0
            place = choose(Situation(told, elapsed_s, life.work_s, place, settled, seen, history, since_s, tolls))
        if keep_places:
            places.append(place)
        if place != life.running:
            life.go(place, spot)
        if life.running is not None and (finished_s := life.pass_tick(spot)) is not None:
            return life.outcome(finished_s, places)
    return life.outcome(None, places)


class _Life:
    """
    The state of a simulated job: the place where it runs, the time at which it began to run there, and its results so
    far.

    `running` is the place where the job runs. While it moves, `coming` is the place to which it moves, and `coming_s`
    is the time until its new instance there is ready. After a loss with a notice, `ahead_s` is the part of the
    changeover that is already over, because the replacement was started at the notice. Billing of the instance at
    `running` begins in `free_s` seconds, and of the one at `coming` in `coming_free_s` seconds.
    """

    __slots__ = (
        *(
            "job",
            "rework_s",
            "standby",
            "tolls",
            "elapsed_s",
            "running",
            "changeover_s",
            "since_s",
            "work_s",
            "kept_s",
            "usd",
        ),
        *("coming", "coming_s", "coming_free_s", "asked_s", "ahead_s", "free_s"),
        *("starts", "losses", "paid_changeover_s", "redone_s", "progress"),
    )

    def __init__(self, job: Job, rework_s: float, standby: Standby | None, tolls: Mapping[str, float]) -> None:
        self.job, self.rework_s, self.standby, self.tolls = job, rework_s, standby, tolls
        self.work_s = job.work_s
        self.running: str | None = None
        self.coming: str | None = None
        self.elapsed_s = self.changeover_s = self.since_s = self.kept_s = self.usd = 0.0
        self.coming_s = self.coming_free_s = self.asked_s = self.ahead_s = self.free_s = 0.0
        self.starts, self.losses, self.paid_changeover_s, self.redone_s = 0, 0, 0.0, 0.0
        self.progress = {True: 0.0, False: 0.0}

    def see(self, spot: Mapping[str, float]) -> None:
        """Apply the losses since the last tick. If a replacement has become ready, move the job to it."""
        self.ahead_s = 0.0
        if self.coming is not None and self.coming != ON_DEMAND and self.coming not in spot:
            self.coming = None
        if self.running is not None and self.running != ON_DEMAND and self.running not in spot:
            self._lose()
        if self.coming is not None and (self.running is None or self.coming_s <= 0):
            self._settle(self.coming, max(0.0, self.coming_s))
            self.coming, self.free_s = None, self.coming_free_s

    def _lose(self) -> None:
        self.ahead_s = self._interrupt()
        self.running, self.since_s = None, self.elapsed_s - self.ahead_s

    def lose_member(self, spot: Mapping[str, float], size: int) -> None:
        """
        Lose one of `size` members, and start its replacement in the same zone. The gang stands still until the
        replacement is ready. Only the boot of the replacement is free.
        """
        assert self.running is not None
        assert self.standby is not None
        notice_s, start_s, settled = self._interrupt(), self._start_s(), self.changeover_s <= 0
        ready_s = min(notice_s, start_s) if settled else 0.0
        billed_s = ready_s - min(self.standby.unbilled_s, start_s)
        self.usd += self._price(self.running, spot) / size * billed_s / SECONDS_PER_HOUR
        self.starts += 1
        self._settle(self.running, start_s - ready_s)

    def _interrupt(self) -> float:
        """Count a loss, and undo work if it has no notice. Return the seconds from its notice to the loss."""
        standby = self.standby
        warned = standby is not None and standby.warned[self.losses % len(standby.warned)]
        undone_s = 0.0 if warned else min(self.rework_s, self.kept_s)
        self.losses += 1
        self.work_s += undone_s
        self.redone_s += undone_s
        return standby.notice_s if standby is not None and warned else 0.0

    def seen(self, spot: Mapping[str, float]) -> tuple[Mapping[str, float], float]:
        """
        Return the spot offers that the strategy sees, and the `since_s` of its `Situation`.

        Without `standby`, the strategy sees all offers at each tick. `since_s` counts from the job's last move.

        With `standby`, a strategy requests spot only at intervals while the job runs, and sees the offers of other
        zones only when it does so. `since_s` counts from its last request or the job's last move, whichever is later.
        """
        since_s, standby, running = self.elapsed_s - self.since_s, self.standby, self.running
        if standby is None:
            return spot, since_s
        asked_for_s = self.elapsed_s - self.asked_s
        hidden = running is not None and (self.changeover_s > 0 or asked_for_s < standby.ask_every_s)
        if not hidden and len(spot) == (running in spot):
            self.asked_s = self.elapsed_s  # no other pool has spot
        if running is None:
            return spot, since_s
        if hidden:
            spot = {running: spot[running]} if running in spot else {}
        return spot, min(since_s, asked_for_s)

    def go(self, place: str | None, spot: Mapping[str, float]) -> None:
        """
        Move the job to `place`; stop it if `place` is None. With `standby`, the job runs at its old place until the new
        one is ready.
        """
        self.starts += place is not None
        self.usd += 0.0 if place is None else self.tolls.get(place, 0.0)
        settled, start_s = self.changeover_s <= 0, self._start_s()
        unbilled_s = 0.0 if self.standby is None else min(self.standby.unbilled_s, start_s)
        if place is None:
            self._settle(None, start_s)
            self.since_s = self.elapsed_s
        elif self.standby is not None and self.running is not None and settled:
            self.coming, self.coming_s, self.coming_free_s = place, start_s, unbilled_s
            self.asked_s = self.elapsed_s
        else:
            ready_s = min(self.ahead_s, start_s) if settled else 0.0
            self.usd += self._price(place, spot) * max(0.0, ready_s - unbilled_s) / SECONDS_PER_HOUR
            self.free_s = max(0.0, unbilled_s - ready_s)
            self._settle(place, start_s - ready_s)

    def _start_s(self) -> float:
        if self.standby is None or not any(self.progress.values()):
            return self.job.changeover_s
        return self.standby.later_start * self.job.changeover_s

    def _settle(self, place: str | None, changeover_s: float) -> None:
        self.running, self.changeover_s, self.kept_s = place, changeover_s, 0.0
        self.since_s = self.elapsed_s + changeover_s

    def pass_tick(self, spot: Mapping[str, float]) -> float | None:
        """
        Bill one tick, and add the job's progress in it. Return the time at which the job is done; None if it is not
        done yet.
        """
        running = self.running
        assert running is not None
        if self.changeover_s <= 0 and self.work_s > self.job.tick_s and self.coming is None and self.free_s <= 0:
            self._pass_quiet_tick(running, spot)
            return None
        paid_s = busy_s = min(self.job.tick_s, self.changeover_s + self.work_s)
        if self.coming is not None:
            billed_s = max(0.0, busy_s - self.coming_free_s)
            self.usd += self._price(self.coming, spot) * billed_s / SECONDS_PER_HOUR
            self.coming_free_s = max(0.0, self.coming_free_s - busy_s)
            paid_s, self.coming_s = min(busy_s, self.coming_s), self.coming_s - busy_s
        if self.free_s > 0:
            paid_s, self.free_s = max(0.0, paid_s - self.free_s), max(0.0, self.free_s - paid_s)
        self.usd += self._price(running, spot) * paid_s / SECONDS_PER_HOUR
        done_s = max(0.0, busy_s - self.changeover_s)
        self.paid_changeover_s += busy_s - done_s
        self.changeover_s = max(0.0, self.changeover_s - busy_s)
        self.work_s -= done_s
        self.kept_s += done_s
        self.progress[running == ON_DEMAND] += done_s
        return self.elapsed_s + busy_s if self.work_s <= ROUNDING_S and self.changeover_s <= 0 else None

    def _pass_quiet_tick(self, running: str, spot: Mapping[str, float]) -> None:
        """
        Bill a tick in which the job only trains, and add its progress. This has the same result as `pass_tick`, but is
        faster. Most ticks are of this sort.
        """
        tick_s = self.job.tick_s
        self.usd += self._price(running, spot) * tick_s / SECONDS_PER_HOUR
        self.work_s -= tick_s
        self.kept_s += tick_s
        self.progress[running == ON_DEMAND] += tick_s

    def _price(self, place: str, spot: Mapping[str, float]) -> float:
        return self.job.on_demand_usd_per_hour if place == ON_DEMAND else spot[place]

    def outcome(self, finished_s: float | None, places: list[str | None]) -> Outcome:
        sums = (self.losses, self.paid_changeover_s, self.redone_s)
        on_demand_s, spot_s = self.progress[True], self.progress[False]
        return Outcome(self.usd, finished_s, self.starts, on_demand_s, spot_s, tuple(places), *sums)


def on_demand_bill(job: Job) -> float:
    """Return the cost of the job, in USD, if it uses only on-demand. The cost includes one changeover."""
    return job.on_demand_usd_per_hour * (job.work_s + job.changeover_s) / SECONDS_PER_HOUR
