"""
Two other rules in that market. Neither reads a notice: they request the replacement after the loss.

    poll and relaunch   SkyPilot's managed jobs: the controller checks the job every 15 s
                        (JOB_STATUS_CHECK_GAP_SECONDS, sky/jobs/utils.py); after a loss its default strategy,
                        EAGER_NEXT_REGION (sky/jobs/recovery_strategy.py), launches in the other regions first, then in
                        the other zones of the old one, and where there is nothing waits 60 s to try again
                        (RETRY_INIT_GAP_SECONDS). Read at github.com/skypilot-org/skypilot.
    scaling group       a group of one on EC2: an instance that is gone is replaced to keep the desired capacity
                        (docs.aws.amazon.com/autoscaling/ec2/userguide/healthcheck.html). How soon it notices is not
                        published; here it does at once, which no group does, and asks the cheapest zone first.

Both have the checkpoints of ours, as often and as soon durable; to end the old instance, and to try a zone in vain,
costs them no time. Both run the set-up on each instance again: a managed job's recovery launches its whole task again
on a new cluster, `setup` included, unless that is in a pool of workers that stay up. The remaining differences from
ours are the rule and the set-up cache (spotrun/folder/setup_cache.py). To tell these apart, the first rule is run once
more with a cache like ours, as a user has it who bakes a machine image for each set-up. The image is made in no time
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil, floor

from benchmarks.downtime_market import REGION_OF, ZONES, Loss, Market
from spotrun.account.timeline import Activity, Span

LAUNCHED_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rule:
    """
    A rule. `poll_s` passes between two checks of the job, 0 if its end is known at once. `packs`: a set-up that was
    done once is unpacked on later instances, as in ours.
    """

    name: str
    poll_s: float
    retry_s: float
    elsewhere_first: bool
    packs: bool = False

    def known_s(self, lost_s: float, phase_s: float) -> float:
        """Return when a loss is noticed. Checks fall on `phase_s` and every `poll_s` from there."""
        return phase_s + self.poll_s * ceil((lost_s - phase_s) / self.poll_s) if self.poll_s else lost_s

    def zone(self, market: Market, now_s: float, lost: str | None) -> str | None:
        """Return the first zone, in the rule's order, that has an instance now; None if there is none."""
        return next((zone for zone in self._order(lost) if market.has(zone, now_s)), None)

    def _order(self, lost: str | None) -> list[str]:
        if lost is None or not self.elsewhere_first:
            return list(ZONES)
        return sorted(ZONES, key=lambda zone: (zone == lost, REGION_OF[zone] == REGION_OF[lost]))


POLL_AND_RELAUNCH = Rule("poll and relaunch", poll_s=15.0, retry_s=60.0, elsewhere_first=True)
POLL_WITH_PACKS = replace(POLL_AND_RELAUNCH, name="poll and relaunch, packed", packs=True)
SCALING_GROUP = Rule("scaling group", poll_s=0.0, retry_s=60.0, elsewhere_first=False)


def spans(rule: Rule, market: Market) -> tuple[Span, ...]:
    """Return the activity of each instant until the horizon."""
    return tuple(_cut(_life(rule, market), market.setting.horizon_s))


Piece = tuple[Activity, float]
"""The activity, and its end in seconds since the launch."""


def _life(rule: Rule, market: Market) -> Iterator[Piece]:
    phase_s, now_s, lost, saved, packed = market.seed % 8 * rule.poll_s / 8, 0.0, None, False, False
    for ordinal in count():
        while (zone := rule.zone(market, now_s, lost)) is None:
            now_s += rule.retry_s
            yield Activity.WAIT, now_s
        loss = market.loss_after(zone, now_s)
        for kind, until_s in _start(market, ordinal, now_s, saved, packed):
            now_s = _until(until_s, loss)
            yield kind, now_s
        if loss is None:
            yield Activity.PRODUCTIVE, market.setting.horizon_s
            return
        if now_s < loss.at_s:
            packed = rule.packs
            saved = saved or loss.at_s >= now_s + market.setting.commit_s
            yield Activity.PRODUCTIVE, _kept_until_s(market, now_s, loss.at_s)
            yield Activity.REWORK, loss.at_s
        now_s, lost = rule.known_s(loss.at_s, phase_s), zone
        yield Activity.DETECT, now_s


def _start(market: Market, ordinal: int, now_s: float, saved: bool, packed: bool) -> Iterator[Piece]:
    boot_s, anew_s = market.start_s(ordinal)
    setup_s = anew_s * market.setting.unpack if packed else anew_s
    restore_s = market.setting.imports_s if not saved else max(market.setting.imports_s, market.setting.fetch_s)
    yield Activity.BOOT, now_s + boot_s
    yield Activity.SETUP, now_s + boot_s + setup_s
    yield Activity.RESTORE, now_s + boot_s + setup_s + restore_s


def _until(moment_s: float, loss: Loss | None) -> float:
    return moment_s if loss is None else min(moment_s, loss.at_s)


def _kept_until_s(market: Market, began_s: float, lost_s: float) -> float:
    """
    Return the time until which training is kept: that of the newest snapshot that was durable in time. The first is
    taken at once.
    """
    setting = market.setting
    durable = floor((lost_s - began_s - setting.commit_s) / setting.every_s)
    return began_s + max(0, durable) * setting.every_s


def _cut(pieces: Iterator[Piece], horizon_s: float) -> Iterator[Span]:
    start_s = 0.0
    for kind, until_s in pieces:
        end_s = min(until_s, horizon_s)
        if end_s > start_s:
            yield Span(kind, *(LAUNCHED_AT + timedelta(seconds=moment_s) for moment_s in (start_s, end_s)))
            start_s = end_s
        if until_s >= horizon_s:
            return
