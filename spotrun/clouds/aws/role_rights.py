"""
Checks whether the role of a run's instances may use the run's folder in the store. The rights of the user who runs
spotrun say nothing about it: an administrator may use every bucket of the account, a run's role only one.

IAM simulates the requests, and makes none:
https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from spotrun.address import BucketAddress
from spotrun.clouds.aws.calls import Region
from spotrun.doctor.finding import Refusal, Verdict
from spotrun.errors import AccessDenied

NAME = "store of instances"
ALLOW = "allow these in a policy of the role in {}"
"""Advice on the role in the instance profile {} that a job names."""
UNSIMULATED = Refusal(
    "whether instances may use the store is unknown",
    hint="deploy the current infra/aws/account.yaml, or allow iam:SimulatePrincipalPolicy on the instances' role",
    verdict=Verdict.WARNED,
)


class StoreDenied(AccessDenied):
    """IAM would deny the instances' role the use of the store."""


def folder_in(store: BucketAddress, uid: str) -> BucketAddress:
    """Return the folder of an imaginary run in the store."""
    return replace(store, prefix=f"{store.root}doctor-{uid}")


def require_store(region: Region, profile: str, folder: BucketAddress, tags: Mapping[str, str], hint: str) -> None:
    """
    Check that the role in the instance profile may list the bucket of `folder`, and read, write and delete objects in
    `folder`. `tags` are those tags of the role on which its rights depend.

    Raises:
        StoreDenied: IAM would deny one of these requests (`hint` is then its hint), or the profile has no role.
        NotThere: the profile does not exist.
        AccessDenied: the caller is not allowed to read the profile or to simulate requests of its role.
    """
    look = partial(region.iam.get_instance_profile, InstanceProfileName=profile)
    roles = region.ask(f"read the instance profile {profile}", look)["InstanceProfile"]["Roles"]
    if not roles:
        raise StoreDenied(f"the instance profile {profile} has no role", hint="add a role to it, or name another one")
    (role,) = roles
    context = [_context(f"aws:PrincipalTag/{key}", text) for key, text in tags.items()]
    context.append({**_context("aws:SecureTransport", "true"), "ContextKeyType": "boolean"})
    bucket = f"arn:{region.partition}:s3:::{folder.bucket}"
    simulated = partial(_denied, region, PolicySourceArn=role["Arn"], ContextEntries=context)
    denied = [
        *simulated(ResourceArns=[bucket], ActionNames=["s3:ListBucket"]),
        *simulated(
            ResourceArns=[f"{bucket}/{folder.root}checkpoints/part"],
            ActionNames=["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        ),
    ]
    if denied:
        raise StoreDenied(f"IAM does not allow instances to use {folder}: {', '.join(denied)}", hint=hint)


def _context(key: str, text: str) -> dict[str, Any]:
    return {"ContextKeyName": key, "ContextKeyValues": [text], "ContextKeyType": "string"}


def _denied(region: Region, **parameters: Any) -> Iterator[str]:
    for row in region.pages(region.iam, "simulate_principal_policy", "EvaluationResults", **parameters):
        if row["EvalDecision"] != "allowed":
            yield f"{row['EvalActionName']} on {row['EvalResourceName']}"
