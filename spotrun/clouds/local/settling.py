"""
Brings the record of an instance up to date. Normally the supervisor records the end of its instance. If the supervisor
has died, the first process that reads the record kills the instance's remaining processes and records the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from spotrun.clouds.local import processes
from spotrun.clouds.local.members import given_up, has_all
from spotrun.clouds.local.records import POLL_S, RECORD_VARIABLE, CloudLog, Record, RecordFolder
from spotrun.errors import CloudUnavailable, SpotrunError
from spotrun.instance import EndedBy, Instance, InstanceState

CONTAINER = "container.json"
"""The file in an instance's folder that names the instance's container (spotrun/container/engine.py)."""
END_WITHIN_S = 5.0
"""Maximum seconds of system time for a supervisor to obey an order. After that the supervisor is killed."""


def was_cut_short(record: Record) -> bool:
    """Return whether the launcher died before it had started the instance's supervisor."""
    return record.supervisor is None and not record.ended


def as_seen(folder: RecordFolder, record: Record) -> Instance:
    stopping = not record.ended and "terminate" in folder.orders()
    return record.with_instance(state=InstanceState.STOPPING).instance if stopping else record.instance


def shown(folder: RecordFolder, log: CloudLog) -> Record | None:
    """
    Return the instance's record; None if callers must not see the instance yet. A gang's member is hidden until the
    whole gang has started. If the launcher died before it started the supervisor, the instance is hidden until the
    launch is repeated.
    """
    record = settled(folder, log)
    if record is not None and not record.ended and not has_all(folder, record):
        return None
    if record is None or not was_cut_short(record) or (lock := folder.try_lock()) is None:
        return record
    os.close(lock)
    return None


def settled(folder: RecordFolder, log: CloudLog) -> Record | None:
    """Return the record, after recording the instance's end if its supervisor has died."""
    record = folder.read()
    if record is None or record.ended:
        return record
    if (lock := folder.try_lock()) is None:
        return record
    try:
        record = folder.read()
        return record if record is None or record.ended else _buried(folder, log, record)
    finally:
        os.close(lock)


def _buried(folder: RecordFolder, log: CloudLog, record: Record) -> Record:
    """
    If the instance has ended, enter its end in the record. Return the record. The caller must hold the instance's lock,
    which proves that the supervisor is dead, because a living supervisor holds the lock itself.
    """
    if not was_cut_short(record):
        return bury_dead(folder, log, record, folder.last_beat(record.clock), EndedBy.FAULT)
    now = record.clock.now()
    dies_at = record.instance.launched_at + timedelta(seconds=record.time_to_live_s)
    if "terminate" in folder.orders():
        return bury(folder, log, record, now, EndedBy.USER)
    if now >= dies_at:
        return bury(folder, log, record, dies_at, EndedBy.TIME_TO_LIVE)
    if given_up(folder, record):
        return bury(folder, log, record, now, EndedBy.FAULT)
    return record  # a repeated call may still complete the launch


def ends(folder: RecordFolder, log: CloudLog, within_s: float) -> bool:
    give_up_at = time.monotonic() + within_s
    while (record := settled(folder, log)) is not None and not record.ended:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(POLL_S)
    return True


def end_by_force(folder: RecordFolder, log: CloudLog) -> None:
    """
    End an instance whose supervisor hangs. Kill the supervisor; its parent process, the guardian, then ends the
    instance. If the guardian hangs too, kill the guardian.

    Raises:
        CloudUnavailable: the instance still has not ended.
    """
    record = folder.read()
    for process in (record.supervisor, record.guardian) if record is not None else ():
        if process is not None:
            processes.kill(process)
        if ends(folder, log, within_s=END_WITHIN_S):
            return
    raise CloudUnavailable(f"{folder.instance_id} could not be ended by force", hint=f"see {folder.log_path}")


def bury(
    folder: RecordFolder,
    log: CloudLog,
    record: Record,
    at: datetime,
    by: EndedBy,
    init_exit_code: int | None = None,
) -> Record:
    """
    Record that an instance ended at `at`. The caller must hold the instance's lock and have killed all its processes.
    """
    _remove_container(folder.disk / CONTAINER, record.instance.run_uid, folder.instance_id)
    if record.instance.ended_at is None:
        record = record.end(at, by, init_exit_code)
        folder.write(record)  # before the log: if this is interrupted, another process logs the same
    log.ended(record.instance)
    record = record.with_instance(state=InstanceState.TERMINATED)
    folder.write(record)
    return record


def _remove_container(remembered: Path, run_uid: str, instance_id: str) -> None:
    """
    Remove the container if there is one. The import is inside the function because few instances have a container.
    """
    if not remembered.exists():
        return
    from spotrun.container.engine import name_of, remove_remembered

    with contextlib.suppress(SpotrunError):  # the container also ends when its input ends
        remove_remembered(remembered, name_of(run_uid, instance_id))


def bury_dead(folder: RecordFolder, log: CloudLog, record: Record, at: datetime, by: EndedBy) -> Record:
    """
    Record the end of an instance whose supervisor has died. `at` is the time at which the supervisor was last alive.

    The supervisor may have died after it wrote a fact (the start of billing or a price) into the record, but before it
    wrote the fact into the cloud's log. So this function logs these facts again; the log may then contain them twice.
    """
    processes.kill_all(partial(processes.carrying, RECORD_VARIABLE, str(folder.path)))
    log.metered(record.instance)
    log.prices(record.instance)
    return bury(folder, log, record, at, EndedBy.USER if "terminate" in folder.orders() else by)
