"""
What each refusal of Google's means to a run, in the two forms in which Google sends them: an answer of HTTP, and the
error of an operation whose call was answered by 200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spotrun.clouds.error_kinds import (
    AlreadyThere,
    BadImage,
    BadSurroundings,
    CredentialsExpired,
    NotThere,
    Unsupported,
)
from spotrun.clouds.gcp.error_codes import (
    ERRORS_BY_CODE,
    AddressesExhausted,
    BillingOff,
    NoticeRefused,
    PerimeterForbids,
    PolicyForbids,
    ProjectMissing,
    ServiceOff,
    StockedOut,
    failed,
    lacking_identity,
    refused,
)
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    LaunchTokenSpent,
    QuotaExceeded,
)

Json = Mapping[str, Any]
ACTION = "launch g2-standard-4"
DENIED = "PERMISSION_DENIED"
RAN_OUT = "does not have enough resources available to fulfill the request"
FULL = "Maximum number of service accounts on project reached."
PAGE = "<!DOCTYPE html><html><head><title>502</title></head><body><b>Bad</b>\n Gateway</body></html>"


def info(reason: str, **metadata: str) -> Json:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "metadata": metadata}


def older(status: int, reason: str, message: str = "", details: Sequence[Json] = ()) -> Json:
    """As Compute Engine and Cloud Storage answer: the reason is in a list."""
    first = {"message": message, "domain": "global", "reason": reason}
    error = {"code": status, "message": message, "errors": [first]}
    return {"error": {**error, **({"details": [*details]} if details else {})}}


def newer(status: int, name: str, message: str = "", details: Sequence[Json] = ()) -> Json:
    """As IAM and the others answer: a status by its name, and details."""
    return {"error": {"code": status, "message": message, "status": name, "details": [*details]}}


def of_http(status: int, body: object, text: str = "") -> CloudError:
    return refused(ACTION, status, body, text)


def of_operation(code: str, message: str = "", status: int = 400, details: Sequence[Json] = ()) -> CloudError:
    fault = {"code": code, "message": message, **({"errorDetails": [*details]} if details else {})}
    found = failed(ACTION, {"status": "DONE", "httpErrorStatusCode": status, "error": {"errors": [fault]}})
    assert found is not None
    return found


# -- capacity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "insufficientCapacity",
        "STOCKOUT",
        "UNSUPPORTED_OPERATION",
    ],
)
@pytest.mark.parametrize("status", [400, 503])
def test_a_stockout_in_an_operation_is_one_of_capacity(code: str, status: int) -> None:
    error = of_operation(code, f"The zone {RAN_OUT}", status)
    assert isinstance(error, StockedOut)
    assert RAN_OUT in error.message
    assert "spot_policy: auto" in (error.hint or "")


def test_a_stockout_names_the_zones_that_have_some() -> None:
    metadatas = {"vmType": "g2-standard-4", "zone": "us-central1-a", "zonesAvailable": "us-central1-b, us-central1-c"}
    told = {"errorInfo": {"reason": "resource_availability", "metadatas": metadatas}}
    error = of_operation("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", RAN_OUT, 503, [told])
    assert isinstance(error, StockedOut)
    assert error.elsewhere == ("us-central1-b", "us-central1-c")


@pytest.mark.parametrize("code", ["IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"])
def test_exhausted_subnetwork_is_distinguished_from_a_stockout(code: str) -> None:
    error = of_operation(code, "IP space of 'projects/p/regions/us-central1/subnetworks/spotrun' is exhausted.")
    assert isinstance(error, AddressesExhausted)
    assert isinstance(error, InsufficientCapacity)
    assert "expand-ip-range" in (error.hint or "")


# -- quotas ----------------------------------------------------------------------------------------------------------


def quota(metric: str, limit: float, **dimensions: str) -> Json:
    name = f"{metric.upper().replace('_', '-')}-per-project"
    info = {"metricName": f"compute.googleapis.com/{metric}", "limitName": name, "limit": limit}
    return {"quotaInfo": {**info, "dimensions": dimensions}}


def test_regional_quota_is_reported_with_its_limit_and_region() -> None:
    told = [quota("preemptible_nvidia_l4_gpus", 0, region="us-central1")]
    message = "Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-central1."
    error = of_operation("QUOTA_EXCEEDED", message, 403, told)
    assert isinstance(error, QuotaExceeded)
    assert "PREEMPTIBLE-NVIDIA-L4-GPUS-per-project" in error.message
    assert "region us-central1" in error.message
    assert "another region" in (error.hint or "")


def test_global_quota_error_suggests_no_other_region() -> None:
    told = [quota("gpus_all_regions", 0, **{"global": "global"})]
    error = of_operation("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", 403, told)
    assert isinstance(error, QuotaExceeded)
    assert "console.cloud.google.com/iam-admin/quotas" in (error.hint or "")
    assert "another region" not in (error.hint or "")
    assert "all regions" in (error.hint or "")


def test_a_quota_is_one_in_an_answer_of_http_too() -> None:
    message = "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."
    assert isinstance(of_http(403, older(403, "quotaExceeded", message)), QuotaExceeded)


# -- what passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (403, "rateLimitExceeded"),
        (403, "userRateLimitExceeded"),
        (429, "rateLimitExceeded"),
        (429, "somethingNew"),
        (403, "RESOURCE_OPERATION_RATE_EXCEEDED"),
        (503, "backendError"),
        (500, "internalError"),
        (502, "somethingNew"),
        (400, "resourceNotReady"),
        (400, "resourceInUseByAnotherResource"),
    ],
)
def test_throttling_and_trouble_of_googles_pass(status: int, reason: str) -> None:
    assert type(of_http(status, older(status, reason, "wait"))) is CloudUnavailable


def test_throttling_by_403_is_known_by_its_details_too() -> None:
    message = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"
    told = newer(403, DENIED, message, [info("RATE_LIMIT_EXCEEDED", quota_limit="QueriesPerMinute")])
    assert type(of_http(403, told)) is CloudUnavailable
    assert type(of_http(429, newer(429, "RESOURCE_EXHAUSTED", message))) is CloudUnavailable


@pytest.mark.parametrize("body", [older(429, "rateLimitExceeded", FULL), newer(429, "RESOURCE_EXHAUSTED", FULL)])
def test_limit_that_waiting_does_not_raise_is_no_throttling(body: Json) -> None:
    details = [info("RATE_LIMIT_EXCEEDED")]
    for answer in (body, newer(429, "RESOURCE_EXHAUSTED", FULL, details)):
        assert type(of_http(429, answer)) is QuotaExceeded


@pytest.mark.parametrize(
    ("code", "status"), [("RESOURCE_NOT_READY", 400), ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", 400), ("NEW", 503)]
)
def test_trouble_of_googles_in_an_operation_passes(code: str, status: int) -> None:
    assert type(of_operation(code, "wait", status)) is CloudUnavailable


def test_unknown_code_is_transient_only_with_5xx() -> None:
    assert type(of_operation("NEW_CODE", "no", 400)) is CloudError
    assert type(of_http(418, older(418, "newReason", "no"))) is CloudError


# -- who may ---------------------------------------------------------------------------------------------------------


def test_a_missing_right_names_itself_and_the_role_to_grant() -> None:
    message = "Required 'compute.instances.create' permission for 'projects/p/zones/us-central1-a/instances/a'"
    for error in (of_http(403, older(403, "forbidden", message)), of_operation("PERMISSIONS_ERROR", message, 403)):
        assert type(error) is AccessDenied
        assert "compute.instances.create" in error.message
        assert "infra/gcp" in (error.hint or "")


def test_a_missing_right_that_only_the_details_name_is_named() -> None:
    told = info("IAM_PERMISSION_DENIED", permission="iam.serviceAccounts.create", resource="projects/p")
    error = of_http(403, newer(403, DENIED, "The caller does not have permission", [told]))
    assert type(error) is AccessDenied
    assert "iam.serviceAccounts.create" in error.message


SERVICE = "iam.googleapis.com"
NOT_USED = (
    f"Identity and Access Management (IAM) API has not been used in project 123 before or it is disabled. {SERVICE}"
)


@pytest.mark.parametrize(
    "body",
    [
        older(403, "accessNotConfigured", NOT_USED),
        older(403, "forbidden", NOT_USED, [info("SERVICE_DISABLED", service=SERVICE)]),
        newer(403, DENIED, NOT_USED, [info("SERVICE_DISABLED", service=SERVICE)]),
        newer(403, DENIED, NOT_USED),
    ],
    ids=["reason", "both", "details", "words"],
)
def test_an_api_that_is_off_is_named_with_the_command_that_turns_it_on(body: Json) -> None:
    error = of_http(403, body)
    assert isinstance(error, ServiceOff)
    assert error.hint == f"turn it on: gcloud services enable {SERVICE}"


@pytest.mark.parametrize(
    "words",
    [
        "The compute.googleapis.com API requires a quota project, which is not set by default.",
        "Compute Engine API has not been used in project 764086051850 before or it is disabled.",
    ],
)
def test_login_without_a_quota_project_is_not_told_to_turn_an_api_on(words: str) -> None:
    error = of_http(403, newer(403, DENIED, words, [info("SERVICE_DISABLED", service=SERVICE)]))
    assert "set-quota-project" in str(error.hint)
    assert "gcloud services enable" not in str(error.hint)


def test_quota_project_of_a_login_that_it_may_not_use_is_said() -> None:
    words = "Caller does not have required permission to use project acme."
    error = of_http(403, newer(403, DENIED, words, [info("USER_PROJECT_DENIED")]))
    assert isinstance(error, AccessDenied)
    assert "serviceusage.services.use" in str(error.hint)


@pytest.mark.parametrize(
    "body",
    [
        older(403, "forbidden", "This API method requires billing to be enabled.", [info("BILLING_DISABLED")]),
        older(403, "forbidden", "Project acme (#123) has billing disabled. Please enable it."),
        older(403, "accountDisabled", "The billing account for the owning project is disabled in state absent"),
        newer(403, DENIED, "Billing account for project '123' is not found.", [info("UREQ_PROJECT_BILLING_NOT_FOUND")]),
    ],
)
def test_disabled_billing_is_reported_as_such(body: Json) -> None:
    error = of_http(403, body)
    assert isinstance(error, BillingOff)
    assert "link a billing account" in (error.hint or "")


PERIMETER = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: eYhDkfYCu"
VIOLATION = {"violations": [{"type": "VPC_SERVICE_CONTROLS", "description": "eYhDkfYCu"}]}


@pytest.mark.parametrize(
    "error",
    [
        of_http(403, newer(403, DENIED, PERIMETER, [VIOLATION, info("SECURITY_POLICY_VIOLATED", service=SERVICE)])),
        of_http(403, newer(403, DENIED, PERIMETER)),
        of_http(403, older(403, "forbidden", PERIMETER)),
        of_operation("PERMISSIONS_ERROR", PERIMETER, 403),
    ],
    ids=["details", "words", "older", "operation"],
)
def test_refusal_of_a_perimeter_is_distinguished_from_a_missing_right(error: CloudError) -> None:
    assert isinstance(error, PerimeterForbids)
    assert "eYhDkfYCu" in error.message
    assert "perimeter" in (error.hint or "")
    assert "infra/gcp" not in (error.hint or "")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, older(404, "notFound", "The resource 'projects/acme' was not found")),
        (404, older(404, "notFound", "Failed to find project acme")),
        (400, older(400, "invalid", "Unknown project id: acme")),
        (403, newer(403, DENIED, "Project 'acme' not found or deleted.", [info("CONSUMER_INVALID")])),
    ],
)
def test_missing_project_is_reported_as_such(status: int, body: Json) -> None:
    """And is nothing that was deleted: an instance that cannot be seen for that reason is not gone."""
    error = of_http(status, body)
    assert type(error) is ProjectMissing
    assert "gcp.project" in (error.hint or "")


def test_login_with_narrow_scopes_gets_the_needed_scope() -> None:
    message = "Request had insufficient authentication scopes."
    told = [info("ACCESS_TOKEN_SCOPE_INSUFFICIENT")]
    for body in (older(403, "insufficientPermissions", message, told), newer(403, DENIED, message, told)):
        error = of_http(403, body)
        assert type(error) is AccessDenied
        assert "cloud-platform" in (error.hint or "")


@pytest.mark.parametrize(
    "body",
    [
        older(401, "authError", "Invalid Credentials"),
        older(401, "required", "Login Required"),
        newer(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."),
        None,
    ],
)
def test_a_login_that_has_expired_blinds_and_denies_nothing(body: Json | None) -> None:
    error = of_http(401, body)
    assert isinstance(error, CredentialsExpired)
    assert isinstance(error, CloudUnavailable)
    assert "log in again" in (error.hint or "")


NO_ACCOUNT = "The resource 'a@p.iam.gserviceaccount.com' of type 'serviceAccount' was not found."


@pytest.mark.parametrize(
    "error",
    [
        of_operation("SERVICE_ACCOUNT_ACCESS_DENIED", "The user does not have access to service account 'a@p'.", 400),
        of_http(
            400, older(400, "SERVICE_ACCOUNT_ACCESS_DENIED", "The user does not have access to service account 'a'")
        ),
        of_http(400, older(400, "invalid", "Service account spotrun-1@p.iam.gserviceaccount.com does not exist.")),
        of_operation("SERVICE_ACCOUNT_NOT_FOUND", "not found", 404),
        of_operation("RESOURCE_NOT_FOUND", NO_ACCOUNT, 404),
        of_operation("EXTERNAL_RESOURCE_NOT_FOUND", NO_ACCOUNT, 404),
        lacking_identity(of_http(404, older(404, "notFound", NO_ACCOUNT))),
    ],
    ids=["operation", "answer", "words", "gone", "not found", "external", "answer, not found"],
)
def test_an_account_that_was_just_made_may_not_be_known_yet(error: CloudError) -> None:
    assert isinstance(error, IdentityUnknown)


# -- policies of an organization -------------------------------------------------------------------------------------

CONSTRAINT = "constraints/compute.vmExternalIpAccess"
VIOLATED = f"Constraint {CONSTRAINT} violated for project projects/123. Add instance a to use external IP with it."
NO_ACCOUNTS = "constraints/iam.disableServiceAccountCreation"
PRECONDITION = {
    "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
    "violations": [{"type": NO_ACCOUNTS, "subject": "projects/p", "description": "not allowed"}],
}


@pytest.mark.parametrize(
    ("error", "constraint"),
    [
        (of_http(412, older(412, "conditionNotMet", VIOLATED)), CONSTRAINT),
        (of_operation("CONDITION_NOT_MET", VIOLATED, 412), CONSTRAINT),
        (
            of_http(
                400,
                newer(
                    400,
                    "FAILED_PRECONDITION",
                    "Service account creation is not allowed on this project.",
                    [PRECONDITION],
                ),
            ),
            NO_ACCOUNTS,
        ),
    ],
    ids=["answer", "operation", "details"],
)
def test_a_policy_of_the_organization_is_quoted(error: CloudError, constraint: str) -> None:
    assert isinstance(error, PolicyForbids)
    assert constraint in error.message
    assert "organization" in (error.hint or "")
    assert ("gcp.external_address" in (error.hint or "")) == (constraint == CONSTRAINT)


# -- what is not there, or is ----------------------------------------------------------------------------------------


def test_missing_and_existing_resources_have_their_own_errors() -> None:
    gone = "The resource 'projects/p/zones/us-central1-a/instances/a' was not found"
    assert isinstance(of_http(404, older(404, "notFound", gone)), NotThere)
    for words in ("Unknown service account", "Service account projects/p/serviceAccounts/a@p does not exist."):
        assert isinstance(of_http(404, newer(404, "NOT_FOUND", words)), NotThere)
    disk = "The resource 'projects/p/zones/us-central1-a/disks/a' was not found"
    assert isinstance(of_operation("RESOURCE_NOT_FOUND", disk, 404), NotThere)
    there = "The resource 'projects/p/zones/us-central1-a/instances/a' already exists"
    assert isinstance(of_http(409, older(409, "alreadyExists", there)), AlreadyThere)


def test_an_instance_that_was_ended_while_it_was_made_has_spent_its_token() -> None:
    error = of_operation("CONFLICT", "The instance was deleted while it was being created.", 409)
    assert isinstance(error, LaunchTokenSpent)


@pytest.mark.parametrize(
    ("status", "message", "kind", "hint"),
    [
        (
            400,
            "Invalid value for field 'resource.machineType': 'a'. It does not exist in zone 'b'.",
            Unsupported,
            "zone",
        ),
        (404, "The resource 'projects/p/zones/z/machineTypes/a' was not found", Unsupported, "zone"),
        (400, "[g4-standard-48, pd-balanced] features are not compatible for creating instance.", Unsupported, "zone"),
        (404, "The resource 'projects/p/global/images/family/a' was not found", BadImage, "image"),
        (400, "The referenced image resource cannot be found.", BadImage, "image"),
        (
            400,
            "Invalid value for field 'resource.networkInterfaces[0].subnetwork': 'a'.",
            BadSurroundings,
            "subnetwork",
        ),
        (400, "Invalid value for field 'resource.disks[0].initializeParams.diskType': 'a'.", BadSurroundings, "subnet"),
        (400, "Invalid value for field 'resource.scheduling.preemptionNoticeDuration': ''.", NoticeRefused, ""),
        (400, "Requested disk size cannot be smaller than the image size (50 GB)", CloudError, "gcp.volume_gb"),
    ],
)
def test_launch_with_a_missing_resource_is_classified_by_its_words(
    status: int, message: str, kind: type[CloudError], hint: str
) -> None:
    reason = "invalid" if status == 400 else "notFound"
    error = of_http(status, older(status, reason, message))
    assert type(error) is kind
    assert hint in (error.hint or "")
    assert message in error.message


def test_call_that_is_no_launch_gets_no_hint_on_subnetworks() -> None:
    error = of_http(400, older(400, "invalid", "Invalid argument."))
    assert type(error) is CloudError
    assert error.hint is None


# -- several at once, and none of Google's ---------------------------------------------------------------------------


def test_of_several_faults_the_most_permanent_one_counts() -> None:
    faults = [
        {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left"},
        {"code": "QUOTA_EXCEEDED", "message": "the quota is 0"},
        {"code": "INTERNAL_ERROR", "message": "oops"},
    ]
    error = failed(ACTION, {"httpErrorStatusCode": 503, "error": {"errors": faults}})
    assert isinstance(error, QuotaExceeded)
    faults.append({"code": "PERMISSIONS_ERROR", "message": "no right"})
    error = failed(ACTION, {"httpErrorStatusCode": 503, "error": {"errors": faults}})
    assert isinstance(error, AccessDenied)
    assert "no right" in error.message


@pytest.mark.parametrize("status", [302, 403, 404, 407, 502, 511])
def test_the_page_of_a_proxy_is_no_answer_of_googles(status: int) -> None:
    error = of_http(status, None, PAGE)
    assert type(error) is CloudUnavailable
    assert "Bad Gateway" in error.message
    assert "<" not in error.message
    assert f"HTTP {status}" in error.message


def test_long_page_is_reported_by_its_first_words() -> None:
    assert len(of_http(502, None, "<p>word</p>" * 10_000).message) < 600


def test_empty_answer_is_classified_by_its_status() -> None:
    assert isinstance(of_http(404, None), NotThere)
    assert isinstance(of_http(403, None), AccessDenied)
    assert isinstance(of_http(503, None), CloudUnavailable)
    assert type(of_http(302, None)) is CloudUnavailable
    assert "HTTP 503" in of_http(503, None).message


@pytest.mark.parametrize("body", [[], "text", 7, {"error": "text"}, {"error": {"errors": ["text"], "details": [None]}}])
def test_an_answer_of_another_form_is_one_of_ours(body: object) -> None:
    assert isinstance(of_http(400, body), CloudError)


def test_an_operation_that_succeeded_is_no_error() -> None:
    assert failed(ACTION, {"status": "DONE", "progress": 100}) is None


def test_operation_that_failed_without_a_code_is_classified_by_its_status() -> None:
    error = failed(ACTION, {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"})
    assert type(error) is CloudUnavailable
    assert "SERVICE UNAVAILABLE" in error.message


@pytest.mark.parametrize("code", sorted(ERRORS_BY_CODE))
def test_each_known_code_means_the_same_in_both_places(code: str) -> None:
    kind, _ = ERRORS_BY_CODE[code]
    status = 503 if issubclass(kind, StockedOut | CloudUnavailable) else 403
    assert isinstance(of_http(status, older(status, code, "words")), kind)
    assert isinstance(of_operation(code, "words", status), kind)
