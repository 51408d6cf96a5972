"""Decides, as a pure function, what to do next: `decide(state, spec, world, now)` (see `spotrun.policy.decision`)."""

from spotrun.policy.actions import Action, Append, Execute, Terminate, Wait
from spotrun.policy.decision import decide, finished

__all__ = ["Action", "Append", "Execute", "Terminate", "Wait", "decide", "finished"]
