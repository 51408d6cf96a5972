"""
Computes the cost of traffic between an instance and a bucket in another region. The expected cost is used to choose a
region; the maximum cost is reserved in the budget.
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
"""
Number of commits that are counted in addition to the commits at regular intervals, because a final commit may come
directly after a regular one.
"""


class Transfer(msgspec.Struct, frozen=True):
    """
    The cost of an instance's traffic, in USD. `start_usd` is paid once, for the data and the checkpoint that the
    instance reads at its start. `usd_per_hour` is paid for its commits.
    """

    start_usd: float = 0.0
    usd_per_hour: float = 0.0


NO_TRANSFER = Transfer()


def transfer(facts: Facts, region: str) -> Transfer:
    """
    Return the expected traffic cost of an instance in `region`, if all checkpoints are as large as the newest.

    Before the first checkpoint, the size is unknown, and only the data that the instance reads is counted.
    """
    created, newest = facts.state.created, facts.state.latest_commit()
    if not created.storage.charges(region):
        return NO_TRANSFER
    restored, written = (0, 0) if newest is None else (newest.event.size_bytes, newest.event.stored_bytes)
    return transfer_of(created, region, commit_interval_s(facts), restored, written)


def transfer_of(created: ev.RunCreated, region: str, interval_s: float, restored: int, written: int) -> Transfer:
    """
    Return the traffic cost of an instance in `region` that reads `restored` bytes at its start, and writes `written`
    bytes every `interval_s`.
    """
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    start_usd = read * data_gb(created) + usd(read, restored)
    return Transfer(float(start_usd), float(usd(write, written)) * SECONDS_PER_HOUR / interval_s)


def usd_per_hour(facts: Facts, offering: Offering) -> float:
    """
    Return the price of an hour on `offering`, for all instances that train together, plus the traffic cost of an hour's
    commits.
    """
    return facts.size * float(offering.price_usd_per_hour) + transfer(facts, offering.region).usd_per_hour


class TransferLimit(msgspec.Struct, frozen=True):
    """
    The maximum cost of an instance's traffic: a fixed amount (`usd`), and an amount for each hour that the instance
    lives.
    """

    usd: Decimal = ZERO
    usd_per_hour: Decimal = ZERO

    def over(self, life: timedelta) -> Decimal:
        return self.usd + self.usd_per_hour * Decimal(life.total_seconds()) / SECONDS_PER_HOUR


def transfer_limit(facts: Facts, region: str) -> TransferLimit:
    """
    Return the maximum traffic cost of an instance in `region`, which a budget reserves.

    To find the maximum, the instance is assumed to commit as often as it is allowed to. Each commit is assumed to send
    the whole state, and as many bytes of the script's files as the largest commit so far. The cost of sending the
    script's files once, at their maximum size, is added.
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
    Return True if the maximum cost of `offering` is known, so that a budget can reserve it.

    Before a run's first checkpoint, the size of its checkpoints is unknown, and traffic to a bucket in another region
    could cost any amount. So until then, a run with a budget uses only its bucket's region.
    """
    created = facts.state.created
    known = created.budget_usd is None or facts.state.latest_commit() is not None
    return known or not created.storage.crosses(offering.region)
