"""
Checks whether EC2 is allowed to use the key that encrypts instances' disks.

A launch does not name a key, so EBS uses the region's default key. If that is a customer managed key, EC2's
service-linked role for spot needs a grant for it. Without the grant, EC2 accepts each launch and then ends the instance
with `Client.InternalError` or `Client.InvalidKMSKey.InvalidState`, without naming the key.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.doctor.finding import Finding, Refusal, failed, findings_of, ok, warned
from spotrun.errors import CloudError

OF_AWS = "alias/aws/ebs"
"""
The key that AWS makes for EBS in each account. Every login that is allowed to launch instances is allowed to use this
key.
"""
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
CREATE_GRANT = "kms:CreateGrant"
_OPERATIONS = (
    *("Decrypt", "Encrypt", "GenerateDataKey", "GenerateDataKeyWithoutPlaintext", "CreateGrant", "DescribeKey"),
    *("ReEncryptFrom", "ReEncryptTo"),
)
_READ = "allow kms:DescribeKey, kms:GetKeyPolicy, kms:ListGrants on the key (infra/aws/README.md), or make the grant: "

KEY_UNREAD = "allow ec2:GetEbsDefaultKmsKeyId: deploy infra/aws/account.yaml again"


def default_key(region: Region) -> str:
    """
    Return the ARN of EBS's default key, or `OF_AWS` if that key belongs to AWS. Raise AccessDenied if the caller is not
    allowed to read it.
    """
    answer = region.ask("read EBS's default key", region.ec2.get_ebs_default_kms_key_id)
    return str(answer["KmsKeyId"])


def why_not_started(reason: str, key: str, where: str, *, is_spot: bool) -> str:
    """
    Return the probable cause of a failed start; "" if a key cannot be the cause. `reason` is EC2's reason for the
    failure. `key` is EBS's default key in the region `where`; "" if the caller is not allowed to read it.
    """
    names_key = "Client.InternalError" in reason or "KMS" in reason
    if not names_key and key in ("", OF_AWS):
        return ""
    who = f"EC2's role for spot, {SPOT_ROLE}," if is_spot else "the caller"
    if key in ("", OF_AWS):
        named = "the image's key, because EBS's default is AWS's own key" if key else f"EBS's default key in {where}"
        return f"probably {who} cannot use the KMS key of the disk, {named}"
    return f"probably {who} cannot use {key}, EBS's default key in {where}"


def key_findings(region: Region, *, uses_spot: bool) -> Iterator[Finding]:
    """
    Check whether EC2 can start instances with EBS's default key.

    Raises:
        AccessDenied: the caller is not allowed to find out which key is the default.
    """
    key = default_key(region)
    if key == OF_AWS:
        yield ok("disk key", f"EBS encrypts by default with AWS's own key, {OF_AWS}")
        return
    account = account_checks.caller(region).account
    role = f"arn:{region.partition}:iam::{account}:role/aws-service-role/spot.amazonaws.com/{SPOT_ROLE}"
    command = (
        f"aws kms create-grant --region {region.name} --key-id {key} --grantee-principal {role} "
        f"--operations {' '.join(_OPERATIONS)}"
    )
    what = f"{key}, EBS's default key in {region.name},"
    unknown_use = f"it is not known whether {SPOT_ROLE} is allowed to use {what}"
    judged = partial(_judged, region, key, what, role if uses_spot else "", command)
    yield from findings_of("disk key", judged, Refusal(unknown_use, _READ + command))


def _judged(region: Region, key: str, what: str, role: str, command: str) -> Iterator[Finding]:
    """Report whether EC2 may use the key. `role` is EC2's role for spot, or "" if the job does not use spot."""
    described = region.ask("read a key", lambda: region.kms.describe_key(KeyId=key))["KeyMetadata"]
    if described["KeyState"] != "Enabled":
        enable = f"aws kms enable-key --region {region.name} --key-id {key}"
        hint = f"{enable}; or set another key with aws ec2 modify-ebs-default-kms-key-id"
        yield failed("disk key", CloudError(f"{what} is {described['KeyState']}, so no instance can start", hint=hint))
    elif not role:
        yield ok("disk key", f"{what} is enabled")
    elif _policy_allows(region, described["Arn"], role) or _is_granted(region, described["Arn"], role):
        yield ok("disk key", f"{SPOT_ROLE} is allowed to use {what}")
    else:
        detail = f"{SPOT_ROLE} is not allowed to use {what}: EC2 ends each spot instance with Client.InternalError"
        yield warned("disk key", detail, command)


def _policy_allows(region: Region, key: str, role: str) -> bool:
    """
    Return True if the key's policy itself gives `role`, or every principal, access to the key. A statement for the
    whole account is not enough, because then a role's own policy has to allow the key too, and that of EC2's role for
    spot allows no key.
    """
    answer = region.ask("read the policy of a key", lambda: region.kms.get_key_policy(KeyId=key, PolicyName="default"))
    statements = _listed(json.loads(answer["Policy"])["Statement"])
    return any(_allows(statement, role) for statement in statements)


def _allows(statement: dict[str, Any], role: str) -> bool:
    named = statement.get("Principal", {})
    principals = _listed(named.get("AWS", [])) if isinstance(named, dict) else [named]
    allowed = any(fnmatchcase(CREATE_GRANT.lower(), each.lower()) for each in _listed(statement.get("Action", [])))
    return statement["Effect"] == "Allow" and allowed and bool({"*", role} & {*principals})


def _is_granted(region: Region, key: str, role: str) -> bool:
    grants = region.pages(region.kms, "list_grants", "Grants", KeyId=key)
    return any(each.get("GranteePrincipal") == role and "CreateGrant" in each["Operations"] for each in grants)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
