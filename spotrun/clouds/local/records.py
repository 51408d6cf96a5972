"""
The state of the local cloud on disk.

    ROOT/log.jsonl                       the cloud's log: one fact per line, append-only
    ROOT/records/<instance id>/          the cloud's side of an instance
        instance.json                    its record; replaced atomically, and only by the holder of `lock`
        lock                             held while the instance is being launched or its supervisor is alive
        orders/                          orders to the supervisor: terminate, interrupt, rebalance
        members                          only for a gang's first member: a symbolic link with the target ALL or NONE,
                                         which says whether all members start or none (`agree`)
        supervisor.log
    ROOT/instances/<instance id>/        the instance's own disk
        console.log                      output of its init process
    ROOT/accepting.lock                  held while a process decides whether there is room for a launch
    ROOT/markets/<run uid>.json          the steps of the market script that have already happened in this run
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec

from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.errors import CloudUnavailable
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.proc import ProcessMark
from spotrun.store.atomic_write import write_atomically

RECORD_VARIABLE = "SPOTRUN_INSTANCE_RECORD"
"""
The environment variable with the path of an instance's record. Each process of the instance has this variable. The path
identifies the instance; the id does not, because an instance of another local cloud may have the same id.
"""
POLL_S = 0.01
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{17}")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything that the cloud knows about one instance, with all values that the instance's supervisor needs.

    `script_seen` counts the steps of the market's script that had happened before the launch. `supervisor` and
    `guardian` are None until these processes have started; if `supervisor` stays None, the launcher died before it
    started the supervisor. `count` is the number of members in the launch, None for a single instance. `accepted_s` is
    the time on the system clock at which the record was first written.
    """

    instance: Instance
    run_uri: str
    time_to_live_s: float
    clock_epoch: datetime
    time_scale: float
    market: MarketConfig
    init: tuple[str, ...]
    script_seen: int = 0
    supervisor: ProcessMark | None = None
    guardian: ProcessMark | None = None
    metadata_endpoint: str | None = None
    init_exit_code: int | None = None
    count: int | None = None
    accepted_s: float = 0.0

    @property
    def clock(self) -> ScaledClock:
        return ScaledClock(self.clock_epoch, self.time_scale)

    @property
    def ended(self) -> bool:
        return self.instance.state is InstanceState.TERMINATED

    def end(self, at: datetime, by: EndedBy, init_exit_code: int | None = None) -> Record:
        """
        Return a copy of the record with the instance's end: the time `at`, and who ended it. If `at` is earlier than
        the launch or the last price change, the later of these two is used instead, because the instance cannot have
        ended before them.
        """
        known = [self.instance.launched_at, *(segment.since for segment in self.instance.prices)]
        ended = self.with_instance(state=InstanceState.STOPPING, ended_at=max([at, *known]), ended_by=by)
        return msgspec.structs.replace(ended, init_exit_code=init_exit_code)

    def with_instance(self, **changes: object) -> Record:
        return msgspec.structs.replace(self, instance=msgspec.structs.replace(self.instance, **changes))


def instance_id_of(token: str, member: int = 0) -> str:
    """
    Return the id of the instance that was launched with `token`; for a gang, the id of the given member. The id is
    computed from the token, so a repeated launch finds the same instance.
    """
    named = f"{token}\0{member}" if member else token
    return "i-" + hashlib.sha256(named.encode()).hexdigest()[:17]


class RecordFolder:
    """One instance's record and lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance_id = path.name
        self._record = path / "instance.json"
        self._orders = path / "orders"
        self._word = path / "members"

    def create(self) -> None:
        self._orders.mkdir(parents=True, exist_ok=True)

    def read(self) -> Record | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Record)
        except FileNotFoundError:
            return None

    def write(self, record: Record) -> None:
        write_atomically(self._record, msgspec.json.encode(record))

    @property
    def log_path(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def disk(self) -> Path:
        """The disk of the instance (`CloudPaths.disk`)."""
        return self.path.parents[1] / "instances" / self.instance_id

    def try_lock(self) -> int | None:
        """
        Try to take the lock, and return a file descriptor that holds it. The lock is free again when all copies of the
        descriptor are closed. Return None if another process holds the lock.

        The launcher takes the lock, and the supervisor inherits the descriptor from it, so the lock is never free in
        between. The kernel frees the lock when the last process with the descriptor is dead. Hence, if the record says
        that the instance runs and the lock is free, the supervisor is dead.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_flock(descriptor):
            os.close(descriptor)
            return None
        return descriptor

    def agree(self, word: str) -> str:
        """
        Decide whether all members of a gang start, or none of them. `word` is this process's proposal (ALL or NONE).
        The first proposal to be written is the decision, and all processes follow it. Return the decision.
        """
        with contextlib.suppress(FileExistsError):
            os.symlink(word, self._word)
        return os.readlink(self._word)

    def word(self) -> str | None:
        try:
            return os.readlink(self._word)
        except FileNotFoundError:
            return None

    def beat(self) -> None:
        """Record that the instance is alive now."""
        os.utime(self.path / "lock")

    def last_beat(self, clock: ScaledClock) -> datetime:
        """Return when the instance's supervisor was last alive, in run time."""
        age_s = time.time() - (self.path / "lock").stat().st_mtime
        return clock.now() - timedelta(seconds=age_s) * clock.scale

    def order(self, name: str, body: dict[str, object]) -> None:
        with contextlib.suppress(FileNotFoundError):  # the record was deleted meanwhile
            write_atomically(self._orders / name, json.dumps(body).encode())

    def orders(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._orders) if not name.startswith(".")}
        except FileNotFoundError:
            return set()

    def take_order(self, name: str) -> dict[str, object]:
        """Return an order's body, and delete the order so that it is carried out only once."""
        path = self._orders / name
        body: dict[str, object] = json.loads(path.read_bytes())
        path.unlink()
        return body


class CloudPaths:
    """The paths below the root of a local cloud."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log.jsonl"

    def create(self) -> None:
        for folder in ("records", "instances", "markets"):
            (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextlib.contextmanager
    def deciding(self, within_s: float) -> Iterator[None]:
        """
        Hold the lock that lets only one process at a time decide whether there is room for a launch.

        Raises:
            CloudUnavailable: another process has held the lock for `within_s` of system time.
        """
        descriptor = os.open(self.root / "accepting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up_at = time.monotonic() + within_s
        try:
            while not try_flock(descriptor):
                if time.monotonic() > give_up_at:
                    raise CloudUnavailable(f"another process has held the launch lock for {within_s:.0f} s")
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def record_folder(self, instance_id: str) -> RecordFolder | None:
        """Return the record folder of an instance; None if no instance can have this id."""
        if _INSTANCE_ID.fullmatch(instance_id) is None:
            return None
        return RecordFolder(self.root / "records" / instance_id)

    def record_folders(self) -> Iterator[RecordFolder]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.root / "records")):
                if folder := self.record_folder(name):
                    yield folder

    def disk(self, instance_id: str) -> Path:
        assert _INSTANCE_ID.fullmatch(instance_id)
        return self.root / "instances" / instance_id

    def market(self, run_uid: str) -> Path:
        assert _SAFE_NAME.fullmatch(run_uid), run_uid
        return self.root / "markets" / f"{run_uid}.json"

    def remove_instance(self, folder: RecordFolder) -> None:
        shutil.rmtree(self.disk(folder.instance_id), ignore_errors=True)
        shutil.rmtree(folder.path, ignore_errors=True)


class CloudLog:
    """
    The cloud's log of its actions, with one JSON object per line. Tests compare this log with the ledger of a run.

    `event` is one of these values: launched, metered (billing has begun), price, notice, rebalance, cut-off (the other
    members of the gang can no longer reach the instance), ended, refused. `at` is in run time.

    The log may contain the same fact twice. If a process dies while it records a fact, the process that takes over does
    not know whether the fact is already in the log, so it writes the fact again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, at: datetime, **facts: object) -> None:
        line = msgspec.json.encode({"event": event, "at": at, **facts}, enc_hook=_plain) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def metered(self, instance: Instance) -> None:
        if instance.billed_from is not None:
            self.write("metered", instance.billed_from, instance_id=instance.instance_id)

    def prices(self, instance: Instance, after: int = 0) -> None:
        for segment in instance.prices[after:]:
            self.write("price", segment.since, instance_id=instance.instance_id, usd_per_hour=segment.usd_per_hour)

    def ended(self, instance: Instance) -> None:
        assert instance.ended_at is not None
        self.write("ended", instance.ended_at, instance_id=instance.instance_id, by=instance.ended_by)


def try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _plain(value: object) -> object:
    assert isinstance(value, Decimal)
    return str(value)
