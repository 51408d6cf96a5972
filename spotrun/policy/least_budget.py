"""
Finds the smallest budget that lets a run make its first launch. Tries several budgets on the policy, without side
effects.
"""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

from msgspec.structs import replace

from spotrun.market.world import World
from spotrun.policy.actions import Append
from spotrun.policy.decision import decide
from spotrun.run.events import LaunchIntended
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec

CENT = Decimal("0.01")
DOUBLINGS_MAX = 40


def least_budget_usd(unborn: RunState, spec: RunSpec, world: World) -> Decimal | None:
    """
    Return the smallest budget with which the run makes its first launch in `world`, rounded up to the cent. Return None
    if no budget is enough.
    """

    def begins(budget_usd: Decimal) -> bool:
        state = replace(unborn, created=replace(unborn.created, budget_usd=budget_usd))
        actions = decide(state, spec, world, unborn.created_at)
        return any(isinstance(each, Append) and isinstance(each.event, LaunchIntended) for each in actions)

    enough: Decimal | None = next(filter(begins, (CENT * (1 << power) for power in range(DOUBLINGS_MAX))), None)
    if enough is None:
        return None
    little = enough / 2
    while enough - little > CENT:
        middle = ((enough + little) / 2).quantize(CENT, ROUND_UP)
        little, enough = (little, middle) if begins(middle) else (middle, enough)
    return enough
