"""
Finds the pools that the run does not request for a while after a refusal. Such a pool *rests*. Each rest is returned
with its end and its reason.

- If a pool had no capacity, it rests for minutes, because this may soon change.
- If a quota was full, all pools of the quota whose instances need as much of it rest together. After each rest, the run
  requests one of them, the one whose last request is oldest, because one answer tells about all of them.
- If the account may not request an instance, the pool rests for minutes. If several pools are denied, the run requests
  them in turns in the same way, because they may have lost the same right.
- If the cloud rejected the request (in its response or when it started the instance), the pool rests longer, because
  such a problem usually lasts until the user changes something. Each further rejection makes the next rest longer, but
  the run never gives up a pool. If the pool's subnet, image or template has changed since then, the pool does not rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

import msgspec

from spotrun.clock import zone
from spotrun.market.world import affordable
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.facts import Facts, once
from spotrun.policy.launches import (
    NO_CAPACITY,
    STILLBORN_MAX,
    denied,
    final_in_a_row,
    is_final,
    never_asked,
    rejected,
    why_refused,
    words_of_refusal,
)
from spotrun.policy.patience import since_opened
from spotrun.policy.subnets import surrounded
from spotrun.policy.throughput import bound_kind, kind_of
from spotrun.run.events import Cause
from spotrun.run.reasons import in_brief
from spotrun.run.state import Launch, RunState

POOL_REST = timedelta(minutes=2)
"""The time for which a pool rests after it had no capacity, and the time between requests of pools that are denied."""
LASTING_REST, LASTING_REST_MAX = timedelta(minutes=10), timedelta(hours=1)
"""
The first rest and the longest rest of a pool in which the cloud has rejected a request. Each rest is twice as long as
the previous rest, up to the longest. The first is also the time between requests of pools whose quota is full.
"""


class Rest(msgspec.Struct, frozen=True):
    """
    A period in which a pool rests: the launch that the pool refused last, and the time for which the pool is not
    requested because of this refusal.
    """

    launch: Launch
    began_at: datetime
    until: datetime


def within_price(facts: Facts) -> list[Offering]:
    """
    Return the offerings that the job allows. Offerings that cost more than max_price are left out, except the user's
    own machine. With `checkpoint.exact: bits`, only offerings of the kind that made the first checkpoint are returned.
    """
    bound = bound_kind(facts)
    allowed = [found for found in facts.world.offerings if bound is None or kind_of(facts, found) == bound]
    own, limit = CapacityType.OWN, facts.spec.resources.max_price
    return [found for found in allowed if found.capacity_type is own or affordable(found, limit)]


def rests(facts: Facts, offering: Offering) -> bool:
    """
    Return True if the pool of `offering` rests now.

    If all pools of a capacity type have rejected a request, the reason may be a temporary fault, and no pool is left to
    try. So in this case, they rest only after a few more rejections.
    """
    rest = rest_of(facts, offering)
    if rest is None or not rejected(rest.launch):
        return rest is not None
    return is_certain(facts) or not all_refuse_for_good(facts, (offering.capacity_type,))


def rest_of(facts: Facts, offering: Offering) -> Rest | None:
    """Return the `Rest` of the offering's pool; None if the pool does not rest."""
    rest = _resting(facts).get(offering.pool)
    if rest is None or (rejected(rest.launch) and _would_be_another(facts, rest.launch, offering)):
        return None
    return rest


def is_certain(facts: Facts) -> bool:
    """
    Return True if the newest refusals cannot be a temporary fault: one request was denied, or enough in a row rejected.
    """
    in_a_row = list(final_in_a_row(reversed(since_opened(facts.state))))
    return len(in_a_row) >= STILLBORN_MAX or any(map(denied, in_a_row))


def all_refuse_for_good(facts: Facts, types: Collection[CapacityType]) -> bool:
    """
    Return True if every pool of these capacity types has rejected or denied the request that the run would send now.
    """
    wanted = [found for found in within_price(facts) if found.capacity_type in types]
    found = [rest_of(facts, each) for each in wanted]
    return bool(wanted) and all(rest is not None and is_final(rest.launch) for rest in found)


def no_spot_accepts(facts: Facts) -> bool:
    """
    Return True if it is useless to wait for spot: every spot pool has rejected or denied the request, and this cannot
    be a temporary fault.
    """
    return is_certain(facts) and all_refuse_for_good(facts, (CapacityType.SPOT,))


def zones_at_fault(facts: Facts) -> set[str]:
    """
    Return the zones in which a request was rejected. Requests for other instance types may fail there for the same
    reason.
    """
    return {pool.zone for pool, rest in _resting(facts).items() if rejected(rest.launch)}


def why_none(facts: Facts, capacity_type: CapacityType) -> str:
    """
    Explain why no pool of this capacity type can be requested now.

    If some pools rest for a reason other than missing capacity, say when the first of them will be requested again.
    """
    kind, scale = capacity_type.replace("_", "-"), facts.state.created.time_scale
    wanted = (found for found in within_price(facts) if found.capacity_type is capacity_type)
    found = [rest for rest in (rest_of(facts, each) for each in wanted) if rest is not None]
    lasting = [rest for rest in found if why_refused(rest.launch) != NO_CAPACITY]
    lacking = f"no {kind} capacity in any zone just now"
    if not lasting:
        return lacking
    first = min(lasting, key=lambda rest: rest.until)
    head = f"no {kind} pool may be requested just now" if len(lasting) == len(found) else lacking
    return f"{head}; {_refusal(first, scale)}"


def full_quota(state: RunState, now: datetime) -> str:
    """
    Return a phrase about the quota that was most recently full: the offering that was refused, and the time at which it
    will be requested again. Return "" if no quota is full.
    """
    full = [rest for rest in _refusals(state, now).values() if rest.launch.over_quota]
    return _refusal(max(full, key=lambda rest: rest.began_at), state.created.time_scale) if full else ""


def _refusal(rest: Rest, scale: float) -> str:
    launch, offering = rest.launch, str(rest.launch.intent.offering)
    detail = in_brief(words_of_refusal(launch), offering)
    words = f"{offering}, {why_refused(launch)}" + (f" ({detail})" if detail else "")
    return f"{words}: asked again at {rest.until:%H:%M:%S} {zone(scale)}"


@once
def _resting(facts: Facts) -> dict[Pool, Rest]:
    rests = _refusals(facts.state, facts.now) | dict(_denied_in_turns(facts)) | dict(_quotas_in_turns(facts))
    return {pool: rest for pool, rest in rests.items() if facts.now < rest.until}


def _denied_in_turns(facts: Facts) -> Iterator[tuple[Pool, Rest]]:
    """Yield the `Rest` of each pool whose newest request was denied. The run requests one of them after each rest."""
    found: dict[Pool, Launch] = {}
    for launch in since_opened(facts.state):
        found.pop(launch.intent.offering.pool, None)
        if denied(launch):
            found[launch.intent.offering.pool] = launch
    for number, pool in enumerate(found, 1):
        yield pool, _rest(next(reversed(found.values())), number * POOL_REST)


def _quotas_in_turns(facts: Facts) -> Iterator[tuple[Pool, Rest]]:
    """
    Yield the `Rest` of each pool whose quota is full. The run requests one of them after each rest, those first that it
    has never requested.

    An instance with fewer vCPUs may still fit into the quota, so its pool rests only after a refusal of its own.
    """
    full: dict[str, dict[Pool, Launch]] = {}
    for launch in since_opened(facts.state):
        offering = launch.intent.offering
        if launch.over_quota and offering.quota:
            refused = full.setdefault(offering.quota, {})
            refused.pop(offering.pool, None)
            refused[offering.pool] = launch
        elif offering.quota and launch.closed is None:
            full.pop(offering.quota, None)
    for quota, refused in full.items():
        offered = [found for found in within_price(facts) if found.quota == quota]
        pools = {found.pool for found in offered}
        turns = {pool: turn for turn, pool in enumerate((pool for pool in refused if pool in pools), 1)}
        unasked = len(turns) < len(pools)
        for found in offered:
            as_large = [each for each in refused.values() if each.intent.offering.cpus <= found.cpus]
            turn = turns[found.pool] + unasked if found.pool in turns else 1
            if as_large:
                yield found.pool, _rest(as_large[-1], turn * LASTING_REST)


def _refusals(state: RunState, now: datetime) -> dict[Pool, Rest]:
    """
    Return the `Rest` of each pool that rests now. A pool no longer rests if an instance has started in it since the
    refusal.
    """
    found: dict[Pool, Rest] = {}
    for launch in since_opened(state):
        pool = launch.intent.offering.pool
        if launch.taken_before_it_ran:
            found[pool] = _rest(launch, POOL_REST)
        elif launch.over_quota:
            found[pool] = _rest(launch, LASTING_REST)
        elif rejected(launch):
            found[pool] = _lasting_rest(launch, found.get(pool))
        elif launch.closed is None:
            found.pop(pool, None)
        elif launch.closed.cause is Cause.CAPACITY and not never_asked(launch):
            found[pool] = _rest(launch, POOL_REST)
    return {pool: rest for pool, rest in found.items() if now < rest.until}


def _lasting_rest(launch: Launch, before: Rest | None) -> Rest:
    """
    Return the `Rest` that begins when a pool rejects `launch`. `before` is the pool's previous rest; None if there was
    none. If it followed a rejection too, and `launch` came after it had ended, the new rest is twice as long.
    """
    if before is None or not rejected(before.launch):
        return _rest(launch, LASTING_REST)
    lasted = before.until - before.began_at
    rest = _rest(launch, lasted)
    return rest if rest.began_at < before.until else _rest(launch, min(2 * lasted, LASTING_REST_MAX))


def _rest(launch: Launch, lasts: timedelta) -> Rest:
    began_at = launch.closed_at
    if began_at is None:
        assert launch.gone is not None
        began_at = launch.gone.ended_at
    return Rest(launch, began_at, began_at + lasts)


def _would_be_another(facts: Facts, launch: Launch, offering: Offering) -> bool:
    """
    Return True if a request for `offering` would now use a different image, subnet or template than the rejected
    `launch`.
    """
    before, now = launch.intent.offering, surrounded(facts.state, offering)
    return (before.image, before.subnet, before.launch_template) != (now.image, now.subnet, now.launch_template)
