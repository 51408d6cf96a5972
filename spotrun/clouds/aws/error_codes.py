"""
Translates AWS's error codes into CloudDriver's errors.

Codes of EC2: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. IAM's codes are listed under
each of its actions: https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html. Numbers such as P4 refer
to docs/design/failures.md, which lists failures that these codes caused in other projects.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from spotrun.clouds import error_kinds
from spotrun.clouds.error_kinds import (
    OTHER_OFFERING,
    AlreadyThere,
    BadImage,
    BadSurroundings,
    CredentialsExpired,
    CredentialsRefused,
    NotThere,
    Unexplained,
    Unsupported,
    by_code,
)
from spotrun.clouds.patience import CHECK_NETWORK
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    LaunchTokenSpent,
    QuotaExceeded,
)
from spotrun.store.s3_login import NEW_CODE


class VcpusInUse(QuotaExceeded):
    """The account already uses all vCPUs that its quota for these types allows (P4)."""


class TokenReused(CloudError):
    """The launch token was already used, with different parameters (P11)."""


class NoSuchInstance(CloudError):
    """EC2 does not find the instance: it ended long ago, or is too new to be known everywhere (P7)."""


class BadLaunchTemplate(CloudError):
    """The launch template is gone or cannot be used, perhaps because its default version was changed."""


class NoAnswer(Exception):
    """A proxy or captive portal answered instead of AWS."""


_QUOTA = "request an increase in the Service Quotas console (EC2, by vCPUs), or name another region"
_DISKS = "request an increase in the Service Quotas console (EBS), delete volumes, or lower aws.volume_gb"
_INTERFACES = "request an increase in the Service Quotas console (VPC: network interfaces), or name another region"
_CREDENTIALS = "`aws sts get-caller-identity` prints who you are; check AWS_PROFILE, keys and permissions"
_LOG_IN = "log in by `aws sso login` or `aws configure`, or export AWS_PROFILE, or the keys that AWS gave you"
_EXPIRED = "log in again, for example with `aws sso login`; meanwhile training continues"
_STS = "activate STS in this region (IAM console: account settings), or name another region first in aws.regions"
_IMAGE = "name an image that exists in this region and that you are allowed to use"
_TEMPLATE = "set aws.launch_template to one of this region's, or leave it out (infra/aws/region.yaml makes one)"
_SURROUNDINGS = "check the subnets and the security group of this region (infra/aws/region.yaml makes them)"
_IDENTITY = "check aws.instance_profile, or leave it out: each run then has a separate one (infra/aws/README.md)"
_PROTECTED = "remove its termination protection: aws ec2 modify-instance-attribute --no-disable-api-termination …"
_INVALID, _PROFILE = "InvalidParameterValue", "iam instance profile"
"""
The code, and words of the message, with which EC2 reports that it cannot yet find an instance profile or the profile's
role. The code alone is not enough, because EC2 uses it for other mistakes too.
"""

ERRORS_BY_CODE = by_code(
    (
        InsufficientCapacity,
        OTHER_OFFERING,
        "InsufficientInstanceCapacity InsufficientCapacity InsufficientHostCapacity UnfulfillableCapacity",
        "InsufficientReservedInstanceCapacity InsufficientVolumeCapacity SpotMaxPriceTooLow",
        "InsufficientFreeAddressesInSubnet InsufficientAddressCapacity",
    ),
    (Unsupported, OTHER_OFFERING, "Unsupported InvalidAvailabilityZone VolumeTypeNotAvailableInZone"),
    (VcpusInUse, _QUOTA, "VcpuLimitExceeded MaxSpotInstanceCountExceeded"),
    (QuotaExceeded, _QUOTA, "InstanceLimitExceeded"),
    (QuotaExceeded, _DISKS, "VolumeLimitExceeded MaxIOPSLimitExceeded"),
    (QuotaExceeded, _INTERFACES, "NetworkInterfaceLimitExceeded"),
    (QuotaExceeded, None, "LimitExceeded"),
    (
        AccessDenied,
        _CREDENTIALS,
        "UnauthorizedOperation AccessDenied AccessDeniedException OptInRequired PendingVerification Blocked",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    ),
    (
        CredentialsRefused,
        _CREDENTIALS,
        "AuthFailure InvalidClientTokenId UnrecognizedClientException SignatureDoesNotMatch",
        "InvalidSignatureException IncompleteSignature MissingAuthenticationToken",
    ),
    (AccessDenied, _STS, "RegionDisabledException"),
    (CredentialsExpired, _EXPIRED, "ExpiredToken ExpiredTokenException RequestExpired TokenRefreshRequired"),
    (
        CloudUnavailable,
        None,
        "RequestLimitExceeded Throttling ThrottlingException TooManyRequestsException RequestThrottled",
        "RequestThrottledException EC2ThrottledException ThrottledException SlowDown BandwidthLimitExceeded",
        "RequestTimeout RequestTimeoutException PriorRequestNotComplete InternalError InternalFailure Unavailable",
        "ServiceUnavailable ConcurrentModification ServiceFailure DeleteConflict",  # IAM applies a change after a while
    ),
    (BadImage, _IMAGE, "InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidAMIID.Malformed ParameterNotFound"),
    (
        BadLaunchTemplate,
        _TEMPLATE,
        "InvalidLaunchTemplateId.NotFound InvalidLaunchTemplateId.Malformed InvalidLaunchTemplateId.VersionNotFound",
        "InvalidLaunchTemplateName.NotFoundException",
    ),
    (
        BadSurroundings,
        _SURROUNDINGS,
        "InvalidSubnetID.NotFound InvalidSubnetId.Malformed InvalidSubnet InvalidGroup.NotFound",
        "InvalidGroupId.Malformed InvalidSecurityGroupID.NotFound",
    ),
    (BadSurroundings, None, f"{_INVALID} InvalidParameterCombination InvalidParameter"),
    (TokenReused, None, "IdempotentParameterMismatch"),
    (CloudError, _PROTECTED, "OperationNotPermitted"),
    (AlreadyThere, None, "ConflictException EntityAlreadyExists AlreadyExistsException"),
    (NotThere, None, "ResourceNotFoundException NoSuchEntity"),
    (LaunchTokenSpent, None, "IdempotentInstanceTerminated"),
    (NoSuchInstance, None, "InvalidInstanceID.NotFound InvalidInstanceID.Malformed"),
)
"""The class of the error and a hint for the user, keyed by AWS's error code."""

_NO_CREDENTIALS = (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.ProfileNotFound, sdk.NoRegionError)
_LOGGED_OUT = (sdk.SSOError, sdk.LoginError, sdk.TokenRetrievalError)
_STILL_EXPIRED = "refreshed credentials are still expired"
"""
Part of the message of botocore's RuntimeError for expired credentials. The error has no class of its own, so it is
recognised by this text.
"""
_UNREACHABLE = (
    *(sdk.HTTPClientError, sdk.ConnectionError, sdk.IncompleteReadError, ResponseParserError),
    *(sdk.CredentialRetrievalError, sdk.MetadataRetrievalError, NoAnswer),
)
"""
Errors that mean that AWS cannot be reached. They include the errors for credentials that cannot be renewed now, because
without valid credentials a runner cannot observe anything either (P26).
"""

_NOT_SHARED = "not authorized for images"
"""Words of EC2's AuthFailure for an image of another account that is not shared. Other AuthFailures are about keys."""
_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")
_PAGE = re.compile(r"<(!doctype )?html", re.IGNORECASE)
_TITLE = re.compile(r"<title>([^<]*)", re.IGNORECASE)


def translated(action: str) -> AbstractContextManager[None]:
    """
    Translate errors that boto3 raises in the `with` block into CloudDriver's errors. `action` completes the message
    "AWS refused to …".

    Raises:
        CloudError: boto3 raised an error. The subclass is the one that ERRORS_BY_CODE lists for the error's code;
            CloudUnavailable for another code with status 5xx; or Unexplained for an error that this module does not
            know.
    """
    return error_kinds.translated(_meaning_of, action)


def _meaning_of(action: str, error: Exception) -> CloudError:
    if isinstance(error, sdk.ClientError):
        return error_of(action, error)
    if isinstance(error, _NO_CREDENTIALS):
        return CredentialsRefused(f"cannot {action}: {error}", hint=_LOG_IN)
    if isinstance(error, sdk.RefreshWithMFAUnsupportedError):
        return CredentialsExpired(f"cannot {action}: {error}", hint=f"{NEW_CODE}; meanwhile training continues")
    if isinstance(error, _LOGGED_OUT) or _STILL_EXPIRED in str(error):
        return CredentialsExpired(f"cannot {action}: {error}", hint=_EXPIRED)
    if isinstance(error, _UNREACHABLE):
        what = f"AWS cannot be reached to {action}: {_without_page(str(error))}"
        return CloudUnavailable(what, hint=CHECK_NETWORK)
    if isinstance(error, sdk.ParamValidationError):
        return CloudError(f"AWS's SDK refuses to {action}: {error}")
    return Unexplained(f"AWS's SDK failed to {action}: {type(error).__name__}: {error}")


def error_of(action: str, error: sdk.ClientError) -> CloudError:
    """
    Return the error for an error response from AWS. Its message contains AWS's code and AWS's own message, which may
    name zones that have capacity.
    """
    told = error.response.get("Error", {})
    code, words = str(told.get("Code", "unknown")), str(told.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    unlisted = (CloudUnavailable, None) if status >= 500 else (CloudError, None)
    kind, hint = ERRORS_BY_CODE.get(code, unlisted)
    if code == _INVALID and _PROFILE in words.lower():
        kind, hint = IdentityUnknown, _IDENTITY
    if code == "AuthFailure" and _NOT_SHARED in words.lower():
        kind, hint = BadImage, _IMAGE
    return kind(f"AWS refused to {action}: {code}: {_without_code(_without_page(words))}", hint=hint)


def _without_code(words: str) -> str:
    """
    Return `words` without the encoded message of a denial. It has thousands of characters, and only an administrator
    can decode it (`aws sts decode-authorization-message`); without it, the message still names the action.
    """
    return _ENCODED.sub(" (AWS has encoded the reason)", words)


def _without_page(words: str) -> str:
    """Return `words`. If they contain an HTML page (from a failing proxy), replace the page with its title."""
    found = _PAGE.search(words)
    if found is None:
        return words
    title = _TITLE.search(words, found.end())
    before = words[: found.start()].rstrip().removesuffix("b'").removesuffix('b"').rstrip(" :\n")
    told = "an HTML page" if title is None else f"an HTML page, {title[1].strip()!r}"
    return f"{before}: {told}" if before else told
