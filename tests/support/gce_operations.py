"""
The operations of a project: what was done, by whom, to what, and how it ended.

https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations. They outlive what they were done to.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.support.gce_answers import URL, Failure, Json, moment

SYSTEM = "system"
PREEMPTED = "compute.instances.preempted"
GUEST_TERMINATE = "compute.instances.guestTerminate"
HOST_ERROR = "compute.instances.hostError"
DEFERRED_DELETE, DEFERRED_STOP = "compute.instances.deferredDelete", "compute.instances.deferredStop"
MESSAGES = {
    PREEMPTED: "Instance was preempted.",
    GUEST_TERMINATE: "Guest OS-initiated shutdown.",
    HOST_ERROR: "Instance terminated by Compute Engine.",
    DEFERRED_DELETE: "Instance deleted by Compute Engine.",
    DEFERRED_STOP: "Instance stopped by Compute Engine.",
}
"""What `statusMessage` says, as https://cloud.google.com/compute/docs/instances/preemptible shows one."""


@dataclass(eq=False)
class Operation:
    """`target` is the path of what it is done to, from `projects/`; `target_id` its number."""

    id: int
    name: str
    kind: str
    project: str
    zone: str
    target: str
    target_id: int
    user: str
    inserted: datetime
    request_id: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    failure: Failure | None = None

    @property
    def status(self) -> str:
        return "PENDING" if self.started is None else "RUNNING" if self.ended is None else "DONE"

    @property
    def json(self) -> Json:
        base = f"{URL}projects/{self.project}/zones/{self.zone}"
        found: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            "zone": base,
            "operationType": self.kind,
            "targetLink": f"{URL}{self.target}",
            "targetId": str(self.target_id),
            "status": self.status,
            "user": self.user,
            "progress": {"PENDING": 0, "RUNNING": 50, "DONE": 100}[self.status],
            "insertTime": moment(self.inserted),
            "selfLink": f"{base}/operations/{self.name}",
        }
        if self.request_id is not None:
            found["clientOperationId"] = self.request_id
        if self.kind in MESSAGES:
            found["statusMessage"] = MESSAGES[self.kind]
        for field, at in (("startTime", self.started), ("endTime", self.ended)):
            if at is not None:
                found[field] = moment(at)
        return {**found, **self._error}

    @property
    def _error(self) -> Json:
        if self.failure is None:
            return {}
        told = {"httpErrorStatusCode": self.failure.status, "httpErrorMessage": self.failure.phrase}
        return {"error": self.failure.error, **told}


class OperationLog:
    """How long operations are kept, and how long a requestId counts, is not said for Compute Engine."""

    def __init__(self) -> None:
        self.kept = timedelta(days=14)
        self.request_ids_count = timedelta(minutes=60)
        self._all: list[Operation] = []
        self._repeatable: dict[str, Operation] = {}

    def add(self, operation: Operation) -> Operation:
        self._all.append(operation)
        if operation.request_id is not None:
            self._repeatable[operation.request_id] = operation
        return operation

    def repeated(self, request_id: str | None, now: datetime) -> Operation | None:
        """What the first request with this id began."""
        found = self._repeatable.get(request_id or "")
        return found if found is not None and now - found.inserted < self.request_ids_count else None

    def known(self, now: datetime) -> list[Operation]:
        return [each for each in self._all if now - each.inserted < self.kept]


def operation_name(is_system: bool) -> str:
    return f"{'systemevent' if is_system else 'operation'}-{uuid.uuid4()}"
