"""Launching a local instance, with a supervisor beside it. Of the processes that try at the same time, one does it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import spotrun
from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.market import Market
from spotrun.clouds.local.records import CloudLog, Places, Record, RecordFolder
from spotrun.clouds.local.script import Script
from spotrun.clouds.local.settling import POLL_S, as_seen, was_cut_short
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import Instance, InstanceState, LaunchRequest
from spotrun.offering import CapacityType, Offering, Pool

START_WITHIN_S = 30.0
"""How long a supervisor may take to start, in system time; on an idle machine it takes 0.2 s."""
_OF_ONE_INSTANCE = (
    "SPOTRUN_INSTANCE_",
    "SPOTRUN_RUN",
    "SPOTRUN_LAUNCH",
    "SPOTRUN_AGENT_",
    "AWS_EC2_METADATA_SERVICE_",
)
"""The host does not hand down to an instance the variables whose names begin so."""


class Launcher:
    """What a driver launches with: its clock, its market, and the init process of its instances."""

    def __init__(
        self, places: Places, clock: ScaledClock, config: MarketConfig, init: Sequence[str], log: CloudLog
    ) -> None:
        self._places = places
        self._clock = clock
        self._config = config
        self._market = Market(config, clock.epoch)
        self._init = tuple(init)
        self._log = log

    def launch_or_join(self, folder: RecordFolder, request: LaunchRequest) -> Instance:
        """Launch. If another process is launching with the same token, return its instance."""
        self._places.create()
        folder.create()
        give_up_at = time.monotonic() + START_WITHIN_S
        while time.monotonic() < give_up_at:
            if (lock := folder.try_lock()) is not None:
                try:
                    return self._launch_locked(folder, request, lock)
                finally:
                    os.close(lock)
            record = folder.read()
            if record is not None and not was_cut_short(record):
                return self.launched_before(folder, record, request)
            time.sleep(POLL_S)
        raise CloudUnavailable(
            f"another process has been launching {folder.instance_id} for {START_WITHIN_S:.0f} s",
            hint=f"look at {folder.log_path}",
        )

    def _launch_locked(self, folder: RecordFolder, request: LaunchRequest, lock: int) -> Instance:
        record = folder.read()
        if record is None:
            record = self._accept(request, folder)
        elif not was_cut_short(record):
            return self.launched_before(folder, record, request)
        self._log_launch(record)
        self._start_supervisor(folder, lock)
        started = folder.read()
        assert started is not None
        return as_seen(folder, started)

    def _accept(self, request: LaunchRequest, folder: RecordFolder) -> Record:
        script = Script(self._places.market(request.run_uid), self._config.script, self._clock.epoch)
        script.advance(self._clock.now(), observer=None)
        script_seen = len(script.happened())
        self._check_capacity(request, script)
        record = Record(
            instance=Instance(
                instance_id=folder.instance_id,
                token=request.token,
                run_uid=request.run_uid,
                launch=request.launch,
                offering=request.offering,
                state=InstanceState.PENDING,
                launched_at=self._clock.now(),
            ),
            run_uri=request.run_uri,
            time_to_live_s=request.time_to_live.total_seconds(),
            clock_epoch=self._clock.epoch,
            time_scale=self._clock.scale,
            market=self._config,
            init=self._init,
            script_seen=script_seen,
        )
        self._places.disk(folder.instance_id).mkdir(exist_ok=True, mode=0o700)
        folder.write(record)
        return record

    def _check_capacity(self, request: LaunchRequest, script: Script) -> None:
        pool = request.offering.pool
        if not self._market.rents(pool):
            self._refuse(request, CloudError(f"the local cloud does not rent out {request.offering}"))
        if pool.capacity_type is CapacityType.SPOT and script.spot_is_gone():
            self._refuse(request, _no_capacity(request.offering))
        if not self._market.has_capacity(pool, self._clock.now()):
            self._refuse(request, _no_capacity(request.offering))

    def _refuse(self, request: LaunchRequest, error: CloudError) -> None:
        self._log.write(
            "refused",
            self._clock.now(),
            token=request.token,
            run_uid=request.run_uid,
            launch=request.launch,
            **_pool_facts(request.offering.pool),
            error=type(error).__name__,
        )
        raise error

    def _log_launch(self, record: Record) -> None:
        instance = record.instance
        self._log.write(
            "launched",
            instance.launched_at,
            instance_id=instance.instance_id,
            token=instance.token,
            run_uid=instance.run_uid,
            launch=instance.launch,
            **_pool_facts(instance.offering.pool),
        )

    def _start_supervisor(self, folder: RecordFolder, lock: int) -> None:
        """Start it, and wait until it has armed the time-to-live and taken over the lock."""
        ready, supervisors_end = os.pipe()
        try:
            with open(folder.log_path, "ab") as log:
                first = subprocess.Popen(
                    _supervisor_command(self._places.root, folder.instance_id, supervisors_end),
                    cwd=folder.path,
                    env=_host_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock, supervisors_end),
                    start_new_session=True,
                )
            os.close(supervisors_end)
            first.wait(START_WITHIN_S)
            readable, _, _ = select.select([ready], [], [], START_WITHIN_S)
            if not readable or os.read(ready, 1) == b"":
                raise CloudUnavailable(
                    f"the supervisor of {folder.instance_id} did not start", hint=f"look at {folder.log_path}"
                )
        finally:
            os.close(ready)

    def launched_before(self, folder: RecordFolder, record: Record, request: LaunchRequest) -> Instance:
        instance = record.instance
        if record.ended:
            raise LaunchTokenSpent(f"{instance.instance_id}, the instance of launch {request.launch}, is terminated")
        if instance.run_uid != request.run_uid or instance.offering.pool != request.offering.pool:
            raise CloudError(f"the launch token of {instance.instance_id} was used before, for another request")
        return as_seen(folder, record)


def _no_capacity(offering: Offering) -> InsufficientCapacity:
    return InsufficientCapacity(
        f"no {offering.capacity_type.in_words} capacity for {offering.instance_type} in {offering.zone}",
        hint="add a zone or type under resources, or set spot_policy: auto",
    )


def _pool_facts(pool: Pool) -> dict[str, str]:
    return {"zone": pool.zone, "instance_type": pool.instance_type, "capacity_type": str(pool.capacity_type)}


def _supervisor_command(root: Path, instance_id: str, ready: int) -> list[str]:
    return [sys.executable, "-P", "-m", "spotrun.clouds.local.supervisor", str(root), instance_id, str(ready)]


def _host_environment() -> dict[str, str]:
    """Our environment without what belongs to one instance: a local instance may use a local cloud itself."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OF_ONE_INSTANCE)}
    package_root = Path(spotrun.__file__).parent.parent
    if package_root.name not in ("site-packages", "dist-packages"):  # a checkout, which children have to find as well
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(package_root), *([known] if known else [])])
    return environment
