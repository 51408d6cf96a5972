"""
Reads the operations that were performed on an instance, and who requested them.

After an instance is gone, Google keeps only its operations. The types of operations are listed in
https://cloud.google.com/compute/docs/instances/viewing-and-managing-operations and
https://cloud.google.com/compute/docs/logging/activity-logs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from spotrun.clouds.gcp.delete_ids import off_since
from spotrun.clouds.gcp.moments import moment
from spotrun.instance import EndedBy

SYSTEM = "compute.instances."
INSERT, DELETE, STOP = "insert", "delete", "stop"
ENDED_BY = {
    f"{SYSTEM}preempted": EndedBy.CLOUD,
    f"{SYSTEM}deferredDelete": EndedBy.TIME_TO_LIVE,
    f"{SYSTEM}deferredStop": EndedBy.TIME_TO_LIVE,
    f"{SYSTEM}guestTerminate": EndedBy.ITSELF,
    f"{SYSTEM}hostError": EndedBy.FAULT,
    f"{SYSTEM}terminateOnHostMaintenance": EndedBy.FAULT,
    DELETE: EndedBy.USER,
    STOP: EndedBy.USER,
}
"""
The party that ended an instance, keyed by the type of the operation that Google recorded for the end. For an instance
that ended without any of these operations, spotrun assumes a fault of Google's systems.
"""
_RESTARTS = ("start", f"{SYSTEM}automaticRestart")
"""
Types of operations that start a switched-off instance again. After such a start, earlier operations no longer count as
the end of the instance.
"""


class Operation(NamedTuple):
    """
    One operation on an instance. `of` is the number of the instance, which Google never reuses; `target` and `zone` are
    the instance's name and zone. `off_since` is the time at which the machine was switched off, if spotrun deleted the
    instance for that reason.
    """

    kind: str
    target: str
    zone: str
    of: str
    asked_at: datetime
    ended_at: datetime | None
    error: Mapping[str, Any] | None
    told: str
    off_since: datetime | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


def read_operations(rows: Iterable[Mapping[str, Any]]) -> list[Operation]:
    """Read operations, oldest first. Rows without a time, or without an instance as their target, are left out."""
    found = [operation for row in rows if (operation := _read(row)) is not None]
    return sorted(found, key=lambda each: each.asked_at)


def _read(row: Mapping[str, Any]) -> Operation | None:
    place = str(row.get("targetLink", "")).split("/")
    asked_at = moment(row.get("insertTime")) or moment(row.get("startTime"))
    if asked_at is None or len(place) < 4 or place[-2] != "instances":
        return None
    done = row.get("status") == "DONE"
    ended_at = (moment(row.get("endTime")) or asked_at) if done else None
    kind, target, zone = str(row.get("operationType", "")), place[-1], place[-3]
    error = row if done and (row.get("error") or int(row.get("httpErrorStatusCode", 0)) >= 400) else None
    off = off_since(row.get("clientOperationId")) if kind == DELETE else None
    return Operation(kind, target, zone, str(row.get("targetId", "")), asked_at, ended_at, error, _told(row), off)


def _told(row: Mapping[str, Any]) -> str:
    """Return the operation's type and message, such as `compute.instances.preempted: Instance was preempted.`"""
    return ": ".join(filter(None, (str(row.get("operationType", "")), str(row.get("statusMessage", "")))))


def of_the_last(operations: Sequence[Operation]) -> list[Operation]:
    """
    Return the operations on the newest instance. All `operations` are on instances with the same name. There can be
    several such instances, because another program may have reused the name of a deleted one.
    """
    numbers = [each.of for each in operations if each.of]
    return [each for each in operations if not each.of or each.of == numbers[-1]] if numbers else [*operations]


def is_being_deleted(operations: Sequence[Operation]) -> bool:
    """Return True if a deletion of the newest instance is under way."""
    return any(each.kind == DELETE and each.ended_at is None for each in of_the_last(operations))


def first_end(operations: Iterable[Operation]) -> Operation | None:
    """Return the operation that first ended the instance. A preemption or a switch-off may precede the deletion."""
    ends = _ends(operations)
    return next((each for each in ends if not _was_in_vain(each, ends)), None)


def _ends(operations: Iterable[Operation]) -> list[Operation]:
    done = [each for each in operations if not each.failed]
    began = max((at for at, each in enumerate(done) if each.kind in _RESTARTS), default=-1)
    return [each for each in done[began + 1 :] if each.kind in ENDED_BY]


def _was_in_vain(end: Operation, ends: Iterable[Operation]) -> bool:
    """
    Return True if `end` is a delete that had no effect: after it had finished, another operation began to end the same
    instance (G12).
    """
    over_at = end.ended_at
    return end.kind == DELETE and over_at is not None and any(each.asked_at >= over_at for each in ends if each != end)


def last_end(operations: Iterable[Operation]) -> Operation | None:
    """Return the operation that removed the instance's disk."""
    ends = _ends(operations)
    return ends[-1] if ends else None
