"""
Launches a local instance and its supervisor. If several processes send the same launch request at the same time, only
one of them launches an instance, and all of them get that instance.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import spotrun
from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.market import Market
from spotrun.clouds.local.members import ALL, MEMBERS_NET, NONE
from spotrun.clouds.local.records import POLL_S, CloudLog, CloudPaths, Record, RecordFolder
from spotrun.clouds.local.script import Script
from spotrun.clouds.local.settling import as_seen, settled, was_cut_short
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import Instance, InstanceState, LaunchRequest
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.units import count_of

START_WITHIN_S = 30.0
"""Maximum seconds of system time for a supervisor to start. On an idle machine the start takes 0.2 s."""
_OF_ONE_INSTANCE = (
    "SPOTRUN_INSTANCE_",
    "SPOTRUN_RUN",
    "SPOTRUN_LAUNCH",
    "SPOTRUN_MEMBER",
    "SPOTRUN_AGENT_",
    "AWS_EC2_METADATA_SERVICE_",
)
"""Prefixes of environment variables that an instance does not inherit from this process."""


class Launcher:
    def __init__(
        self, places: CloudPaths, clock: ScaledClock, config: MarketConfig, init: Sequence[str], log: CloudLog
    ) -> None:
        self._places = places
        self._clock = clock
        self._config = config
        self._market = Market(config, clock.epoch)
        self._init = tuple(init)
        self._log = log

    def launch_members(self, folders: Sequence[RecordFolder], request: LaunchRequest) -> Instance:
        """Launch all members or none. A repeated call completes a launch that another process began."""
        self._places.create()
        first = folders[0]
        if first.word() is None:
            self._accept_members(folders, request)
            try:
                for folder in folders:
                    self.launch_or_join(folder, request)
            except LaunchTokenSpent:  # a member ended before all had started
                first.agree(NONE)
            else:
                first.agree(ALL)
        return self._members_before(folders, request)

    def _accept_members(self, folders: Sequence[RecordFolder], request: LaunchRequest) -> None:
        """
        Check that there is capacity for all members, then write one record for each member. The first member's record
        is written last: a process that finds this record knows that all the records exist.
        """
        with self._places.deciding(START_WITHIN_S):
            if folders[0].read() is not None:
                return
            script_seen = self._script_seen(request)
            net = self._free_net(request)
            for folder in folders:
                folder.create()
            for member, folder in reversed([*enumerate(folders)]):
                self._write_accepted(request, folder, script_seen, member, f"{MEMBERS_NET}.{net}.{member}")

    def _members_before(self, folders: Sequence[RecordFolder], request: LaunchRequest) -> Instance:
        """
        Return the first member that an earlier call launched with the same token. It may have ended, but at least one
        member of that launch still runs.

        Raises:
            LaunchTokenSpent: all members have ended, or the launch was given up.
        """
        records = [settled(folder, self._log) for folder in folders]
        first = records[0]
        if first is not None:
            _require_same(first, request)
        if first is None or folders[0].word() == NONE or all(record is None or record.ended for record in records):
            raise LaunchTokenSpent(f"the members of launch {request.launch} are terminated")
        return as_seen(folders[0], first)

    def _free_net(self, request: LaunchRequest) -> int:
        """
        Return the third octet of the members' IPv4 addresses (the first two are `MEMBERS_NET`): a number that no other
        running launch uses.
        """
        taken = {record.instance.address.split(".")[2] for record in self._living() if record.instance.address}
        nets = ((request.launch + away) % 256 for away in range(256))
        net = next((net for net in nets if str(net) not in taken), None)
        if net is None:
            self._refuse(request, _no_capacity(request.offering, request.count))
        return net

    def launch_or_join(self, folder: RecordFolder, request: LaunchRequest) -> Instance:
        """
        Launch the instance. If another process is already launching it with the same token, wait for that process and
        return its instance.
        """
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
            f"another process has not finished launching {folder.instance_id} within {START_WITHIN_S:.0f} s",
            hint=f"see {folder.log_path}",
        )

    def _launch_locked(self, folder: RecordFolder, request: LaunchRequest, lock: int) -> Instance:
        record = folder.read()
        if record is None:
            record = self._accept(request, folder)
        _require_same(record, request)
        if not was_cut_short(record):
            return self.launched_before(folder, record, request)
        self._log_launch(record)
        self._start_supervisor(folder, lock)
        started = folder.read()
        assert started is not None
        return as_seen(folder, started)

    def _accept(self, request: LaunchRequest, folder: RecordFolder) -> Record:
        """
        Check that there is capacity, then write the instance's record. If capacity is limited, a lock lets only one
        process at a time do this, so two processes cannot both take the last free place.
        """
        endless = self._config.capacity is None and request.offering.capacity_type is not CapacityType.OWN
        with nullcontext() if endless else self._places.deciding(START_WITHIN_S):
            return self._write_accepted(request, folder, self._script_seen(request))

    def _script_seen(self, request: LaunchRequest) -> int:
        """
        Check that there is capacity for `request`. Return how many steps of the market's script have happened in this
        run.

        Raises:
            InsufficientCapacity: there is no capacity.
            CloudError: the cloud does not rent out such instances.
        """
        script = Script(self._places.market(request.run_uid), self._config.script, self._clock.epoch)
        script.advance(self._clock.now(), observer=None)
        script_seen = len(script.happened())
        self._check_capacity(request, script)
        return script_seen

    def _write_accepted(
        self, request: LaunchRequest, folder: RecordFolder, script_seen: int, member: int = 0, address: str = ""
    ) -> Record:
        record = Record(
            instance=Instance(
                instance_id=folder.instance_id,
                token=request.token,
                run_uid=request.run_uid,
                launch=request.launch,
                offering=request.offering,
                state=InstanceState.PENDING,
                launched_at=self._clock.now(),
                member=member,
                address=address,
            ),
            run_uri=request.run_uri,
            time_to_live_s=request.time_to_live.total_seconds(),
            clock_epoch=self._clock.epoch,
            time_scale=self._clock.scale,
            market=self._config,
            init=self._init,
            script_seen=script_seen,
            count=request.count,
            accepted_s=time.time(),
        )
        self._places.disk(folder.instance_id).mkdir(exist_ok=True, mode=0o700)
        folder.write(record)
        return record

    def _check_capacity(self, request: LaunchRequest, script: Script) -> None:
        pool = request.offering.pool
        if not self._market.rents(pool):
            self._refuse(request, CloudError(f"the local cloud does not offer {request.offering}"))
        if pool.capacity_type is CapacityType.SPOT and script.spot_is_gone():
            self._refuse(request, _no_capacity(request.offering, request.count))
        if not self._market.has_capacity(pool, self._clock.now()):
            self._refuse(request, _no_capacity(request.offering, request.count))
        if not self._has_room(request):
            self._refuse(request, _no_capacity(request.offering, request.count))

    def _has_room(self, request: LaunchRequest) -> bool:
        """
        Return True if the pool has room for all requested instances, in addition to those that the run already has
        there. A machine that the user owns has room for only one instance, whichever run it belongs to.
        """
        capacity, pool = self._config.capacity, request.offering.pool
        if pool.capacity_type is CapacityType.OWN:
            others = (record.instance for record in self._living() if record.instance.token != request.token)
            return not any(other.offering.capacity_type is CapacityType.OWN for other in others)
        if capacity is None or pool.capacity_type is not CapacityType.SPOT:
            return True
        run = (record.instance for record in self._living() if record.instance.run_uid == request.run_uid)
        taken = sum(instance.offering.pool == pool and instance.token != request.token for instance in run)
        return taken + (request.count or 1) <= capacity

    def _living(self) -> Iterator[Record]:
        records = (settled(folder, self._log) for folder in self._places.record_folders())
        return (record for record in records if record is not None and not record.ended)

    def _refuse(self, request: LaunchRequest, error: CloudError) -> NoReturn:
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
        """
        Start the supervisor, and wait until it has started the timer for the time-to-live and holds `lock`, the lock on
        the instance's record.
        """
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
                    f"the supervisor of {folder.instance_id} did not start", hint=f"see {folder.log_path}"
                )
        finally:
            os.close(ready)

    def launched_before(self, folder: RecordFolder, record: Record, request: LaunchRequest) -> Instance:
        if record.ended:
            instance_id = record.instance.instance_id
            raise LaunchTokenSpent(f"{instance_id}, an instance of launch {request.launch}, is terminated")
        _require_same(record, request)
        return as_seen(folder, record)


def _require_same(record: Record, request: LaunchRequest) -> None:
    instance = record.instance
    same = (instance.run_uid, instance.offering.pool) == (request.run_uid, request.offering.pool)
    if not same or record.count != request.count:
        raise CloudError(f"the launch token of {instance.instance_id} was already used for a different request")


def _no_capacity(offering: Offering, count: int | None = None) -> InsufficientCapacity:
    if offering.capacity_type is CapacityType.OWN:
        return InsufficientCapacity(f"{offering.instance_type} is in use", hint="wait until that run has ended")
    members = "" if count is None else f" for {count_of(count, 'member')} at once"
    return InsufficientCapacity(
        f"no {offering.capacity_type.in_words} capacity for {offering.instance_type} in {offering.zone}{members}",
        hint="add a zone or type under resources, or set spot_policy: auto",
    )


def _pool_facts(pool: Pool) -> dict[str, str]:
    return {"zone": pool.zone, "instance_type": pool.instance_type, "capacity_type": str(pool.capacity_type)}


def _supervisor_command(root: Path, instance_id: str, ready: int) -> list[str]:
    return [sys.executable, "-P", "-m", "spotrun.clouds.local.supervisor", str(root), instance_id, str(ready)]


def _host_environment() -> dict[str, str]:
    """
    Return this process's environment without the variables that describe an instance. It has such variables if it runs
    on a local instance.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OF_ONE_INSTANCE)}
    package_root = Path(spotrun.__file__).parent.parent
    if package_root.name not in ("site-packages", "dist-packages"):  # a checkout; child processes have to find it too
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(package_root), *([known] if known else [])])
    return environment
