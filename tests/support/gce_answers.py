"""
The forms of Compute Engine's answers: links, moments, fingerprints, refusals, and failures of operations.

A `Refusal` is an error of HTTP, a `Failure` what an operation ends with, behind an answer of 200:
https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

URL = "https://www.googleapis.com/compute/v1/"
PACIFIC = ZoneInfo("America/Los_Angeles")
Json = Mapping[str, Any]


def moment(at: datetime) -> str:
    """As Compute Engine writes it: RFC 3339 with the offset of the Pacific coast."""
    return at.astimezone(PACIFIC).isoformat(timespec="milliseconds")


def fingerprint(value: object) -> str:
    """Changes with the value. It is base64: libcloud reads it so."""
    return base64.b64encode(hashlib.sha256(json.dumps(value).encode()).digest()[:8]).decode()


def last_part(link: str) -> str:
    return link.rpartition("/")[2]


@dataclass(eq=False)
class Refusal(Exception):
    """An error of HTTP. `details` are those of google.rpc."""

    status: int
    reason: str
    message: str = "by the test"
    details: tuple[Json, ...] = ()

    @property
    def body(self) -> Json:
        error = {"code": self.status, "message": self.message, "errors": [self._first]}
        if self.details:
            error["details"] = list(self.details)
        return {"error": error}

    @property
    def _first(self) -> Json:
        domain = "usageLimits" if self.reason in ("accessNotConfigured", *RATE_LIMITS) else "global"
        return {"message": self.message, "domain": domain, "reason": self.reason}


RATE_LIMITS = ("rateLimitExceeded", "userRateLimitExceeded")
RATE_LIMIT = Refusal(403, "rateLimitExceeded", "Rate Limit Exceeded")
"""403, not 429: https://cloud.google.com/compute/api-quota"""
BACKEND_ERROR = Refusal(503, "backendError", "Internal error. Please try again or contact Google Support.")
UNAUTHENTICATED = Refusal(401, "authError", "Request had invalid authentication credentials.")
API_DISABLED = Refusal(
    403,
    "accessNotConfigured",
    "Compute Engine API has not been used in project 123456789012 before or it is disabled.",
    (
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "SERVICE_DISABLED",
            "domain": "googleapis.com",
            "metadata": {"service": "compute.googleapis.com", "consumer": "projects/123456789012"},
        },
    ),
)


def invalid(field: str, value: object, why: str) -> Refusal:
    return Refusal(400, "invalid", f"Invalid value for field 'resource.{field}': '{value}'. {why}")


def bad_request(message: str) -> Refusal:
    return Refusal(400, "badRequest", message)


def not_found(path: str) -> Refusal:
    return Refusal(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> Refusal:
    return Refusal(409, "alreadyExists", f"The resource '{path}' already exists")


def not_ready(path: str) -> Refusal:
    return Refusal(400, "resourceNotReady", f"The resource '{path}' is not ready")


def forbidden(permission: str, path: str) -> Refusal:
    return Refusal(403, "forbidden", f"Required '{permission}' permission for '{path}'")


@dataclass(eq=False)
class RpcRefusal(Refusal):
    """An error as newer services write it: `reason` is a status of google.rpc."""

    @property
    def body(self) -> Json:
        return {"error": {"code": self.status, "message": self.message, "status": self.reason}}


_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
}


def rpc_refusal(status: int, message: str) -> RpcRefusal:
    return RpcRefusal(status, _STATUSES[status], message)


class Failure(NamedTuple):
    """What is in `error.errors` of an operation. `keeps`: the instance is there all the same, and billed (G1)."""

    code: str
    message: str = "by the test"
    status: int = 400
    details: tuple[Json, ...] = ()
    keeps: bool = False

    @property
    def phrase(self) -> str:
        return _PHRASES.get(self.status, "BAD REQUEST")

    @property
    def error(self) -> Json:
        detailed = {"errorDetails": list(self.details)} if self.details else {}
        return {"errors": [{"code": self.code, "message": self.message, **detailed}]}


_PHRASES = {403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 412: "PRECONDITION FAILED", 503: "SERVICE UNAVAILABLE"}
NOTHING_DONE = Failure("NOTHING_DONE")
"""A delete that is answered well and does nothing, as in https://github.com/elotl/kip/issues/76 (G12)."""
DELETED_WHILE_MADE = Failure("CONFLICT", "The instance was deleted while it was being created.", 409)
"""The status is from https://github.com/piercefreeman/cloud-gpu-reliability/pull/5, which does not have the code."""
TAKEN_WHILE_MADE = Failure("UNSUPPORTED_OPERATION", "Instance is not available", 400)


def stockout(project: str, zone: str, kind: str, attachment: str, elsewhere: tuple[str, ...]) -> Failure:
    """As https://github.com/kubernetes/k8s.io/issues/9834 has it. `elsewhere` are zones that have some."""
    metadatas = {"attachment": attachment, "vmType": kind, "zone": zone, "zonesAvailable": ",".join(elsewhere)}
    message = f"A {kind} VM instance is currently unavailable in the {zone} zone."
    details = (
        {"localizedMessage": {"locale": "en-US", "message": message}},
        {"errorInfo": {"domain": "compute.googleapis.com", "reason": "resource_availability", "metadatas": metadatas}},
    )
    whole = (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request."
    )
    return Failure("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", whole, 503, details)


def quota_exceeded(metric: str, limit: float, region: str | None) -> Failure:
    """Without a region it is one of the whole project. https://cloud.google.com/compute/resource-usage"""
    name = f"{metric.replace('_', '-')}-per-project{'-region' if region else ''}"
    dimensions = {"region": region} if region else {"global": "global"}
    info = {"metricName": f"compute.googleapis.com/{metric.lower()}", "limitName": name, "limit": limit}
    where = f"in region {region}" if region else "globally"
    message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}."
    return Failure("QUOTA_EXCEEDED", message, 403, ({"quotaInfo": {**info, "dimensions": dimensions}},))


def account_unknown(email: str) -> Failure:
    """
    The answer about a service account that does not exist, or not yet everywhere: in the operation, behind a 200.

    https://cloud.google.com/iam/docs/service-accounts-create. Users quote these words, also with `One of [ADDRESS]`:
    https://github.com/GoogleCloudPlatform/terraform-google-managed-instance-group/issues/40.
    """
    return Failure("RESOURCE_NOT_FOUND", f"The resource '{email}' of type 'serviceAccount' was not found.", 404)


def account_denied(email: str) -> Failure:
    """Seen behind a 200, for an account that was just made."""
    message = f"The user does not have access to service account '{email}'."
    return Failure("SERVICE_ACCOUNT_ACCESS_DENIED", message, 400)


def failed(refusal: Refusal, code: str) -> Failure:
    """The same, told in an operation."""
    return Failure(code, refusal.message, refusal.status)
