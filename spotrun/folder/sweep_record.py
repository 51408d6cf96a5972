"""
What a sweep was asked for, kept beside its runs in the store: sweeps/NAME.json.

All else of a sweep is in the ledgers of its runs. A trial's run has the uid that follows from the sweep's and from its
number: so a command that was killed finds them again, and two commands cannot begin one trial twice.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import msgspec

from spotrun.errors import ObjectMissing, StoreError
from spotrun.run.bounds import SMALL_BYTES, Count, Moment, OutOfBounds, Scale, Seconds, decode
from spotrun.store.port import Store, is_key
from spotrun.store.retrying import persist

FOLDER = "sweeps"
"""No run's folder has this name: each ends in a uid."""
BYTES_MAX = 8 * SMALL_BYTES
UID_LENGTH = 10


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    `wanted` is what makes it this sweep: flags by their names, and the digest of the job. It began at `began_at`, and
    has `deadline_s` of run time from then on, which passes `time_scale` times as fast as the wall clock; `deadline` is
    how that was typed. `trials` is how many it has. `stopped_by` is who has asked the whole sweep to stop, or "".
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

    def run_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def run_uid(self, number: int) -> str:
        return hashlib.sha256(f"{self.uid}/{number}".encode()).hexdigest()[:UID_LENGTH]

    def folder_of(self, number: int) -> str:
        """Of a trial's run, in the store."""
        return f"{self.run_name(number)}-{self.run_uid(number)}"


def key_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def find_sweep(store: Store, name: str) -> SweepRecord | None:
    """
    The sweep of that name.

    Raises:
        StoreError: it is not what a spotrun writes there, or cannot be read.
    """
    key = key_of(name)
    if not is_key(key):
        return None
    try:
        record = decode(persist(lambda: store.get(key, 0, BYTES_MAX)), SweepRecord)
    except ObjectMissing:
        return None
    except OutOfBounds as error:
        hint = "name another sweep by --name, or delete that object"
        raise StoreError(f"{store.uri}/{key} does not describe a sweep", hint=hint) from error
    return record if record.name == name else None


def create_sweep(store: Store, record: SweepRecord) -> bool:
    """False if there is one of that name."""
    return persist(lambda: store.put_if_absent(key_of(record.name), msgspec.json.encode(record)))


def replace_sweep(store: Store, record: SweepRecord) -> None:
    persist(lambda: store.put(key_of(record.name), msgspec.json.encode(record)))
