"""A run on a project of Google Cloud that is plain objects."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.clock import Clock
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.clouds.guards import NoGuards
from spotrun.run.billing import gcp_rule
from tests.support.gce_answers import Failure
from tests.support.gce_launches import CONFIG
from tests.support.object_stores import BUCKET
from tests.support.plain_google import LISTS, LOGIN, PlainGoogle, Trouble
from tests.support.plain_run import BEGAN_AT, Fault, LivedClock, Outfit, PlainRun

STORE = f"gs://{BUCKET}/runs"


class PlainGcpRun(PlainRun):
    provider = "Google"
    first_looks = frozenset({*LISTS, LOGIN})
    launch_call, end_call = "compute.instances.insert", "compute.instances.delete"
    needed_to_end = first_looks | {end_call}
    """What has switched itself off is still there, with its disk."""
    launches_per_s = 2.0

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ahead: timedelta | None = None,
        spot_policy: str = "auto",
        config: GcpConfig = CONFIG,
    ) -> None:
        clock = LivedClock(BEGAN_AT)
        self.google = PlainGoogle(clock)
        self.google.reach(monkeypatch)
        self._config = config
        billing = gcp_rule(config.volume_gib, config.regions)
        super().__init__(clock, self.google, "gcp", STORE, billing, ahead, spot_policy)

    def outfit(self, clock: Clock) -> Outfit:
        return Outfit(GcpDriver(self._config, clock), NoGuards(), RunAccounts(Google(clock), clock))

    def fails(self, call: str, error: Trouble, seconds: float) -> Fault:
        """An instance that is there although its launch has failed runs by the time that its operation says so."""
        if isinstance(error, Failure) and error.keeps:
            self.google.project.timings.boot = timedelta()
        fault = Fault(self.clock, call, seconds)
        self.google.fault = lambda asked: error if fault.holds(asked) else None
        return fault
