"""
Measures the cost of a loss without a notice for the remaining members of a gang: ours, which keeps them, next to the
same poll and relaunch of all (benchmarks/downtime_rivals.py), with the boots, set-ups and checkpoints of
`benchmarks.downtime`.

Each job is a gang that trains in one zone with room for all, and loses one member, any of them, at a moment of its own.
Both rules meet the same training until then, the same newest checkpoint, and the same starts of instances by number.

    ours              the production runner, ledger and policy in a simulated world: one instance is requested, the
                      others wait until it is ready, and all trainers start again
    tear all down     a poll finds the loss; all members are ended, which takes no time here, and as many are rented and
                      set up. A cluster that has lost a node is launched again as a whole (SkyPilot's issue 3907)
    ..., packed       the same with a set-up cache like ours

A snapshot that was being sent counts for either rule if its lead is left: for ours also if it is durable when the loss
has been recorded, for a poll if it is when the loss is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np

from benchmarks.downtime_market import ON_DEMAND, SPOT, ZONES, Market, Setting
from benchmarks.downtime_ours import IDLE_S, job_spec
from benchmarks.downtime_rivals import POLL_AND_RELAUNCH, POLL_WITH_PACKS, Rule
from spotrun.account.timeline import Activity, spent, timeline
from spotrun.instance import EndedBy
from spotrun.run.state import Commit
from tests.support.world import CountedMarket, SimulatedWorld, Training
from tests.support.world.rng import Rng

SIZES = (2, 4, 8)
OURS = "ours"
RULES = {"tear all down": POLL_AND_RELAUNCH, "tear all down, packed": POLL_WITH_PACKS}
CAUSES = {
    "poll": Activity.DETECT,
    "capacity": Activity.WAIT,
    "boot": Activity.BOOT,
    "set-up": Activity.SETUP,
    "restore": Activity.RESTORE,
    "rework": Activity.REWORK,
}
LOST_S = (900.0, 1800.0)
"""Range of seconds at which the loss comes: all members have trained for some checkpoints."""
AFTERWARDS_S = 600.0
"""Seconds after the loss, longer than any start here takes."""
ROUNDING_S = 0.001
"""Tolerance in seconds: the account has whole microseconds."""
TARGET = 0.25
"""Maximum share of the seconds that tearing all down costs."""

Seconds = dict[str, float]
"""Seconds by cause."""


@dataclass(frozen=True)
class Loss:
    """The cost of one loss for the survivors under each rule, by cause."""

    by_rule: dict[str, Seconds]

    def ratio(self, rule: str) -> float:
        """Return ours as a share of the cost under `rule`."""
        return sum(self.by_rule[OURS].values()) / sum(self.by_rule[rule].values())


def loss(setting: Setting, size: int, seed: int) -> Loss:
    """Return the loss of one job."""
    places = CountedMarket([{ZONES[0]: 2 * size}], LOST_S[1], {ZONES[0]: SPOT[ZONES[0]]}, (ON_DEMAND,))
    market = Market(seed, setting, places)
    world = _GangWorld(market, places, size)
    lost_s = Rng(seed).between(LOST_S, "the loss")
    world.run(lost_s)
    durable_s = world.newest_durable_s()
    upload_goes_on = world.lose_a_member() > 0
    world.run(lost_s + AFTERWARDS_S)
    torn_down = {
        name: _torn_down(rule, market, size, lost_s, durable_s, upload_goes_on=upload_goes_on)
        for name, rule in RULES.items()
    }
    return Loss({OURS: world.lost()} | torn_down)


class _GangWorld(SimulatedWorld):
    """Our gang in one market; it trains for longer than the benchmark watches."""

    def __init__(self, market: Market, places: CountedMarket, size: int) -> None:
        setting = market.setting
        super().__init__(
            job_spec(setting.every_s).model_copy(update={"num_nodes": size}),
            Training(steps=10 * int(LOST_S[1]), epochs=1, stall_s=0.0, upload_s=setting.commit_s),
            places,
            seed=market.seed,
            timings=setting.timings,
            starts=market.start_s,
            idle_s=IDLE_S,
        )
        self._size = size

    def lose_a_member(self) -> int:
        """Take any member away, without a notice. Return its rank."""
        current = self.state.current
        assert current is not None, "the gang does not train"
        rank = int(Rng(self.seed).between((0.0, self._size), "who"))
        member = self.state.members_of(current)[rank]
        assert member.recorded is not None
        self.cloud.end(member.recorded.instance_id, EndedBy.CLOUD)
        return rank

    def newest_durable_s(self) -> float:
        """Return when the newest snapshot was taken that is durable now."""
        return self._taken_s(self.state.latest_commit())

    def lost(self) -> Seconds:
        """
        Return the seconds by the production account: everything between the last step that is kept and the next new
        one.
        """
        current = self.state.current
        assert current is not None, "the gang does not train again"
        resumed = current.trainers[-1].commit
        kept_s = self._taken_s(None if resumed is None else self.state.commit(resumed))
        life = timeline(self.state, self.clock.now())
        assert life[-1].kind is Activity.PRODUCTIVE, "the gang does not train again"
        lasted = spent(span for span in life[:-1] if self._seconds(span.start) >= kept_s - ROUNDING_S)
        found = {cause: lasted[kind].total_seconds() for cause, kind in CAUSES.items()}
        whole_s = self._seconds(life[-1].start) - kept_s
        assert abs(sum(found.values()) - whole_s) < 1.0, (found, whole_s)
        return found

    def _taken_s(self, commit: Commit | None) -> float:
        assert commit is not None, "nothing is durable"
        return self._seconds(commit.event.taken_at)

    def _seconds(self, at: datetime) -> float:
        return (at - self.state.created_at).total_seconds()


def _torn_down(
    rule: Rule, market: Market, size: int, lost_s: float, durable_s: float, *, upload_goes_on: bool
) -> Seconds:
    """
    Return the seconds of tearing all down: all members are requested when the loss is known, and train when the last of
    them is set up.

    The snapshot of `durable_s` was the newest durable one at the loss. A later one that was being sent counts if its
    upload goes on, as the lead is left, and ends before the loss is known.
    """
    setting = market.setting
    share = setting.unpack if rule.packs else 1.0
    starts = [market.start_s(size + number) for number in range(size)]
    boot_s, anew_s = max(starts, key=lambda start: start[0] + start[1] * share)
    known_s = rule.known_s(lost_s, market.seed % 8 * rule.poll_s / 8)
    later_s = durable_s + setting.every_s
    kept = upload_goes_on and later_s <= lost_s and later_s + setting.commit_s <= known_s
    return {
        "poll": known_s - lost_s,
        "capacity": 0.0,
        "boot": boot_s,
        "set-up": anew_s * share,
        "restore": max(setting.imports_s, setting.fetch_s),
        "rework": lost_s - (later_s if kept else durable_s),
    }


# -- many of them ------------------------------------------------------------------------------------------------------


def measure(setting: Setting, jobs: int, pool: Executor) -> dict[int, list[Loss]]:
    """Return the losses by the gang's size. No cloud recommends to move, so that each loss is the only change."""
    return {size: list(pool.map(partial(loss, setting.unwarned, size), range(jobs))) for size in SIZES}


def figures(found: Sequence[Loss]) -> dict[str, Seconds]:
    """
    Return mean seconds by rule and cause; for the other rules also the ratio, its quartiles over the jobs and its
    extremes.
    """
    rows: dict[str, Seconds] = {}
    for rule in (OURS, *RULES):
        sums = [sum(each.by_rule[rule].values()) for each in found]
        row = {cause: float(np.mean([each.by_rule[rule][cause] for each in found])) for cause in CAUSES}
        row |= {"mean": float(np.mean(sums)), "p95": float(np.quantile(sums, 0.95))}
        if rule != OURS:
            ratios = [each.ratio(rule) for each in found]
            shares = {"least": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "most": 1.0}
            row |= {name: float(np.quantile(ratios, share)) for name, share in shares.items()}
        rows[rule] = {name: round(value, 3) for name, value in row.items()}
    return rows


def show(by_size: dict[int, dict[str, Seconds]]) -> None:
    columns = [*CAUSES, "mean", "p95"]
    print(f"\n{'lost by the survivors of a gang':34}" + "".join(f"{name:>10}" for name in columns))
    for size, rows in by_size.items():
        for rule, row in rows.items():
            print(f"{f'{size} members, {rule}':34}" + "".join(f"{row[column]:10.1f}" for column in columns))
    for size, rows in by_size.items():
        for rule in RULES:
            row = rows[rule]
            spread = f"quartiles {row['q1']:.2f} to {row['q3']:.2f}, all {row['least']:.2f} to {row['most']:.2f}"
            print(f"{size} members: ours loses {row['median']:.2f} (median) of what '{rule}' loses; {spread}")
    met = [size for size, rows in by_size.items() if rows["tear all down"]["median"] <= TARGET]
    print(f"at most {TARGET:.0%} of tearing all down: {', '.join(f'{size} members' for size in met) or 'MISSED'}")
