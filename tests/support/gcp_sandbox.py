"""
A sandbox on a project of Google Cloud that is on this machine: Compute Engine with instances that execute their
startup-script, and a bucket behind a gate that knows each instance by its token.

    with gcp_sandbox(folder, monkeypatch, gs) as sandbox: ...
"""

from __future__ import annotations

import base64
import contextlib
import re
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
from tests.support.gce_catalog import PROJECT
from tests.support.gce_launches import without_a_price_list
from tests.support.gce_libcloud import libcloud_on
from tests.support.gce_machines import GceMachines
from tests.support.google_server import GoogleServer
from tests.support.image_without_torch import ImageWithoutTorch
from tests.support.object_stores import RunningServer
from tests.support.sandbox import Sandbox

SCALE = 15
TYPE, REGION = "g2-standard-4", "us-central1"
SECRET = "cNry-7vB2mK9-pL4"
"""Of each project: the value of the secret spotrun-WORD."""


@contextlib.contextmanager
def gcp_sandbox(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gs: RunningServer, of: type[GoogleServer] = GoogleServer
) -> Iterator[Gcp]:
    """A project of its own. Nothing of it is left running, and nobody has asked what Google's description forbids."""
    clock = ScaledClock(datetime.now(UTC), SCALE)
    google = of(clock, gs.endpoint)
    with contextlib.closing(GceMachines(clock, google.token_of)) as machines:
        google.project.machines = machines
        with google, contextlib.closing(Gcp(folder, monkeypatch, google, machines, gs)) as sandbox:
            yield sandbox


class Gcp(Sandbox):
    """A project with a bucket, and a shell to call spotrun from."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        google: GoogleServer,
        machines: GceMachines,
        gs: RunningServer,
    ) -> None:
        super().__init__(folder, monkeypatch, f"{gs.new_prefix()}/runs")
        self.google, self.project = google, google.project
        self._monkeypatch = monkeypatch
        self.machines = machines.disks
        self.extended_notice = True
        """Whether the project may ask for a notice of two minutes."""
        machines.powers_off = self.project.power_off
        self.project.accounts = google.iam.accounts.keys()  # as IAM has them
        google.iam.secrets.put("spotrun-WORD", SECRET)
        google.hook = self._before
        without_a_price_list(google)
        google.reach(monkeypatch, folder)
        for name, text in google.project.clock.environment().items():
            monkeypatch.setenv(name, text)
        (folder / "home").mkdir()
        image = ImageWithoutTorch(folder)
        machines.starts = lambda script: image.lock(open_store(_run_of(script)))
        machines.image = {
            **image.environment,
            "API_ENDPOINT_OVERRIDE": google.url,
            OVERRIDE: google.url,
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder / "home"),
        }

    def job_on_gcp(self, name: str, arguments: str, *, program: str = "quick.py", extra: str = "") -> Path:
        rest = (
            "secrets: [WORD]\nresources: {cloud: gcp}\n"
            "setup: date +%s%N > $VIRTUAL_ENV/made-at\n"
            f"gcp: {{regions: [{REGION}], instance_types: [{TYPE}]}}\n"
            "policy: {on_demand_after: 150s, return_to_spot: true, return_cooldown: 60s}\n"
        )
        return self.job_file(name, rest + extra, arguments, program)

    def account(self, name: str) -> str:
        """The address of the service account of a run."""
        return account_address(self.run(name).created.uid, PROJECT)

    def libcloud(self) -> Any:
        """A client that is not ours."""
        return libcloud_on(self.google, self.folder, self._monkeypatch)

    def _before(self, method: str, _: int) -> Refusal | None:
        if method != "compute.instances.insert" or self.extended_notice:
            return None
        asked = self.google.calls(method)[-1].body["scheduling"]
        if "preemptionNoticeDuration" not in asked:
            return None
        return invalid("scheduling.preemptionNoticeDuration", "120s", "It is not available in this project.")


def _run_of(script: str) -> str:
    (found,) = re.findall("^SPOTRUN_RUN_URI_BASE64=(.*)$", script, re.MULTILINE)
    return base64.b64decode(found).decode()
