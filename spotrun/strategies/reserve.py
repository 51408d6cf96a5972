"""
spotrun's own strategy. It keeps a reserve of slack, which is the time until the deadline minus the duration of the
remaining work. The more work is left, the larger the reserve. Zones are compared by the cost of an hour of progress.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation

RESERVE_SHARE = 0.15
"""
Seconds of slack to keep in reserve for each second of work left. benchmarks/tuning.py fitted all constants of this file
on half of the 2023 V100 trace.
"""
RESERVE_CHANGEOVERS = 1.5
SCARCITY = 2.0
MOVE_SHARE = 0.25
"""Fraction of the expected life of spot in a new zone during which the new zone is assumed to stay cheaper."""


class Reserve(msgspec.Struct, frozen=True):
    """
    Waits for spot while the slack exceeds the reserve, and then switches to on-demand. The remaining slack is needed
    for a later return to spot. Must be wrapped in a SafetyNet.

    With work left C, changeover d and margin m, the reserve is r = RESERVE_CHANGEOVERS * d + RESERVE_SHARE * C + m.
    Dynamic programming over a semi-Markov market gives a threshold of this form for the slack s. The threshold rises
    with the work left, but hardly depends on the time since the start, on the price, or on how long spot has been
    unavailable.

    In the rules below:

    - p is the spot price as a fraction of the on-demand price, so a second on spot saves 1 - p.
    - L is the expected life of the available spot.
    - v = SCARCITY (r / s)^2 is the value of a second of slack, as a multiple of what a second on spot saves. The value
      is high when s is below r.

        idle        spot if any is available; else wait while s >= r, else on-demand
        on demand   back to spot if  L (1 - p) > d (p + v (1 - p)):  spot saves more during its life than the changeover
                    costs. Each second of the changeover costs its price p, plus the slack that it uses
        on spot     to another zone if the price per second of progress, p (1 + d / L), is lower there, and the saving
                    over MOVE_SHARE * L exceeds the cost of the changeover, computed as above
    """

    def choose(self, situation: Situation) -> Choice:
        spot = _worth_their_toll(situation) if situation.tolls else situation.spot
        running = situation.running
        if running in spot and (len(spot) == 1 or not situation.settled):
            return running
        if not spot:
            return self._without_spot(situation)
        if running is not None and running in spot and not _may_pay_to_move(running, situation):
            return running
        best = min(spot, key=lambda zone: _price_of_progress(zone, situation)) if len(spot) > 1 else next(iter(spot))
        if running is None:
            return best
        if running == ON_DEMAND:
            return best if return_to(best, situation).pays else ON_DEMAND
        return best if best != running and _pays_to_move(running, best, situation) else running

    @staticmethod
    def _without_spot(situation: Situation) -> Choice:
        if situation.running == ON_DEMAND or situation.slack_s < reserve_s(situation):
            return ON_DEMAND
        return None


def _worth_their_toll(situation: Situation) -> dict[str, float]:
    """
    Return the prices of the spot zones in which an hour of progress, toll included, costs less than on demand. (The
    toll is the cost of sending the checkpoint to a zone outside the bucket's region.) The zone in which the job runs is
    always in the result, because its toll has already been paid.
    """
    return {
        zone: usd
        for zone, usd in situation.spot.items()
        if zone not in situation.tolls
        or zone == situation.running
        or _price_of_progress(zone, situation) < situation.job.on_demand_usd_per_hour
    }


def reserve_s(situation: Situation) -> float:
    """
    Return the slack, in seconds, below which waiting for spot costs more than it saves. It includes the safety net's
    margin, which is not available for waiting or changeovers.
    """
    job = situation.job
    return RESERVE_CHANGEOVERS * job.changeover_s + RESERVE_SHARE * situation.work_left_s + job.margin_s


def _life_s(zone: str, situation: Situation) -> float:
    horizon_s = situation.work_left_s + situation.job.changeover_s
    return situation.history.expected_life_s(zone, situation.elapsed_s, horizon_s)


def _price_of_progress(zone: str, situation: Situation) -> float:
    """
    Return the cost of an hour of progress in `zone`, in USD. The cost of one start (changeover and toll) is spread over
    the time that spot is expected to last there.
    """
    life_s = _life_s(zone, situation)
    usd = situation.spot[zone] * (1 + situation.job.changeover_s / life_s)
    return usd + situation.tolls[zone] * 3600 / life_s if zone in situation.tolls else usd


class Return(msgspec.Struct, frozen=True):
    """
    The figures that decide whether a job returns from on-demand to spot. `life_s` is how long spot is expected to last.
    `saved_s` is what spot saves in this time, and `cost_s` is the cost of the changeover, including the slack that it
    uses. Both are numbers of seconds on demand that cost as much.
    """

    life_s: float
    saved_s: float
    cost_s: float

    @property
    def pays(self) -> bool:
        return self.saved_s > self.cost_s


def return_to(zone: str, situation: Situation) -> Return:
    share = situation.spot[zone] / situation.job.on_demand_usd_per_hour
    life_s = _life_s(zone, situation)
    return Return(life_s, life_s * (1 - share), _changeover_cost_s(zone, situation))


def _changeover_cost_s(zone: str, situation: Situation) -> float:
    """
    Return the cost of a start in `zone`, including the slack that the changeover uses, and the toll. The result is the
    number of seconds on demand that cost as much.
    """
    on_demand = situation.job.on_demand_usd_per_hour
    share, toll_s = situation.spot[zone] / on_demand, situation.tolls.get(zone, 0.0) * 3600 / on_demand
    scarce = SCARCITY * (reserve_s(situation) / max(situation.slack_s, 1.0)) ** 2
    return situation.job.changeover_s * (share + scarce * max(0.0, 1 - share)) + toll_s


def _may_pay_to_move(here: str, situation: Situation) -> bool:
    """
    Return False if a move does not pay even to the cheapest other zone, and even if spot lasts forever there. This fast
    check often saves computing how long spot is expected to last in each zone.
    """
    cheapest = min(usd for zone, usd in situation.spot.items() if zone != here)
    gain = _price_of_progress(here, situation) - cheapest
    return gain * MOVE_SHARE * situation.work_left_s > situation.job.changeover_s * cheapest


def _pays_to_move(here: str, there: str, situation: Situation) -> bool:
    job = situation.job
    if situation.slack_s < 2 * job.changeover_s + job.tick_s + job.margin_s:
        return False
    believed_s = MOVE_SHARE * min(_life_s(there, situation), situation.work_left_s)
    gain = _price_of_progress(here, situation) - _price_of_progress(there, situation)
    return gain * believed_s > job.on_demand_usd_per_hour * _changeover_cost_s(there, situation)
