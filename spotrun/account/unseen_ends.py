"""Computes between which amounts a run's cost lies if no runner saw how some of its instances ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.instance import EndedBy
from spotrun.run.billing import ZERO, switched_off_at, until_switched_off
from spotrun.run.events import BillingRule
from spotrun.run.state import Launch, RunState, life_usd
from spotrun.units import count_of


class CostRange(NamedTuple):
    """
    The lowest and the highest possible cost of one instance, and the cost that the ledger counts. `may_be_free` is True
    if the cloud charges nothing for the machine, provided that it took the instance after the last sign of life.
    """

    least_usd: Decimal
    booked_usd: Decimal
    most_usd: Decimal
    may_be_free: bool


class UnseenEnds(NamedTuple):
    """
    The lowest and the highest possible cost of a run of which no runner saw how some `instances` ended. The cloud may
    charge nothing for `free` of them.
    """

    least_usd: Decimal
    most_usd: Decimal
    instances: int
    free: int


def cost_ranges(state: RunState) -> Iterator[CostRange]:
    """Yield the range of each instance whose end is only an estimate, which no bill has corrected so far."""
    for launch in state.launches.values():
        for index, member in enumerate(launch.members):
            if member.missed_at is not None:
                yield _cost_range(launch, index, state.created.billing)


def _cost_range(launch: Launch, index: int, rule: BillingRule) -> CostRange:
    """
    Return the range of one instance.

    It lived at least until its agent's last sign of life. Its machine ran at most until its time-to-live was over, and
    its disk existed at most until the first list without it. If no list and no agent ever showed an instance of the
    launch, there may have been none.
    """
    member = launch.members[index]
    gone, latest_end, missed_at = member.gone, launch.latest_end_of(index), member.missed_at
    assert gone is not None
    assert missed_at is not None
    booked_usd = launch.meter(rule, index).cost_until(gone.ended_at)
    if member.billed_from is None or latest_end is None:
        return CostRange(ZERO, booked_usd, life_usd(launch.intent, rule), may_be_free=False)
    alive_until = min(gone.ended_at, gone.stopped_at or member.billed_from)
    taken = launch.with_member(index, gone=replace(gone, ended_at=alive_until, ended_by=EndedBy.CLOUD))
    off_at = max(gone.ended_at, min(latest_end, missed_at))
    off = member.prices if switched_off_at(member.prices) else until_switched_off(member.prices, off_at)
    longest_at = max(missed_at, off_at)
    longest = launch.with_member(
        index, gone=replace(gone, ended_at=longest_at, ended_by=EndedBy.USER, prices=off if member.prices else ())
    )
    least = taken.meter(rule, index)
    may_be_free = not least.time_until(alive_until) and alive_until > member.billed_from
    return CostRange(
        least.cost_until(alive_until), booked_usd, longest.meter(rule, index).cost_until(longest_at), may_be_free
    )


def unseen_ends(state: RunState, cost_usd: Decimal) -> UnseenEnds | None:
    """Return the range in which the run's cost lies; None if a runner saw how each instance ended."""
    found = list(cost_ranges(state))
    if not found:
        return None
    rest_usd = cost_usd - sum((each.booked_usd for each in found), ZERO)
    return UnseenEnds(
        least_usd=rest_usd + sum((each.least_usd for each in found), ZERO),
        most_usd=rest_usd + sum((each.most_usd for each in found), ZERO),
        instances=len(found),
        free=sum(each.may_be_free for each in found),
    )


def in_words(found: UnseenEnds) -> str:
    least, most = found.least_usd, found.most_usd
    told = f"no runner saw the end of {count_of(found.instances, 'instance')}: the run cost ${least:.4f} to ${most:.4f}"
    free = count_of(found.free, "instance")
    early = f", and {free} may be free because the cloud took it early" if found.free else ""
    return f"{told}{early} (`spotrun bill --correct` enters the true ends)"
