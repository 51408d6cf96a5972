"""
Translates Google's error codes into CloudDriver's errors.

Google reports a refusal in one of two ways. An HTTP answer has reasons and details
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-api-requests); a failed operation has codes
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation). Numbers such as G6 or P4 refer to
rows of the failure catalogue, which describe failures that these errors caused in other projects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spotrun.clouds.error_kinds import (
    OTHER_OFFERING,
    AlreadyThere,
    BadImage,
    BadSurroundings,
    CredentialsExpired,
    CredentialsRefused,
    Meaning,
    NotThere,
    Unsupported,
    by_code,
)
from spotrun.clouds.gcp.faults import Fault, faults_of_http, faults_of_operation, words_of
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    LaunchTokenSpent,
    QuotaExceeded,
)


class StockedOut(InsufficientCapacity):
    """The zone has no capacity left for this type. `elsewhere` lists the zones that Google says have capacity."""

    def __init__(self, message: str, *, hint: str | None = None, elsewhere: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.elsewhere = elsewhere


class AddressesExhausted(InsufficientCapacity):
    """The subnetwork has no free address, so no instance can start in it."""


class NoticeRefused(CloudError):
    """The project is not allowed to request two minutes of notice. The launch is repeated without this request."""


class ServiceOff(AccessDenied):
    """The called API is not enabled in the project."""


class ProjectMissing(AccessDenied):
    """The project does not exist, or this account is not allowed to know of it."""


class BillingOff(AccessDenied):
    """The project has no billing account, or a closed one."""


class PerimeterForbids(AccessDenied):
    """
    A perimeter of VPC Service Controls keeps the request out. Google reports it like a missing right, but no role
    helps: https://cloud.google.com/vpc-service-controls/docs/troubleshooting
    """


class PolicyForbids(CloudError):
    """
    An organization policy forbids the request. Google reports this with status 412, which otherwise means that another
    request changed the resource first.
    """


IDENTITY_DENIED = (IdentityUnknown, AccessDenied)
"""
Errors of a launch with a new service account. Such a launch succeeds once all parts of Google know the account, so the
driver repeats the launch.
"""
_ADDRESSES = "make the subnetwork's range larger: gcloud compute networks subnets expand-ip-range"
_MORE = "request an increase at https://console.cloud.google.com/iam-admin/quotas"
_QUOTA = f"{_MORE}, or name another region"
_QUOTA_OF_ALL = f"{_MORE}: the quota is shared by all regions"
_ROLE = "grant the roles of infra/gcp/README.md to the account that runs spotrun, in this project"
_ENABLE = "turn it on: gcloud services enable compute.googleapis.com iam.googleapis.com storage.googleapis.com"
_BILLING = "link a billing account to the project: https://console.cloud.google.com/billing/projects"
_PROJECT = "name the project in gcp.project, or with `gcloud config set project PROJECT`"
_QUOTA_PROJECT = (
    "your login names a quota project: grant your account serviceusage.services.use there (the role spotrunRunner of "
    "infra/gcp has it), or name another one: gcloud auth application-default set-quota-project PROJECT"
)
_NO_QUOTA_PROJECT = (
    "your login names no quota project, so the API would have to be on in gcloud's own project: "
    "gcloud auth application-default set-quota-project PROJECT"
)
LOG_IN_ANEW = "log in again with `gcloud auth application-default login`; meanwhile training continues"
LOG_IN = "log in by `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_IMAGE = "set gcp.image to an image that exists and that this project is allowed to use: gcloud compute images list"
_IDENTITY = "check gcp.service_account, or leave it out: each run then has a separate one (infra/gcp/README.md)"
_SCOPES = (
    "log in with the scope cloud-platform: gcloud auth application-default login "
    "--scopes=openid,https://www.googleapis.com/auth/userinfo.email,https://www.googleapis.com/auth/cloud-platform"
)
_VOLUME = "set gcp.volume_gb to at least the size of the image"
_SURROUNDINGS = "check gcp.subnetwork and gcp.regions (infra/gcp makes a subnetwork in each region)"
_ON_THE_WAY = "check HTTPS_PROXY and anything else between this machine and Google"
_PERIMETER = (
    "call from inside the perimeter (the office's network or VPN), or ask its administrator for an ingress rule: "
    "https://cloud.google.com/vpc-service-controls/docs/troubleshooting"
)
_POLICY = "ask the administrator of the organization for an exception, or name another project"

_BY_CONSTRAINT = {
    "compute.vmExternalIpAccess": "set gcp.external_address to false, or ask the organization for an exception",
    "compute.requireShieldedVm": "set gcp.secure_boot to true, and gcp.image to one that supports it",
    "run.allowedIngress": "ask the organization to allow the ingress `all`; callers of a night still need run.invoker",
    "compute.restrictSharedVpcSubnetworks": "set gcp.subnetwork to the path of a subnetwork that the policy allows",
}
"""Constraints of organization policies, each with the key of the job that satisfies it, or with what to ask for."""

_THERE_ALREADY = ("alreadyExists", "duplicate", "RESOURCE_ALREADY_EXISTS")
ERRORS_BY_CODE = by_code(
    (
        StockedOut,
        OTHER_OFFERING,
        "ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS insufficientCapacity STOCKOUT",
        "resource_availability RESOURCE_POOL_EXHAUSTED UNSUPPORTED_OPERATION",
    ),
    (AddressesExhausted, _ADDRESSES, "IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS"),
    (QuotaExceeded, _QUOTA, "QUOTA_EXCEEDED quotaExceeded limitExceeded"),
    (
        CloudUnavailable,
        None,
        "rateLimitExceeded userRateLimitExceeded RATE_LIMIT_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED",
        "resourceNotReady RESOURCE_NOT_READY resourceInUseByAnotherResource RESOURCE_IN_USE",
        "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE operationInProgress fingerprintMismatch",
        "backendError internalError INTERNAL_ERROR UNAVAILABLE INTERNAL ABORTED",
    ),
    (ServiceOff, _ENABLE, "accessNotConfigured SERVICE_DISABLED"),
    (BillingOff, _BILLING, "BILLING_DISABLED UREQ_PROJECT_BILLING_NOT_FOUND billingNotEnabled accountDisabled"),
    (AccessDenied, _QUOTA_PROJECT, "USER_PROJECT_DENIED"),
    (ProjectMissing, _PROJECT, "CONSUMER_INVALID"),
    (AccessDenied, _SCOPES, "ACCESS_TOKEN_SCOPE_INSUFFICIENT"),
    (
        AccessDenied,
        _ROLE,
        "forbidden PERMISSION_DENIED IAM_PERMISSION_DENIED PERMISSIONS_ERROR insufficientPermissions",
    ),
    (IdentityUnknown, _IDENTITY, "SERVICE_ACCOUNT_ACCESS_DENIED SERVICE_ACCOUNT_NOT_FOUND serviceAccountNotFound"),
    (CredentialsExpired, LOG_IN_ANEW, "authError UNAUTHENTICATED"),
    (AlreadyThere, None, " ".join((*_THERE_ALREADY, "conflict"))),
    (NotThere, None, "notFound RESOURCE_NOT_FOUND EXTERNAL_RESOURCE_NOT_FOUND NOT_FOUND"),
    (PolicyForbids, _POLICY, "conditionNotMet CONDITION_NOT_MET"),
    (PerimeterForbids, _PERIMETER, "SECURITY_POLICY_VIOLATED"),
)
"""The class of the error and a hint for the user, keyed by Google's reason or code."""

_BY_STATUS: dict[int, Meaning] = {
    401: (CredentialsExpired, LOG_IN_ANEW),
    403: (AccessDenied, _ROLE),
    404: (NotThere, None),
    409: (AlreadyThere, None),
    412: (PolicyForbids, _POLICY),
    429: (CloudUnavailable, None),
}
"""
The error for an answer that gives no known reason, keyed by HTTP status. Google uses status 403 for missing rights and
for throttling, but it always gives a reason for throttling. So 403 without a reason means AccessDenied.
"""
_VAGUE = (
    *("forbidden", "PERMISSION_DENIED", "PERMISSIONS_ERROR", "insufficientPermissions"),
    *("notFound", "NOT_FOUND", "RESOURCE_NOT_FOUND", "EXTERNAL_RESOURCE_NOT_FOUND"),
)
"""
Codes that Google uses for many different faults. Such a code decides the class of the error only if neither the fault's
details nor its message are more specific.
"""
_ACCOUNT = re.compile(r"service ?accounts?\b|\.gserviceaccount\.com\b", re.IGNORECASE)
"""Matches a message that mentions a service account, by these words or by an address."""
_BAD_REQUEST = 400
_UNAUTHENTICATED = 401
_CONFLICT = 409
_SERVER = 500

_PERMANENCE: tuple[type[CloudError], ...] = (
    *(CredentialsRefused, AccessDenied, PolicyForbids, BadImage, NoticeRefused, Unsupported, BadSurroundings),
    *(IdentityUnknown, QuotaExceeded, AddressesExhausted, StockedOut, LaunchTokenSpent, AlreadyThere, NotThere),
)
"""
Errors in order of how long they last, from permanent to temporary. If one answer reports several faults, the fault
whose error comes first in this list is reported (P25). Temporary errors that are not in the list come after all that
are.
"""

_WORDS: tuple[tuple[tuple[int, ...], re.Pattern[str], Meaning], ...] = tuple(
    (statuses, re.compile(words, re.IGNORECASE), meaning)
    for statuses, words, meaning in (
        ((403,), r"billing (account|disabled|to be enabled)", (BillingOff, _BILLING)),
        ((403,), r"vpcServiceControls|VPC Service Controls", (PerimeterForbids, _PERIMETER)),
        ((403,), r"API has not been used|it is disabled", (ServiceOff, _ENABLE)),
        (
            (400, 404),
            r"find project|unknown project|resource 'projects/[^/']+' was not found",
            (ProjectMissing, _PROJECT),
        ),
        ((400,), r"preemptionNoticeDuration|preemption[ _-]notice", (NoticeRefused, None)),
        ((400,), r"diskSizeGb|disk size", (CloudError, _VOLUME)),
        ((400,), r"/images/|\bimage\b|sourceImage", (BadImage, _IMAGE)),
        ((404,), r"/global/images/", (BadImage, _IMAGE)),  # not only `image`: a missing folder may be called so
        ((400,), _ACCOUNT.pattern, (IdentityUnknown, _IDENTITY)),
        ((400,), r"machineTypes?\b|machine type|not compatible", (Unsupported, OTHER_OFFERING)),
        ((404,), r"/machineTypes/", (Unsupported, OTHER_OFFERING)),
        ((400,), r"network|disk ?type", (BadSurroundings, _SURROUNDINGS)),
    )
)
"""
Errors that Google reports under a code shared with other errors, so that only the message's words identify them. Each
row has the HTTP statuses, the words and the meaning. The first row that matches is used.
"""


_WITHOUT_PROJECT = re.compile(r"quota project|\b(?:project |projects/)(?:764086051850|32555940559)\b")
"""
Words of the refusal of a user's login without a quota project. The numbers are those of gcloud's own projects, in which
users cannot turn on an API: https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds
"""
_LIMIT = re.compile(r"maximum number of", re.IGNORECASE)
"""
Words of a limit that waiting does not raise. Google reports the limit of service accounts with status 429 and a code of
throttling, and asks the caller to wait for a day: https://github.com/kubeflow/pipelines/issues/1052
"""


def refused(action: str, status: int, body: object, text: str = "") -> CloudError:
    """
    Return the error for an HTTP answer other than a success. `body` is the answer's JSON. If it is None, but the answer
    has a `text`, the answer came from something other than Google, such as a proxy.
    """
    is_page = body is None and bool(words_of(text)) and status != _UNAUTHENTICATED
    if status < _BAD_REQUEST or is_page:
        return answered_by_another(action, f"HTTP {status} {text}")
    faults = [*faults_of_http(body)] or [Fault("", "")]
    return _worst(_error_of(action, f"HTTP {status}", status, fault) for fault in faults)


def answered_by_another(action: str, text: str) -> CloudUnavailable:
    """Return the error for an answer that a proxy or captive portal sent instead of Google."""
    what = f"Google cannot be reached to {action}: a program in between has answered: {words_of(text)}"
    return CloudUnavailable(what, hint=_ON_THE_WAY)


def failed(action: str, operation: Mapping[str, Any]) -> CloudError | None:
    """Return the error of an operation that has finished; None if the operation succeeded."""
    faults = [*faults_of_operation(operation)]
    status = int(operation.get("httpErrorStatusCode", 0))
    if not faults and status < _BAD_REQUEST:
        return None
    if status == _CONFLICT and not any(fault.code in _THERE_ALREADY for fault in faults):
        words = "; ".join(fault.message for fault in faults)
        return LaunchTokenSpent(f"Google failed to {action}: the instance was ended while it was being made: {words}")
    faults = faults or [Fault("", str(operation.get("httpErrorMessage", "")))]
    return _worst(lacking_identity(_error_of(action, "operation", status, fault)) for fault in faults)


def lacking_identity(error: CloudError) -> CloudError:
    """
    Return IdentityUnknown if `error` says that Compute Engine did not find a service account. Otherwise return `error`.

    Compute Engine's message, `The resource 'ADDRESS' of type 'serviceAccount' was not found`, is first translated to
    NotThere. But Compute Engine sends it also for a new account that it does not know yet.

    Do not call this function for IAM's errors. IAM sends a similar message only if the account really does not exist,
    so NotThere is right.
    """
    if isinstance(error, NotThere) and _ACCOUNT.search(error.message):
        return IdentityUnknown(error.message, hint=_IDENTITY)
    return error


def _worst(errors: Iterable[CloudError]) -> CloudError:
    return min(errors, key=_permanence)


def _permanence(error: CloudError) -> int:
    return next((place for place, kind in enumerate(_PERMANENCE) if isinstance(error, kind)), len(_PERMANENCE))


def _error_of(action: str, where: str, status: int, fault: Fault) -> CloudError:
    kind, hint = _meaning(status, fault)
    message = f"Google refused to {action}: {': '.join(filter(None, (fault.code or where, fault.told)))}"
    if issubclass(kind, StockedOut):
        return kind(message, hint=hint, elsewhere=fault.zones_available)
    return kind(message, hint=_finer(hint, fault))


def _meaning(status: int, fault: Fault) -> Meaning:
    if fault.constraint:
        return PolicyForbids, _BY_CONSTRAINT.get(fault.constraint.rpartition("/")[2], _POLICY)
    if _LIMIT.search(fault.message):
        return QuotaExceeded, _QUOTA
    found = [*_by_code(fault), *_by_words(status, fault)]
    if found:
        return found[0]
    return ERRORS_BY_CODE.get(fault.code) or _by_status(status)


def _by_code(fault: Fault) -> Iterator[Meaning]:
    """Yield the meanings of the fault's codes. The reasons in its details come first, because they are more precise."""
    for code in (*fault.reasons, fault.code):
        if code in ERRORS_BY_CODE and code not in _VAGUE:
            yield ERRORS_BY_CODE[code]


def _by_words(status: int, fault: Fault) -> Iterator[Meaning]:
    for statuses, words, meaning in _WORDS:
        if status in statuses and words.search(fault.message):
            yield meaning


def _by_status(status: int) -> Meaning:
    if status >= _SERVER:
        return CloudUnavailable, None
    return _BY_STATUS.get(status, (CloudError, None))


def _finer(hint: str | None, fault: Fault) -> str | None:
    """
    Return a more precise hint if the fault names a disabled service, or a quota that all regions share, or if a service
    is off only in the project that Google assumes for a login without a quota project.
    """
    if hint == _ENABLE and _WITHOUT_PROJECT.search(fault.told):
        return _NO_QUOTA_PROJECT
    if hint == _ENABLE and fault.service:
        return f"turn it on: gcloud services enable {fault.service}"
    if hint == _QUOTA and fault.is_of_all_regions:
        return _QUOTA_OF_ALL
    return hint
