"""
Decides what a run does next: `decide(state, spec, world, now)` (see `spotrun.policy.decision`), a function without side
effects.
"""

from spotrun.policy.actions import Action, Append, Execute, Terminate, Wait
from spotrun.policy.decision import decide, finished

__all__ = ["Action", "Append", "Execute", "Terminate", "Wait", "decide", "finished"]
