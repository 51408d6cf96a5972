"""Local clouds for tests. Each has a folder of its own, and must leave no process when its test is over."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.local import processes
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver
from spotrun.instance import Instance, InstanceState, LaunchRequest
from spotrun.offering import CapacityType
from spotrun.proc import ProcessMark
from tests.support.eventually import eventually
from tests.support.launch_requests import requested

MARK_VARIABLE = "SPOTRUN_TEST_MARK"
SLEEP = ("sleep", "1000")
RUN = "0123456789"

LAUNCHER = """
import sys, msgspec
from datetime import datetime
from pathlib import Path
from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver
from spotrun.instance import LaunchRequest
root, epoch, scale, request = sys.argv[1:]
clock = ScaledClock(datetime.fromisoformat(epoch), float(scale))
cloud = LocalDriver(Path(root), clock, MarketConfig(boot_s=3), init=["sleep", "1000"])
print(cloud.launch(msgspec.json.decode(request, type=LaunchRequest)).instance_id, flush=True)
sys.stdin.read()
"""


class Bench:
    """A cloud's root folder and clock; `cloud` makes drivers. All processes have `mark` in their environment."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, scale: float = 60.0) -> None:
        self.root = root
        self.clock = ScaledClock(datetime.now(UTC), scale)
        self.mark = uuid.uuid4().hex
        monkeypatch.setenv(MARK_VARIABLE, self.mark)
        self._tokens = 0

    def cloud(self, *, init: Sequence[str] = SLEEP, boot_s: float = 3.0, **market: object) -> LocalDriver:
        return LocalDriver(self.root, self.clock, MarketConfig(boot_s=boot_s, **market), init=init)

    def request(
        self,
        cloud: LocalDriver,
        capacity_type: CapacityType = CapacityType.SPOT,
        time_to_live: timedelta = timedelta(hours=5),
        token: str | None = None,
    ) -> LaunchRequest:
        self._tokens += 1
        offering = next(each for each in cloud.offerings() if each.capacity_type is capacity_type)
        more = {"run_uri": f"{self.root}/run", "time_to_live": time_to_live, **({"token": token} if token else {})}
        return requested(offering, self._tokens, RUN, **more)

    def running(
        self, cloud: LocalDriver, capacity_type: CapacityType = CapacityType.SPOT, **request: object
    ) -> Instance:
        """A launched instance whose init process has been started."""
        instance = cloud.launch(self.request(cloud, capacity_type, **request))
        return until(cloud, instance, InstanceState.RUNNING)

    def processes(self) -> list[ProcessMark]:
        return processes.carrying(MARK_VARIABLE, self.mark)

    def close(self) -> None:
        cloud = self.cloud()
        for instance in cloud.instances():
            cloud.terminate(instance.instance_id)
        eventually(lambda: not self.processes())


def until(cloud: LocalDriver, instance: Instance, state: InstanceState, within_s: float = 15.0) -> Instance:
    def reached() -> Instance | None:
        seen = cloud.describe(instance.instance_id)
        return seen if seen is not None and seen.state is state else None

    found = eventually(reached, within_s)
    assert found is not None
    return found


def launcher(bench: Bench, request: object) -> subprocess.Popen[str]:
    """Another process that launches, prints the instance id, and stays."""
    arguments = [
        str(bench.root),
        bench.clock.epoch.isoformat(),
        str(bench.clock.scale),
        msgspec.json.encode(request).decode(),
    ]
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
