"""What a run calls at Google, and how a call there fails: https://cloud.google.com/apis/design/errors."""

from __future__ import annotations

import pytest

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.error_codes import ERRORS_BY_CODE
from tests.support import gce_answers as answers
from tests.support.gce_answers import Failure, Refusal
from tests.support.google_cloud import Hang, Lost
from tests.support.http_server import Reply
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_google import LISTS, LOGIN, LoggedOut, Trouble

INSERT, DELETE = PlainGcpRun.launch_call, PlainGcpRun.end_call
CALLS = (
    *LISTS,
    *(INSERT, DELETE, "compute.instances.get", "compute.zoneOperations.get"),
    *("compute.zones.list", "compute.machineTypes.list", "compute.images.getFromFamily", "compute.subnetworks.get"),
    *("compute.advice.capacityHistory", "cloudbilling.services.skus.list"),
    *(f"iam.projects.serviceAccounts.{verb}" for verb in ("create", "get", "delete")),
    *(f"storage.managedFolders.{verb}" for verb in ("insert", "getIamPolicy", "setIamPolicy", "delete")),
    LOGIN,
)
"""What a runner calls, by the ids of Google's description."""
NEVER_HEARD_OF = "NEVER_HEARD_OF"
_LATER = ("rateLimitExceeded", "userRateLimitExceeded", "backendError", "internalError")
_STATUS_OF = {**dict.fromkeys(_LATER[:2], 403), **dict.fromkeys(_LATER[2:], 503)}
_BILLING = Refusal(
    403,
    "forbidden",
    "This API method requires billing to be enabled.",
    ({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "BILLING_DISABLED"},),
)
_POLICY = Refusal(
    412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated for project 123456789012."
)
HTTP: dict[str, Trouble] = {
    "400 invalid": Refusal(400, "invalid", "Invalid value for field 'resource.scheduling'."),
    "400 badRequest": Refusal(400, "badRequest"),
    "400 unheard of": Refusal(400, NEVER_HEARD_OF),
    "401": answers.UNAUTHENTICATED,
    "403 forbidden": Refusal(403, "forbidden", "Required permission is missing."),
    "403 rate": answers.RATE_LIMIT,
    "403 quota": Refusal(403, "quotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 1.0 in region us-central1."),
    "403 off": answers.API_DISABLED,
    "403 billing": _BILLING,
    "404": Refusal(404, "notFound", "The resource was not found"),
    "409": Refusal(409, "alreadyExists", "The resource already exists"),
    "412 constraint": _POLICY,
    "418": Refusal(418, ""),
    "429": Refusal(429, "rateLimitExceeded", "Too many requests."),
    "500": Refusal(500, "internalError", "Internal error."),
    "502 HTML": Reply(502, b"<html><title>Error 502 (Server Error)!!1</title></html>"),
    "503": answers.BACKEND_ERROR,
    "a portal": Reply(200, b"<html><title>Welcome to the hotel</title><body>Log in</body></html>"),
    "garbage": Reply(200, b'{"kind": "compute#'),
    "a list": Reply(200, b"[]"),
    "lost": Lost,
    "hangs": Hang,
}
LOGINS: dict[str, Trouble] = {
    "invalid_grant": Reply(
        400, b'{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}'
    ),
    "nobody": LoggedOut(),
}
NOT_THERE = ("404", *(f"reason {code}" for code, (kind, *_) in ERRORS_BY_CODE.items() if issubclass(kind, NotThere)))
"""Cloud Storage says so of nothing that is there: https://cloud.google.com/storage/docs/consistency"""
PASSING = ("403 rate", "429", "500", "502 HTML", "503", "a portal", "garbage", "a list", "lost", "hangs")
"""By themselves, and soon."""


def reasons() -> dict[str, Trouble]:
    """Every reason and code that spotrun knows by name, in an answer of HTTP."""
    return {f"reason {code}": Refusal(_STATUS_OF.get(code, 400), code) for code in sorted(ERRORS_BY_CODE)}


def of_operations(call: str) -> dict[str, Trouble]:
    """What its operation ends with behind an answer of 200. An instance may be there all the same (G1)."""
    found: dict[str, Trouble] = {"operation 503": Failure("", status=503)}
    for code in (*sorted(ERRORS_BY_CODE), NEVER_HEARD_OF):
        found[f"operation {code}"] = Failure(code, status=_STATUS_OF.get(code, 400))
        if call == INSERT:
            found[f"operation {code}, kept"] = Failure(code, status=_STATUS_OF.get(code, 400), keeps=True)
    return found if call == INSERT else {**found, "operation without effect": answers.NOTHING_DONE}


def errors_of(call: str) -> dict[str, Trouble]:
    """All of them by name."""
    if call == LOGIN:
        return {**{name: error for name, error in HTTP.items() if name in PASSING or name == "401"}, **LOGINS}
    found = {**HTTP, **reasons(), **(of_operations(call) if call in (INSERT, DELETE) else {})}
    return {name: error for name, error in found.items() if not (call.startswith("storage.") and name in NOT_THERE)}


def passes_soon(_call: str, name: str) -> bool:
    return name in PASSING or name.removeprefix("reason ") in _LATER or name == "operation 503"


def new_run(monkeypatch: pytest.MonkeyPatch) -> PlainGcpRun:
    return PlainGcpRun(monkeypatch)
