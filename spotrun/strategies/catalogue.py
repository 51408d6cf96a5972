"""The strategies that can be chosen by name."""

from __future__ import annotations

from spotrun.strategies.baselines import EagerFallback, Greedy, OnDemandOnly, SpotOnly, StickyFallback, UniformProgress
from spotrun.strategies.port import Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet

STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
    "sticky_fallback": SafetyNet(StickyFallback()),
    "eager_fallback": SafetyNet(EagerFallback()),
    "greedy": SafetyNet(Greedy()),
    "uniform_progress": SafetyNet(UniformProgress()),
    "uniform_progress_no_hysteresis": SafetyNet(UniformProgress(ahead=0.0)),
}
