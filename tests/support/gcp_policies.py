"""
Whom the policies of Google's IAM allow what: our own reading of it, over the custom roles of infra/gcp.

Policies add up, a policy holds for all below its resource, and a binding counts only where its condition holds for the
resource that is asked for: https://cloud.google.com/iam/docs/policies, https://cloud.google.com/iam/docs/conditions-overview
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.cel import Resource, holds
from tests.support.gcp_templates import roles

Policy = Mapping[str, Any]


def allows(policy: Policy, member: str, permission: str, resource: Resource) -> bool:
    """Whether a policy of the resource, or of one that it is in, allows it by itself."""
    return any(
        member in binding["members"] and permission in permissions(binding["role"]) and applies(binding, resource)
        for binding in policy.get("bindings", ())
    )


def applies(binding: Policy, resource: Resource) -> bool:
    condition = binding.get("condition")
    return condition is None or holds(condition["expression"], resource)


def permissions(role: str) -> list[str]:
    """
    Raises:
        KeyError: infra/gcp has no such role.
    """
    return list(roles()[role.rpartition("/")[2]]["includedPermissions"])


def object_named(bucket: str, name: str) -> Resource:
    """https://cloud.google.com/iam/docs/conditions-resource-attributes: how a condition sees it."""
    return Resource(f"projects/_/buckets/{bucket}/objects/{name}", "storage.googleapis.com/Object")


def folder_named(bucket: str, name: str) -> Resource:
    return Resource(f"projects/_/buckets/{bucket}/managedFolders/{name}", "storage.googleapis.com/ManagedFolder")


def bucket_named(bucket: str) -> Resource:
    return Resource(f"projects/_/buckets/{bucket}", "storage.googleapis.com/Bucket")


def folders_over(name: str) -> Iterator[str]:
    """The names that managed folders over an object, a folder or a prefix have, from the top: a/, a/b/ for a/b/c."""
    for at, sign in enumerate(name):
        if sign == "/":
            yield name[: at + 1]
