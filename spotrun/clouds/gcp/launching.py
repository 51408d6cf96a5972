"""
Requests an instance from Google. Google immediately answers the insert call with an operation, which shows only later
whether the launch succeeded (failures.md G2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from spotrun.clock import Clock
from spotrun.clouds.error_kinds import AlreadyThere, NotThere
from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.delete_ids import delete_id
from spotrun.clouds.gcp.error_codes import IDENTITY_DENIED, NoticeRefused, failed, lacking_identity
from spotrun.clouds.gcp.names import name_for
from spotrun.clouds.gcp.notices import EXTENDED_NOTICE
from spotrun.clouds.gcp.request import insert_body, request_id
from spotrun.errors import CloudError
from spotrun.instance import LaunchRequest

ACCEPTED_WITHIN_S = 45.0
"""
Maximum seconds that a launch waits for its operation to end. An operation that is still open then continues at Google,
and a later listing of operations shows how it ended.
"""
LOOKED_EVERY_S = 1.0
_HAS_CAPACITY = ("STAGING", "RUNNING")
"""
States of an instance for which Google has found capacity:
https://cloud.google.com/compute/docs/instances/instance-lifecycle
"""


class Launching:
    """
    Requests instances in one project. Remembers whether the project may request the longer notice, of two minutes.
    Counts for each launch how often Google refused the instance's service account.
    """

    def __init__(self, google: Google, project: str, config: GcpConfig, clock: Clock) -> None:
        self._google = google
        self._project = project
        self._config = config
        self._clock = clock
        self._notice = EXTENDED_NOTICE
        self._denials: Counter[str] = Counter()

    def launch(self, request: LaunchRequest, denials: int = 0) -> None:
        """
        Request an instance. Return when it has capacity, or after ACCEPTED_WITHIN_S if that is still unknown.

        `denials` is how often this launch failed because of its service account, according to Google's list of
        operations. After each such failure the call needs a new request id (see `request_id`).

        Raises:
            AlreadyThere: a resource of the same name exists.
            CloudError: the launch was refused, or failed. It has left no instance, unless the message says so.
        """
        self._denials[request.token] = max(denials, self._denials[request.token])
        operation = self._asked(request)
        name = str(name_for(request))
        target = str(operation.get("targetLink", "")).rpartition("/")[2]
        if target != name:
            raise CloudError(f"the token of launch {request.launch} was already used for another request: {target}")
        error = self._settled(request, name, operation)
        if isinstance(error, AlreadyThere):
            raise error  # an earlier try of this launch made the instance, which may be training
        self._denials[request.token] += isinstance(error, IDENTITY_DENIED)
        if error is not None:
            try:
                row = self._row(request, name)
                is_denied, is_own = isinstance(error, IDENTITY_DENIED), row.get("id") == operation.get("targetId")
                if is_own and row.get("status") in _HAS_CAPACITY:
                    return  # the error did not keep Google from starting the instance
                # Without `is_own`, another runner has repeated a denied launch, and the instance is that runner's.
                if not is_denied or is_own:
                    self._end(request, name)
            except CloudError as unended:
                error.message = f"{error.message}; it may have left an instance, which was not ended: {unended.message}"
            raise error

    def _asked(self, request: LaunchRequest) -> dict[str, Any]:
        try:
            return self._insert(request, self._notice)
        except NoticeRefused:
            self._notice = timedelta()
            return self._insert(request, self._notice)

    def _insert(self, request: LaunchRequest, notice: timedelta) -> dict[str, Any]:
        """Send the insert call. Repeating it is harmless, because it has the same request id and parameters."""
        body = insert_body(request, self._config, self._project, notice)
        query = {"requestId": request_id(request, notice, self._denials[request.token])}
        call = self._call(request, "POST", "instances", query, body)
        try:
            return self._google.ask(f"launch {request.offering}", call)
        except NotThere as error:
            raise lacking_identity(error) from error

    def _settled(self, request: LaunchRequest, name: str, operation: Mapping[str, Any]) -> CloudError | None:
        """
        Wait for the result of the launch. Return the error if it failed. Return None if it succeeded, or if its result
        is unknown after ACCEPTED_WITHIN_S.
        """
        until_s = self._clock.monotonic() + ACCEPTED_WITHIN_S
        while operation.get("status") != "DONE":
            try:
                if self._has_capacity(request, name) or self._clock.monotonic() >= until_s:
                    return None
                self._clock.sleep(LOOKED_EVERY_S)
                asked = self._call(request, "GET", f"operations/{operation['name']}")
                operation = self._google.ask(f"read the launch of {name}", asked)
            except CloudError:
                return None
        return failed(f"launch {request.offering}", operation)

    def _has_capacity(self, request: LaunchRequest, name: str) -> bool:
        return self._row(request, name).get("status") in _HAS_CAPACITY

    def _row(self, request: LaunchRequest, name: str) -> Mapping[str, Any]:
        """Return Google's description of the instance; {} if no instance has this name."""
        try:
            return self._google.ask(f"read {name}", self._call(request, "GET", f"instances/{name}"))
        except NotThere:
            return {}

    def _end(self, request: LaunchRequest, name: str) -> None:
        """End the instance of a failed launch, because it may exist and be billed in spite of the error (G1)."""
        call = self._call(request, "DELETE", f"instances/{name}", {"requestId": delete_id()})
        try:
            self._google.ask(f"end {name}, whose launch has failed", call)
        except NotThere:
            return

    def _call(
        self,
        request: LaunchRequest,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Call:
        zone = f"projects/{self._project}/zones/{request.offering.zone}"
        return Call(COMPUTE, method, f"{zone}/{path}", query or {}, body)
