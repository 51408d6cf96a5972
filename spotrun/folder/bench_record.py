"""
Stores the measurements of `spotrun bench` next to the runs, for later runs of the same job.

    bench/NAME/DIGEST/KIND                  DIGEST: the digest of the job's program and all its arguments

A later measurement of the same job and kind replaces the earlier one. A run uses the measurements only to decide which
instance type to request first. If its job has no measurements, the run relies on the types' published speeds until it
has measured the speeds itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

from spotrun.errors import ObjectMissing
from spotrun.run.bounds import SMALL_BYTES, Moment, OutOfBounds, Seconds, Share, decode
from spotrun.spec.kinds import Kind
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

FOLDER = "bench"
"""Folder of the measurements. No run's folder can have this name, because the name of a run's folder ends in a uid."""
OTHERS_MAX = 30
"""
Maximum number of records that are read to find a measurement of the same job with other arguments. The newest records
are read first.
"""


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    A measurement of a job on instances of a `kind`, made by the run `run`. A field that is None is unknown.

    `step_s` is the duration of a step. `work_s` is the duration of the whole training, without validations and starts.
    `samples` is the number of samples in a step. `doubt` is the relative error of `step_s`, estimated from the spread
    of individual measurements. `start_s` is the time from the request for the instance to the first step. It includes
    the instance's boot; `usual_boot_s` is the usual boot time of such an instance.

    `otherwise` describes which of the job's values the bench replaced. `args` are the arguments with which the script
    was measured; for a job that runs a command, `command` is the measured command. `job` is the digest of the job
    without the arguments that a bench can replace; "" in an older record.
    """

    kind: str
    step_s: Seconds
    samples: Seconds | None
    work_s: Seconds | None
    at: Moment
    run: str
    doubt: Share = 0.0
    start_s: Seconds | None = None
    usual_boot_s: Seconds = 0.0
    job: str = ""
    otherwise: str = ""
    args: tuple[str, ...] = ()
    command: str = ""


def keep(store: Store, spec: RunSpec, found: BenchResult) -> None:
    """
    Store a measurement for later runs of `spec`.

    Raises:
        StoreError: the measurement was not stored.
    """
    store.put_status(_folder(spec) + _named(found.kind), msgspec.json.encode(found))


def benched(store: Store, spec: RunSpec) -> dict[str, BenchResult]:
    """
    Return the measurements of a job, keyed by kind of instance. Unreadable records are skipped.

    Raises:
        StoreError: the store cannot be read.
    """
    folder = _folder(spec)
    found = (_read(store, each.key) for each in store.list(folder))
    return {each.kind: each for each in found if each is not None}


def benched_otherwise(store: Store, name: str, job: str, kind: str) -> BenchResult | None:
    """
    Return the newest measurement of a job on instances of `kind`; None if there is none. In this measurement, the bench
    may have replaced some of the job's values. `name` is the job's name, and `job` its digest (BenchResult.job). Only
    the newest OTHERS_MAX measurements of jobs with this name are searched.

    Raises:
        StoreError: the store cannot be read.
    """
    listed = sorted(store.list(f"{FOLDER}/{name}/"), key=lambda each: each.modified_at, reverse=True)
    for each in listed[:OTHERS_MAX]:
        found = _read(store, each.key)
        if found is not None and (found.kind, found.job) == (kind, job):
            return found
    return None


def benched_steps(store: Store, spec: RunSpec, scale: float) -> dict[str, float]:
    """
    Return the measured seconds per step for each kind of instance that `spec` allows; {} if it allows only one kind.
    The seconds are in the run time of a new run of `spec`, whose clock is `scale` times as fast as that of the
    measurement.

    Raises:
        StoreError: the measurements cannot be read.
    """
    if not spec.resources.is_choice:
        return {}
    known = steps_of_the_first(spec.resources.kinds, benched(store, spec))
    return {kind: seconds * scale for kind, seconds in known.items()}


def steps_of_the_first(kinds: Iterable[Kind], known: dict[str, BenchResult]) -> dict[str, float]:
    """
    Return the seconds per step of each measured kind of instance. A step on more devices may have more samples. So each
    time is converted to the number of samples that a step has on the first measured kind in `kinds`.
    """
    found = [known[str(kind)] for kind in kinds if str(kind) in known]
    base = found[0].samples if found else None
    return {one.kind: one.step_s * (base / one.samples if base and one.samples else 1.0) for one in found}


def _read(store: Store, key: str) -> BenchResult | None:
    try:
        data = store.get(key, 0, SMALL_BYTES + 1)
        found = decode(data, BenchResult) if len(data) <= SMALL_BYTES else None
    except (ObjectMissing, OutOfBounds):
        return None
    return found if found is not None and found.step_s > 0 and key.endswith("/" + _named(found.kind)) else None


def _folder(spec: RunSpec) -> str:
    """
    Return the folder of a job's measurements. The folder depends on the job's arguments, because they may change the
    training.
    """
    return f"{FOLDER}/{spec.name}/{digest_of(spec)}/"


def digest_of(spec: RunSpec) -> str:
    """
    Return the digest of the job's program, its arguments and the number of instances.
    """
    trained = msgspec.json.encode([spec.to_dict()["train"], spec.num_nodes], order="deterministic")
    return hashlib.sha256(trained).hexdigest()[:16]


def _named(kind: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", kind)
