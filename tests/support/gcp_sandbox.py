"""
A sandbox on a project of Google Cloud that is on this machine: Compute Engine with instances that execute their
startup-script, IAM, and a bucket whose gate knows each of them by its token.

    with gcp_sandbox(folder, monkeypatch, gs) as sandbox: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.gcp.config import account_address
from spotrun.secrets.secret_manager import OVERRIDE
from spotrun.store.opening import open_store
from tests.support.gce_answers import Refusal, invalid
from tests.support.gce_libcloud import libcloud_on
from tests.support.gce_logins import RUNNER
from tests.support.gce_machines import GceMachines
from tests.support.gce_server import GceServer
from tests.support.gcp_gate import RUNNERS_TOKEN, Gate, gate_before
from tests.support.gcp_project import PROJECT
from tests.support.image_without_torch import ImageWithoutTorch
from tests.support.object_stores import RunningServer
from tests.support.sandbox import Sandbox

SCALE = 15
TYPE, REGION = "g2-standard-4", "us-central1"
SECRET = "cNry-7vB2mK9-pL4"
"""Of each project: the value of the secret spotrun-WORD."""
NO_CATALOG = Refusal(503, "backendError", "down")
"""Of prices: the shipped ones hold."""


@contextlib.contextmanager
def gcp_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch, gs: RunningServer) -> Iterator[Gcp]:
    """A project of its own. Nothing of it is left running, and nobody has asked what Google's description forbids."""
    clock = ScaledClock(datetime.now(UTC), SCALE)
    with (
        gate_before(gs.endpoint) as gate,
        contextlib.closing(GceMachines(clock, gate.token_of)) as machines,
        GceServer(clock, machines) as gce,
        contextlib.closing(Gcp(folder, monkeypatch, gce, machines, gate, gs)) as sandbox,
    ):
        yield sandbox
    assert gce.faults == []


class Gcp(Sandbox):
    """A project with a bucket, and a shell to call spotrun from."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        gce: GceServer,
        machines: GceMachines,
        gate: Gate,
        gs: RunningServer,
    ) -> None:
        super().__init__(folder, monkeypatch, f"{gs.new_prefix()}/runs")
        self.gce, self.gate, self.project = gce, gate, gce.project
        self._monkeypatch = monkeypatch
        self.machines = machines.disks
        self.extended_notice = True
        """Whether the project may ask for a notice of two minutes."""
        machines.powers_off = self.project.power_off
        self.project.accounts = gate.project.accounts.keys()  # as IAM has them
        gate.project.secrets.put("spotrun-WORD", SECRET)
        gce.logins.tokens[RUNNERS_TOKEN] = RUNNER
        gce.hook = self._before
        gce.fail("cloudbilling.services.skus.list", NO_CATALOG, times=None)
        gate.reach(monkeypatch, folder)
        for name, text in {
            **gce.environment,
            **gce.project.clock.environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING": f"{gce.url}/",
            "API_ENDPOINT_OVERRIDE": gate.endpoint,
        }.items():
            monkeypatch.setenv(name, text)
        (folder / "home").mkdir()
        self._image = ImageWithoutTorch(folder)
        machines.starts = lambda _: self._image.lock(open_store(self.run("stormy").uri))
        machines.image = {
            **self._image.environment,
            "API_ENDPOINT_OVERRIDE": gate.endpoint,
            OVERRIDE: gate.endpoint,
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder / "home"),
        }

    def job_on_gcp(self, name: str, arguments: str, *, program: str = "quick.py", extra: str = "") -> Path:
        rest = (
            "secrets: [WORD]\nresources: {cloud: gcp}\n"
            "setup: date +%s%N > $VIRTUAL_ENV/made-at\n"
            f"gcp: {{regions: [{REGION}], instance_types: [{TYPE}]}}\n"
            "policy: {on_demand_after: 90s, return_to_spot: true, return_cooldown: 60s}\n"
        )
        return self.job_file(name, rest + extra, arguments, program)

    def account(self, name: str) -> str:
        """The address of the service account of a run."""
        return account_address(self.run(name).created.uid, PROJECT)

    def libcloud(self) -> Any:
        """A client that is not ours."""
        return libcloud_on(self.gce, self.folder, self._monkeypatch)

    def _before(self, method: str, _: int) -> Refusal | None:
        if method != "compute.instances.insert" or self.extended_notice:
            return None
        asked = self.gce.calls(method)[-1].body["scheduling"]
        if "preemptionNoticeDuration" not in asked:
            return None
        return invalid("scheduling.preemptionNoticeDuration", "120s", "It is not available in this project.")
