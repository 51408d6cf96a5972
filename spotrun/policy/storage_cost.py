"""Computes how much of a budget is reserved for storage and for requests to the store."""

from __future__ import annotations

from decimal import Decimal

from spotrun.intervals import COMMIT_GAP
from spotrun.policy.facts import Facts
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.run.state import RunState

OBJECTS_ASSUMED = 8
"""Number of objects in a checkpoint, assumed until the run has made a checkpoint."""
ENTRIES_PER_COMMIT = 3
"""
Number of ledger entries that are written for each commit: one for the commit, one that retires an older commit, and one
for all entries of other kinds.
"""


def storage_reserve(facts: Facts) -> Decimal:
    """
    Return the price of a month of storage for the checkpoints, the setup caches, and the files of the script. The
    number of checkpoints is one more than the job keeps, and all are assumed to be as large as the newest.
    """
    state = facts.state
    packed_bytes = sum(one.setup.packed_bytes for one in state.packed)
    file_bytes = max((outputs.event.stored_bytes for outputs in state.all_outputs()[-1:]), default=0)
    kept_gb = Decimal(_kept_bytes(facts) + packed_bytes + file_bytes) / 10**9
    return kept_gb * state.created.storage.usd_per_gb_month


def _kept_bytes(facts: Facts) -> int:
    latest, rule = facts.state.latest_commit(), facts.spec.checkpoint
    if latest is None:
        return 0
    by_rule = rule.keep_last + (0 if rule.keep_best is None else rule.keep_best.count)
    held = sum(1 for commit in facts.state.commits if commit.retired_at is None)
    return latest.event.size_bytes * (max(by_rule, held) + 1)


def requests_usd(state: RunState) -> Decimal:
    """Return an upper bound on the cost of the store's requests so far."""
    prices = state.created.storage
    puts = sum(commit.event.puts for commit in state.commits) + len(state.entry_times)
    puts += sum(outputs.event.objects for outputs in state.all_outputs())
    gets = sum(commit.event.objects for commit in state.commits) + sum(objects for _, objects in state.restores)
    return (prices.usd_per_1000_puts * puts + prices.usd_per_1000_gets * gets) / 1000


def requests_usd_per_hour(state: RunState) -> Decimal:
    """
    Return the maximum cost of the requests in an hour of training. This assumes that the training makes a commit every
    COMMIT_GAP, and that each object of a commit is written once and read twice.
    """
    prices, newest = state.created.storage, state.latest_commit()
    objects = OBJECTS_ASSUMED if newest is None else newest.event.objects
    puts, gets = objects + 1 + ENTRIES_PER_COMMIT, 2 * objects
    each = (prices.usd_per_1000_puts * puts + prices.usd_per_1000_gets * gets) / 1000
    return each * SECONDS_PER_HOUR / int(COMMIT_GAP.total_seconds())
