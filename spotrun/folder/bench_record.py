"""
Measurements of `spotrun bench`, kept next to the runs of the store for later runs of the same job.

    bench/NAME/DIGEST/KIND                  DIGEST is that of what the job trains, with all its arguments

A later measurement of the same replaces the one before. The record only decides which type is requested first: without
it a run uses published figures, until it has measured its own.
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
"""Folder of the measurements. No run's folder has this name: each ends in a uid."""
OTHERS_MAX = 30
"""Maximum records that are searched for one with other arguments, the newest first."""


class Benched(msgspec.Struct, frozen=True, kw_only=True):
    """
    A measurement of a job on a `kind` of instances: seconds of a step, and of the whole training without validations
    and starts. `samples` are those of a step. `doubt` is the share by which a step may be wrong, as far as the
    measurement itself shows. `start_s` is from the request for the instance to the first step, and `usual_boot_s` the
    expected boot in it. None is unknown. `run` is where it was measured.

    `otherwise` says what the bench had put in place of the job's own values, by these `args` of its script or this
    `command`. `job` is the digest of the job without all that a bench varies; "" in an older record.
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


def keep(store: Store, spec: RunSpec, found: Benched) -> None:
    """
    Keep a measurement for later runs of `spec`, which is the job as it was measured.

    Raises:
        StoreError: the store does not take it.
    """
    store.put_status(_folder(spec) + _named(found.kind), msgspec.json.encode(found))


def benched(store: Store, spec: RunSpec) -> dict[str, Benched]:
    """
    Return the measurements of a job, by kind. Unreadable ones are passed over.

    Raises:
        StoreError: the store cannot be read.
    """
    listed = store.list(_folder(spec))
    found = (_read(store, each.key) for each in listed)
    return {each.kind: each for each in found if each is not None}


def benched_otherwise(store: Store, name: str, job: str, kind: str) -> Benched | None:
    """
    Return the newest measurement on that kind of the job of that name and digest, with any values that a bench varies;
    None if there is none.

    Raises:
        StoreError: the store cannot be read.
    """
    listed = sorted(store.list(f"{FOLDER}/{name}/"), key=lambda each: each.modified_at, reverse=True)
    for each in listed[:OTHERS_MAX]:
        found = _read(store, each.key)
        if found is not None and (found.kind, found.job) == (kind, job):
            return found
    return None


def steps_of_the_first(kinds: Iterable[Kind], known: dict[str, Benched]) -> dict[str, float]:
    """
    Return for each known kind of a choice the seconds in which it trains as much as the first known kind in a step:
    with more devices, a step may have more samples.
    """
    found = [known[str(kind)] for kind in kinds if str(kind) in known]
    base = found[0].samples if found else None
    return {one.kind: one.step_s * (base / one.samples if base and one.samples else 1.0) for one in found}


def _read(store: Store, key: str) -> Benched | None:
    try:
        data = store.get(key, 0, SMALL_BYTES + 1)
        found = decode(data, Benched) if len(data) <= SMALL_BYTES else None
    except (ObjectMissing, OutOfBounds):
        return None
    return found if found is not None and found.step_s > 0 and key.endswith("/" + _named(found.kind)) else None


def _folder(spec: RunSpec) -> str:
    """
    Return the folder of a job's measurements. A run of the same name with other arguments may train something else.
    """
    return f"{FOLDER}/{spec.name}/{digest_of(spec)}/"


def digest_of(spec: RunSpec) -> str:
    """Return the digest of what the job trains."""
    trained = msgspec.json.encode([spec.to_dict()["train"], spec.num_nodes], order="deterministic")
    return hashlib.sha256(trained).hexdigest()[:16]


def _named(kind: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", kind)
