"""Decides what a run does next: `decide(state, spec, world, now)`, a pure function (`spotrun.policy.decision`)."""

from spotrun.policy.actions import Action, Append, Execute, Terminate, Wait
from spotrun.policy.decision import decide, finished

__all__ = ["Action", "Append", "Execute", "Terminate", "Wait", "decide", "finished"]
