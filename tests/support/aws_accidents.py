"""What a run calls at AWS, and how a call there fails."""

from __future__ import annotations

from functools import cache

import pytest
from botocore import exceptions as sdk
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker
from msgspec.structs import replace

from spotrun.clouds.aws.error_codes import ERRORS_BY_CODE
from tests.support.plain_aws import CONFIG, refusal
from tests.support.plain_aws_run import Error, PlainAwsRun

CALLS = {
    "ec2": (
        *("describe_instances", "run_instances", "terminate_instances", "describe_images"),
        *("describe_instance_types", "describe_instance_type_offerings", "describe_spot_price_history"),
        *("describe_security_groups", "describe_subnets", "describe_spot_instance_requests"),
        *("describe_launch_template_versions", "describe_route_tables"),
    ),
    "ssm": ("get_parameter",),
    "pricing": ("get_products",),
    "sts": ("get_caller_identity",),
    "iam": (
        *("create_role", "get_role", "attach_role_policy"),
        *("create_instance_profile", "get_instance_profile"),
        *("add_role_to_instance_profile", "remove_role_from_instance_profile"),
        *("delete_instance_profile", "detach_role_policy", "delete_role"),
    ),
    "scheduler": ("create_schedule", "delete_schedule"),
    "service-quotas": ("get_service_quota",),
}
"""By service, what a runner calls."""
OF_OTHERS = {"ProvisionedThroughputExceededException", "TransactionInProgressException", "LimitExceededException"}
"""Codes of services that a run does not call."""
ASKED_AGAIN = {
    *ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
    *TransientRetryableChecker._TRANSIENT_ERROR_CODES,
} - OF_OTHERS
"""After these the SDK itself would ask again: they pass, whatever their status is."""

SDK_ERRORS: dict[str, Error] = {
    "ReadTimeoutError": lambda: sdk.ReadTimeoutError(endpoint_url="https://aws"),
    "EndpointConnectionError": lambda: sdk.EndpointConnectionError(endpoint_url="https://aws"),
    "NoCredentialsError": sdk.NoCredentialsError,
    "CredentialRetrievalError": lambda: sdk.CredentialRetrievalError(provider="a", error_msg="b"),
    "UnauthorizedSSOTokenError": sdk.UnauthorizedSSOTokenError,
    "PaginationError": lambda: sdk.PaginationError(message="the same token twice"),
    "RuntimeError": lambda: RuntimeError("of the SDK"),
}
SERVER_ERRORS = ("InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "ServiceFailure")
ENDED_BEFORE = "IdempotentInstanceTerminated"
"""EC2 says so only of an instance that it has started; three in a row that end before they train fail a run."""


def new_run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    """One that makes all these calls: its account demands a launch template."""
    return PlainAwsRun(monkeypatch, config=replace(CONFIG, launch_template="spotrun-node"))


def broken(code: str, status: int = 400) -> Error:
    return lambda: refusal(code, status)


def errors_of(call: str) -> dict[str, Error]:
    """
    All of them by name. The codes of an operation are those of the SDK's service model. EC2's model has none: there,
    and everywhere else too, the codes that spotrun knows by name are tried, and those after which the SDK would ask
    again.
    """
    return {code: broken(code, status) for code, status in _statuses(call).items()} | SDK_ERRORS


def passes_soon(call: str, name: str) -> bool:
    """By itself."""
    by_sdk = name in ("ReadTimeoutError", "EndpointConnectionError")
    return by_sdk or name in ASKED_AGAIN or _statuses(call).get(name, 0) >= 500


@cache
def _statuses(call: str) -> dict[str, int]:
    known = sorted({*ERRORS_BY_CODE, *ASKED_AGAIN, "NeverHeardOf"} - {ENDED_BEFORE})
    return dict.fromkeys(known, 400) | dict.fromkeys(SERVER_ERRORS, 500) | _of_the_model(call)


def _of_the_model(call: str) -> dict[str, int]:
    """The codes of an operation, each with its HTTP status."""
    (service,) = [name for name, calls in CALLS.items() if call in calls]
    model = ServiceModel(Loader().load_service_model(service, "service-2"))
    (operation,) = [name for name in model.operation_names if name.lower() == call.replace("_", "")]
    shapes = model.operation_model(operation).error_shapes
    told = [(shape.error_code, shape.metadata.get("error", {})) for shape in shapes]
    return {code: error.get("httpStatusCode", 400) for code, error in told}
