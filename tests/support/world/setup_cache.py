"""The set-up cache of a simulated world, as spotrun/folder/setup_cache.py is for a real run."""

from __future__ import annotations

from datetime import datetime

from tests.support.world.cloud import SimulatedCloud


class SimulatedSetupCache:
    """Which of the instances that have set up again lived until the result was stored."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._cloud = cloud
        self._stored_at: dict[str, datetime] = {}

    def add(self, instance_id: str, stored_at: datetime) -> None:
        """This instance sets up, and stores the result at `stored_at` if it lives until then."""
        self._stored_at[instance_id] = stored_at

    def one_by(self, now: datetime) -> bool:
        """Whether any set-up is stored by `now`."""
        return any(
            stored_at <= (self._cloud.seen(instance_id).ended_at or now)
            for instance_id, stored_at in self._stored_at.items()
        )
