"""The local cloud as a CloudDriver."""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import spotrun
from spotrun.clock import ScaledClock
from spotrun.clouds.local import processes
from spotrun.clouds.local.config import NOTICE, MarketConfig
from spotrun.clouds.local.market import Market
from spotrun.clouds.local.records import CloudLog, Places, Record, RecordFolder
from spotrun.clouds.local.script import Script
from spotrun.clouds.local.supervisor import bury, bury_dead
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.market.quotes import Quotes
from spotrun.offering import CapacityType, Offering, Pool

ROOT_VARIABLE = "SPOTRUN_LOCAL_CLOUD"
BOOTSTRAP = (sys.executable, "-P", "-m", "spotrun.agent.bootstrap")
"""The init process of an instance. -P: what lies on the instance's disk is not imported by accident."""

START_WITHIN_S = 30.0
"""System time for a supervisor to start; it takes 0.2 s on an idle machine."""
END_WITHIN_S = 5.0
"""System time for a supervisor to obey; then it is ended by force."""
_POLL_S = 0.01

_OF_ONE_INSTANCE = (
    "SPOTRUN_INSTANCE_",
    "SPOTRUN_RUN",
    "SPOTRUN_LAUNCH",
    "SPOTRUN_AGENT_",
    "AWS_EC2_METADATA_SERVICE_",
)
"""How the names of variables begin that the host does not hand down to an instance."""


def default_root() -> Path:
    """Where the local cloud of this user lives."""
    return Path(os.environ.get(ROOT_VARIABLE) or "~/.spotrun/local").expanduser()


def instance_id_of(token: str) -> str:
    """The id of the one instance that a launch token can ever have."""
    return "i-" + hashlib.sha256(token.encode()).hexdigest()[:17]


class LocalDriver:
    """
    Rents out process trees on this machine. See CloudDriver for what its five verbs promise.

    All that is known lies under `root`: any LocalDriver over the same root sees, and may terminate, the same
    instances. `market` and `init` count for what this object launches. Whoever looks at an instance whose
    supervisor has died ends its remaining processes and records the end.
    """

    name = "local"

    def __init__(
        self,
        root: Path,
        clock: ScaledClock,
        market: MarketConfig | None = None,
        *,
        init: Sequence[str] = BOOTSTRAP,
    ) -> None:
        self._places = Places(root.expanduser().absolute())
        self._clock = clock
        self._config = market or MarketConfig()
        self._market = Market(self._config, clock.epoch)
        self._init = tuple(init)
        self._log = CloudLog(self._places.log)

    # -- CloudDriver -----------------------------------------------------------------------------------------

    def offerings(self) -> list[Offering]:
        return self._market.offerings(self._clock.now())

    def launch(self, request: LaunchRequest) -> Instance:
        with _as_unavailable():
            folder = self._folder(instance_id_of(request.token))
            known = self._settled(folder)
            if known is None or _was_cut_short(known):
                return self._launch_or_join(folder, request)
            return self._launched_before(known, request)

    def describe(self, instance_id: str) -> Instance | None:
        with _as_unavailable():
            folder = self._places.record_folder(instance_id)
            record = None if folder is None else self._shown(folder)
            return None if folder is None or record is None else _as_seen(folder, record)

    def instances(self, run_uid: str | None = None) -> list[Instance]:
        with _as_unavailable():
            known = [(folder, self._shown(folder)) for folder in self._places.record_folders()]
            seen = [_as_seen(folder, record) for folder, record in known if record is not None]
            return [instance for instance in seen if run_uid is None or instance.run_uid == run_uid]

    def terminate(self, instance_id: str) -> None:
        with _as_unavailable():
            folder = self._places.record_folder(instance_id)
            record = None if folder is None else self._settled(folder)
            if folder is None or record is None or record.ended:
                return
            folder.order("terminate", {})
            if not self._ends(folder, within_s=END_WITHIN_S):
                self._end_by_force(folder)

    def quotes(self, accelerators: str | None, types: Sequence[str], regions: Sequence[str]) -> Quotes:
        """What its market asks, of all that these leave: exactly those accelerators, any of the types and regions."""
        now = self._clock.now()
        wanted = [
            each
            for each in self.offerings()
            if accelerators in (None, each.accelerators)
            and (not types or each.instance_type in types)
            and (not regions or each.region in regions)
        ]
        return Quotes(at=now, quotes=tuple(self._market.quote(each, now) for each in wanted))

    # -- what only a simulated cloud can be asked ------------------------------------------------------------

    def interrupt(self, instance_id: str, notice: timedelta | None = NOTICE) -> None:
        """
        Take a spot instance back as the cloud would: with so much notice (run time), or at once without any.

        Raises:
            CloudError: no such instance is running, or it is on-demand and the cloud may not take it.
        """
        folder, record = self._alive(instance_id)
        if record.instance.offering.capacity_type is not CapacityType.SPOT:
            raise CloudError(
                f"{instance_id} is on-demand: the cloud never takes it back",
                hint="interrupt a spot instance, or end this one with `spotrun down`",
            )
        folder.order("interrupt", {"notice_s": None if notice is None else notice.total_seconds()})

    def rebalance(self, instance_id: str) -> None:
        """
        Recommend to the instance, through its metadata, to move elsewhere.

        Raises:
            CloudError: no such instance is running.
        """
        folder, _ = self._alive(instance_id)
        folder.order("rebalance", {})

    def folder(self, instance_id: str) -> Path:
        """The disk of an instance: its SPOTRUN_INSTANCE_DIR, with status.json and console.log in it."""
        return self._places.disk(instance_id)

    def record(self, instance_id: str) -> Record | None:
        """All that the cloud knows of an instance, its processes and metadata endpoint too; for tests and doctor."""
        folder = self._places.record_folder(instance_id)
        return None if folder is None else self._settled(folder)

    def forget(self, run_uid: str) -> None:
        """Delete what is kept of a run's terminated instances, but the log; their tokens are not spent any more."""
        for folder in self._places.record_folders():
            record = self._settled(folder)
            if record is not None and record.ended and record.instance.run_uid == run_uid:
                self._places.remove_instance(folder)
        if not self.instances(run_uid):
            self._places.market(run_uid).unlink(missing_ok=True)
            self._places.market(run_uid).with_suffix(".lock").unlink(missing_ok=True)

    # -- launching -------------------------------------------------------------------------------------------

    def _launch_or_join(self, folder: RecordFolder, request: LaunchRequest) -> Instance:
        """Launch, unless another process is just doing so: then its instance is ours too."""
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
            if record is not None and not _was_cut_short(record):
                return self._launched_before(record, request)
            time.sleep(_POLL_S)
        raise CloudUnavailable(
            f"another process has been launching {folder.instance_id} for {START_WITHIN_S:.0f} s",
            hint=f"look at {folder.log_path}",
        )

    def _launch_locked(self, folder: RecordFolder, request: LaunchRequest, lock: int) -> Instance:
        record = folder.read()
        if record is None:
            record = self._accept(request, folder)
        elif not _was_cut_short(record):
            return self._launched_before(record, request)
        self._log_launch(record)
        self._start_supervisor(folder, lock)
        started = folder.read()
        assert started is not None
        return _as_seen(folder, started)

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
        self._places.disk(folder.instance_id).mkdir(exist_ok=True)
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
        """Until it has armed the time-to-live and taken over the lock."""
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

    def _launched_before(self, record: Record, request: LaunchRequest) -> Instance:
        instance = record.instance
        if record.ended:
            raise LaunchTokenSpent(f"{instance.instance_id}, the instance of launch {request.launch}, is terminated")
        if instance.run_uid != request.run_uid or instance.offering.pool != request.offering.pool:
            raise CloudError(f"the launch token of {instance.instance_id} was used before, for another request")
        return _as_seen(self._folder(instance.instance_id), record)

    # -- looking and ending ----------------------------------------------------------------------------------

    def _shown(self, folder: RecordFolder) -> Record | None:
        """
        The record, unless its launch was cut short before anything ran: as long as that could be repeated there is no
        instance, and nobody may wait for one.
        """
        record = self._settled(folder)
        if record is None or not _was_cut_short(record) or (lock := folder.try_lock()) is None:
            return record
        os.close(lock)
        return None

    def _settled(self, folder: RecordFolder) -> Record | None:
        """The record; the instance's end is recorded first where its supervisor has died."""
        record = folder.read()
        if record is None or record.ended:
            return record
        if (lock := folder.try_lock()) is None:
            return record
        try:
            record = folder.read()
            return record if record is None or record.ended else self._bury(folder, record)
        finally:
            os.close(lock)

    def _bury(self, folder: RecordFolder, record: Record) -> Record:
        """For the holder of the lock: nobody looks after this instance any more."""
        if not _was_cut_short(record):
            return bury_dead(folder, self._log, record, folder.last_beat(record.clock), EndedBy.FAULT)
        now = record.clock.now()
        dies_at = record.instance.launched_at + timedelta(seconds=record.time_to_live_s)
        if "terminate" in folder.orders():
            return bury(folder, self._log, record, now, EndedBy.USER)
        if now >= dies_at:
            return bury(folder, self._log, record, dies_at, EndedBy.TIME_TO_LIVE)
        return record  # a repeated launch may still complete it

    def _ends(self, folder: RecordFolder, within_s: float) -> bool:
        give_up_at = time.monotonic() + within_s
        while (record := self._settled(folder)) is not None and not record.ended:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_POLL_S)
        return True

    def _end_by_force(self, folder: RecordFolder) -> None:
        """The supervisor hangs: without it, its guardian ends the instance; without both, we do."""
        record = folder.read()
        for process in (record.supervisor, record.guardian) if record is not None else ():
            if process is not None:
                processes.kill(process)
            if self._ends(folder, within_s=END_WITHIN_S):
                return
        raise CloudUnavailable(f"{folder.instance_id} does not end", hint=f"look at {folder.log_path}")

    def _alive(self, instance_id: str) -> tuple[RecordFolder, Record]:
        folder = self._places.record_folder(instance_id)
        record = None if folder is None else self._settled(folder)
        if folder is None or record is None or record.ended:
            raise CloudError(f"no instance {instance_id} is alive", hint="`spotrun status` shows the live ones")
        return folder, record

    def _folder(self, instance_id: str) -> RecordFolder:
        folder = self._places.record_folder(instance_id)
        assert folder is not None
        return folder


def _was_cut_short(record: Record) -> bool:
    """Whether its launcher died before there was a supervisor."""
    return record.supervisor is None and not record.ended


def _as_seen(folder: RecordFolder, record: Record) -> Instance:
    stopping = not record.ended and "terminate" in folder.orders()
    return record.with_instance(state=InstanceState.STOPPING).instance if stopping else record.instance


def _no_capacity(offering: Offering) -> InsufficientCapacity:
    return InsufficientCapacity(
        f"no {offering.capacity_type} capacity for {offering.instance_type} in {offering.zone}",
        hint="add a zone or type under resources, or set spot_policy: auto",
    )


def _pool_facts(pool: Pool) -> dict[str, str]:
    return {"zone": pool.zone, "instance_type": pool.instance_type, "capacity_type": str(pool.capacity_type)}


def _supervisor_command(root: Path, instance_id: str, ready: int) -> list[str]:
    return [sys.executable, "-P", "-m", "spotrun.clouds.local.supervisor", str(root), instance_id, str(ready)]


def _host_environment() -> dict[str, str]:
    """Ours, without what is true of one instance: a local cloud may be used from inside a local instance."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OF_ONE_INSTANCE)}
    package_root = Path(spotrun.__file__).parent.parent
    if package_root.name not in ("site-packages", "dist-packages"):  # a checkout: children must find it too
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(package_root), *([known] if known else [])])
    return environment


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "make sure that its folder can be written and has space"
        raise CloudUnavailable(f"the local cloud cannot work: {error}", hint=hint) from error
