"""
Costs of traffic between an instance and a bucket in another region: the expected cost, for the choice of a region; and
the maximum cost, for a budget.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec

from spotrun.account.cross_region import data_gb, usd
from spotrun.intervals import COMMIT_GAP
from spotrun.offering import Offering
from spotrun.policy.facts import Facts
from spotrun.policy.workload import commit_interval_s
from spotrun.run import events as ev
from spotrun.run.billing import SECONDS_PER_HOUR, ZERO

COMMITS_BESIDE = 2
"""Number of final commits, which may follow the previous commit without the usual gap."""


class Transfer(msgspec.Struct, frozen=True):
    """Traffic cost in USD: of each start (the data, and the checkpoint to resume from), and of an hour's commits."""

    start_usd: float = 0.0
    usd_per_hour: float = 0.0


NO_TRANSFER = Transfer()


def transfer(facts: Facts, region: str) -> Transfer:
    """
    Price the traffic of an instance in `region`, for checkpoints as large as the newest. Before the first checkpoint,
    only the data that the instance reads has a price.
    """
    created, newest = facts.state.created, facts.state.latest_commit()
    if not created.storage.charges(region):
        return NO_TRANSFER
    restored, written = (0, 0) if newest is None else (newest.event.size_bytes, newest.event.stored_bytes)
    return transfer_of(created, region, commit_interval_s(facts), restored, written)


def transfer_of(created: ev.RunCreated, region: str, interval_s: float, restored: int, written: int) -> Transfer:
    """Price an instance in `region` that reads `restored` bytes at its start and writes `written` each `interval_s`."""
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    start_usd = read * data_gb(created) + usd(read, restored)
    return Transfer(float(start_usd), float(usd(write, written)) * SECONDS_PER_HOUR / interval_s)


def usd_per_hour(facts: Facts, offering: Offering) -> float:
    """Return the price of an offering for all members of a gang, plus the cost of an hour's commits from its region."""
    return facts.size * float(offering.price_usd_per_hour) + transfer(facts, offering.region).usd_per_hour


class TransferLimit(msgspec.Struct, frozen=True):
    """Maximum USD for an instance, however short its life, and for each hour of its life."""

    usd: Decimal = ZERO
    usd_per_hour: Decimal = ZERO

    def over(self, life: timedelta) -> Decimal:
        return self.usd + self.usd_per_hour * Decimal(life.total_seconds()) / SECONDS_PER_HOUR


def transfer_limit(facts: Facts, region: str) -> TransferLimit:
    """
    Return the traffic cost that a budget reserves for an instance in `region`.

    The limit assumes that the instance commits as often as it may, and that each commit sends the whole state and as
    many bytes of the script's files as the largest commit so far. The maximum size of these files is added once.
    """
    created, newest = facts.state.created, facts.state.latest_commit()
    if not created.storage.charges(region):
        return TransferLimit()
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    size = 0 if newest is None else newest.event.size_bytes
    restores = 1 + facts.spec.retry.max_restarts
    once = read * data_gb(created) + restores * usd(read, size) + COMMITS_BESIDE * usd(write, size)
    looked_gb = facts.spec.outputs.max_gb if facts.spec.outputs.files else 0
    once += write * Decimal(str(max(looked_gb, facts.spec.checkpoint.files.max_gb)))  # sent once for both purposes
    sent = size + max((outputs.event.sent_bytes for outputs in facts.state.all_outputs()), default=0)
    return TransferLimit(once, usd(write, sent) * SECONDS_PER_HOUR / int(COMMIT_GAP.total_seconds()))


def reservable(facts: Facts, offering: Offering) -> bool:
    """
    Return whether the maximum cost of `offering` is known.

    Traffic between regions has no bound before the size of a checkpoint is known; until then a run with a budget stays
    in its bucket's region.
    """
    created = facts.state.created
    known = created.budget_usd is None or facts.state.latest_commit() is not None
    return known or not created.storage.crosses(offering.region)
