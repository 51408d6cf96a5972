"""Checks an account before spotrun rents anything in it: the login, its rights, and the quotas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.clock_skew import answered_at
from spotrun.clouds.aws.error_codes import NoSuchInstance
from spotrun.clouds.aws.request import RUN
from spotrun.clouds.error_kinds import NotThere
from spotrun.errors import AccessDenied, CloudError, IdentityUnknown

NO_INSTANCE = "i-00000000000000000"
"""A well-formed id that no instance has."""
_ALLOWED = "DryRunOperation"
"""The error code with which EC2 reports that a dry run would have succeeded."""
_NO_BUCKET, _BUCKET_KNOWN = 404, (301, 400, 403)
"""
The HTTP status of an answer about a bucket that does not exist, and those about a bucket that is in another region, or
that the caller may not list.
"""
_NO_SUCH_QUOTA = "NoSuchResourceException"


class Caller(NamedTuple):
    """The user or role to which the credentials belong, and the time of AWS's answer on AWS's own clock."""

    arn: str
    account: str
    told_at: datetime | None


def caller(region: Region) -> Caller:
    """
    Return the user or role to which the credentials belong. Raise CloudError if there are no credentials, or if AWS
    does not accept them.
    """
    answer = region.ask("identify the caller", region.sts.get_caller_identity)
    return Caller(answer["Arn"], answer["Account"], answered_at(answer))


def account_number(regions: Sequence[Region]) -> str:
    """
    Return the caller's account number. All regions report the same number, so one that answers is enough. Raise
    CloudError if no region answers.
    """
    for region in regions[:-1]:
        with contextlib.suppress(CloudError):
            return caller(region.aside).account
    return caller(regions[-1]).account


def rehearse_termination(region: Region) -> str | None:
    """
    Check with a dry run whether EC2 would let the caller end an instance of spotrun's runs.

    If the account has such an instance, use it for the dry run, and return its id.

    Otherwise use an id that does not exist. If EC2 accepts that id, the caller is allowed to end any instance: return
    "any instance". If EC2 refuses the id, return None. The caller may still have the right to end instances with
    spotrun's tags, but that cannot be checked without such an instance.

    Raises:
        CloudError: EC2 would not end an instance of spotrun's runs.
    """
    instance_id = _one_of_ours(region)

    def call() -> Any:
        return region.ec2.terminate_instances(InstanceIds=[instance_id or NO_INSTANCE], DryRun=True)

    try:
        rehearse(region, f"terminate {instance_id or 'an instance'}", call)
    except (NoSuchInstance, AccessDenied):
        if instance_id is not None:
            raise
        return None
    return instance_id or "any instance"


def rehearse(region: Region, action: str, call: Callable[[], Any]) -> None:
    """Make a dry run of `action` with `call`. Raise CloudError if EC2 would refuse the action."""

    def once() -> None:
        try:
            call()
        except ClientError as error:
            if error.response["Error"]["Code"] != _ALLOWED:
                raise

    region.ask(action, once)


def _one_of_ours(region: Region) -> str | None:
    filters = [
        {"Name": "tag-key", "Values": [RUN]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    reservations = region.pages(region.ec2, "describe_instances", "Reservations", Filters=filters)
    return next((str(row["InstanceId"]) for each in reservations for row in each["Instances"]), None)


def parameter_kinds(region: Region, paths: Sequence[str]) -> dict[str, str]:
    """
    Return the type (`String`, `StringList` or `SecureString`) of each of these SSM parameters that exists. Never read
    their values. Raise CloudError if the caller is not allowed to list parameters.
    """
    filters = [{"Key": "Name", "Option": "Equals", "Values": list(paths)}]
    found = region.pages(region.ssm, "describe_parameters", "Parameters", ParameterFilters=filters)
    return {str(row["Name"]): str(row["Type"]) for row in found}


def has_bucket(region: Region, bucket: str) -> bool:
    """Return False if S3 reports that there is no bucket of this name, in any region and any account."""

    def once() -> bool:
        try:
            region.s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status not in _BUCKET_KNOWN and status != _NO_BUCKET:
                raise
            return bool(status != _NO_BUCKET)
        return True

    return region.ask(f"look for the bucket {bucket}", once)


def require_profile(region: Region, name: str) -> None:
    """Raise IdentityUnknown if no instance profile has this name."""
    look = partial(region.iam.get_instance_profile, InstanceProfileName=name)
    try:
        region.ask("read an instance profile", look)
    except NotThere as error:
        key = ("aws", "instance_profile")
        hint = "check aws.instance_profile, or leave it out"
        raise IdentityUnknown(f"there is no instance profile {name}", hint=hint, key=key) from error


def ingress_rules(region: Region, group: str) -> int:
    """Return the number of rules that let traffic into a security group."""
    found = region.pages(region.ec2, "describe_security_groups", "SecurityGroups", GroupIds=[group])
    return sum(len(each["IpPermissions"]) for each in found)


def quota(region: Region, code: str) -> int | None:
    """
    Return the value of a quota; None if the region has no such quota. Raise CloudError if the caller is not allowed to
    read it.
    """

    def once() -> int | None:
        try:
            answer = region.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
        except ClientError as error:
            if error.response["Error"]["Code"] != _NO_SUCH_QUOTA:
                raise
            return None
        return int(answer["Quota"]["Value"])

    return region.ask(f"read the quota {code}", once)
