"""
Records a sweep: the request that began it, and for each trial the run that trains it. The records are in the same store
as these runs.

    sweeps/NAME.json        the request
    sweeps/NAME/UID/3       the uid of the run of trial 3 of sweep UID

All other state of a sweep is in the ledgers of its runs. For each trial, a `spotrun sweep` command creates a run, and
then writes the trial's record with put-if-absent. So if two commands work on the same sweep, they do not train the same
trial twice. If a command is killed, the next command finds the killed command's runs in the records. A run's uid is
random, so no other program can guess the next trial's uid and store something under it in advance.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from spotrun.errors import ObjectMissing, StoreError
from spotrun.run.bounds import SMALL_BYTES, Count, Moment, OutOfBounds, Scale, Seconds, decode
from spotrun.store.port import Store, is_key
from spotrun.store.retrying import persist

FOLDER = "sweeps"
"""Folder of the sweeps. No run's folder can have this name, because the name of a run's folder ends in a uid."""
BYTES_MAX = 8 * SMALL_BYTES
UID_LENGTH = 10


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    The user's request for a sweep.

    `wanted` has the flags of the command that began the sweep, keyed by name, and the digest of the job. A later
    command with the same flags and job continues the sweep. The sweep's deadline is `deadline_s` seconds of run time
    after `began_at`; `deadline` is the deadline as the user typed it. Run time passes `time_scale` times as fast as
    system time. `stopped_by` is the user who stopped the whole sweep, or "". `recorded` is False if an earlier version
    of spotrun created the sweep. Such a sweep has no records of its trials; instead, the uids of its runs are computed
    from the sweep's uid.
    """

    name: str
    uid: str
    began_at: Moment
    time_scale: Scale
    trials: int
    wanted: dict[str, Any]
    deadline: str = ""
    deadline_s: Seconds | None = None
    stopped_by: str = ""
    budget_usd: Decimal | None = None
    metric: str | None = None
    maximize: bool = False
    judged_from: Count | None = None
    recorded: bool = False

    def run_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def folder_of(self, number: int, uid: str) -> str:
        return f"{self.run_name(number)}-{uid}"


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one trial. `run` is the uid of the run that trains it."""

    run: Annotated[str, msgspec.Meta(pattern="^[0-9a-z]{1,32}$")]


def key_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def find_sweep(store: Store, name: str) -> SweepRecord | None:
    """
    Return the sweep called `name`; None if there is no such sweep.

    Raises:
        StoreError: the record is malformed or cannot be read.
    """
    key = key_of(name)
    if not is_key(key):
        return None
    try:
        record = decode(persist(lambda: store.get(key, 0, BYTES_MAX)), SweepRecord)
    except ObjectMissing:
        return None
    except OutOfBounds as error:
        hint = "use --name to give the sweep another name, or delete that object"
        raise StoreError(f"{store.uri}/{key} does not describe a sweep", hint=hint) from error
    return record if record.name == name else None


def run_of_trial(store: Store, sweep: SweepRecord, number: int) -> str | None:
    """
    Return the uid of a trial's run; None if the trial has not begun.

    Raises:
        StoreError: the record of the trial is malformed or cannot be read.
    """
    key = _trial_key(sweep, number)
    try:
        return decode(persist(lambda: store.get(key, 0, SMALL_BYTES)), TrialRecord).run
    except ObjectMissing:
        return None if sweep.recorded else _uid_of_old(sweep, number)
    except OutOfBounds as error:
        raise StoreError(f"{store.uri}/{key} does not name a run", hint="delete that object") from error


def record_trial(store: Store, sweep: SweepRecord, number: int, run_uid: str, *, anyway: bool = False) -> bool:
    """
    Record which run trains a trial. If the trial already has another run, change nothing and return False. With
    `anyway`, replace the record even then. Use this if the recorded run was deleted.
    """
    key, data = _trial_key(sweep, number), msgspec.json.encode(TrialRecord(run=run_uid))
    if anyway:
        persist(lambda: store.put(key, data))
        return True
    return persist(lambda: store.put_if_absent(key, data)) or run_of_trial(store, sweep, number) == run_uid


def _trial_key(sweep: SweepRecord, number: int) -> str:
    return f"{FOLDER}/{sweep.name}/{sweep.uid}/{number}"


def _uid_of_old(sweep: SweepRecord, number: int) -> str:
    return hashlib.sha256(f"{sweep.uid}/{number}".encode()).hexdigest()[:UID_LENGTH]


def create_sweep(store: Store, record: SweepRecord) -> bool:
    """Write the record of a new sweep. Return False if a sweep of this name exists."""
    return persist(lambda: store.put_if_absent(key_of(record.name), msgspec.json.encode(record)))


def replace_sweep(store: Store, record: SweepRecord) -> None:
    persist(lambda: store.put(key_of(record.name), msgspec.json.encode(record)))
