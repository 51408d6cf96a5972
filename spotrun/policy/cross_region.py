"""
What bytes between an instance and the bucket cost where they cross regions: expected, for the choice of a region; and
at their most, for a budget.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec

from spotrun.account.cross_region import data_gb, usd
from spotrun.intervals import COMMIT_GAP
from spotrun.offering import Offering
from spotrun.run import events as ev
from spotrun.run.billing import SECONDS_PER_HOUR, ZERO
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec

COMMITS_BESIDE = 2
"""Final ones need not keep their distance from the one before."""


class Transfer(msgspec.Struct, frozen=True):
    """In USD: for each start (data, and the checkpoint to go on from), and for the commits of an hour."""

    start_usd: float = 0.0
    usd_per_hour: float = 0.0


NO_TRANSFER = Transfer()


def transfer(created: ev.RunCreated, region: str, interval_s: float, restored: int, written: int) -> Transfer:
    """Of an instance in `region` that begins from so many bytes, and writes so many each `interval_s`."""
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    start_usd = read * data_gb(created) + usd(read, restored)
    return Transfer(float(start_usd), float(usd(write, written)) * SECONDS_PER_HOUR / interval_s)


class Most(msgspec.Struct, frozen=True):
    """In USD: for an instance, however short it lives, and for each hour that it does."""

    usd: Decimal = ZERO
    usd_per_hour: Decimal = ZERO

    def in_all(self, life: timedelta) -> Decimal:
        return self.usd + self.usd_per_hour * Decimal(life.total_seconds()) / SECONDS_PER_HOUR


def most(state: RunState, spec: RunSpec, region: str) -> Most:
    """What a budget keeps for the transfers of an instance in `region`: commits as often as they may be, all whole."""
    created, newest = state.created, state.latest_commit()
    if not created.storage.crosses(region):
        return Most()
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    size = 0 if newest is None else newest.event.size_bytes
    restores = 1 + spec.retry.max_restarts
    once = read * data_gb(created) + restores * usd(read, size) + COMMITS_BESIDE * usd(write, size)
    return Most(once, usd(write, size) * SECONDS_PER_HOUR / int(COMMIT_GAP.total_seconds()))


def reservable(offering: Offering, state: RunState) -> bool:
    """
    Whether a budget can say what `offering` will cost at most. What crosses regions has no bound before the size of a
    checkpoint is known; until then a run with a budget stays in its bucket's region.
    """
    known = state.created.budget_usd is None or state.latest_commit() is not None
    return known or not state.created.storage.crosses(offering.region)
