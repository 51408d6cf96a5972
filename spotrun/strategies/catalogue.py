"""The strategies that a job can be run by, by name."""

from __future__ import annotations

from spotrun.strategies.fixed import OnDemandOnly, SpotOnly
from spotrun.strategies.port import Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet

STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
}
