"""
Edits the policy of a run's folder. The policy lets the run's service account read, list and add all objects in the
folder. The account is allowed to overwrite and delete only the objects that instances have to change.

IAM cannot deny a right in a folder, only grant it: https://cloud.google.com/storage/docs/managed-folders. So the grant
to overwrite and delete has a condition, which limits it to certain objects:
https://cloud.google.com/iam/docs/resource-types-with-conditional-roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.address import BucketAddress

CREATE, CHANGE = "spotrunCreate", "spotrunChange"
"""Custom roles of the project. infra/gcp makes them."""
CHANGED = ("checkpoints/", "environments/", "hints/agent-", "outputs/")
"""
Prefixes of the keys that an agent overwrites or deletes. All other objects, such as the entries of the ledger, are
created once.
"""
VERSION = 3
"""The version of the format of policies that have conditions: https://cloud.google.com/iam/docs/policies#versions."""

Policy = Mapping[str, Any]


class Grant(NamedTuple):
    """A role that is granted to one member. `expression` is the condition's expression; "" if there is no condition."""

    role: str
    member: str
    expression: str = ""


def grants(policy: Policy) -> Iterator[Grant]:
    """Yield all grants of a policy. A policy lists them in bindings, each of which has one role and several members."""
    for binding in policy.get("bindings", ()):
        for member in binding.get("members", ()):
            yield Grant(binding["role"], member, binding.get("condition", {}).get("expression", ""))


def granted(policy: Policy, email: str, project: str, folder: BucketAddress) -> Policy:
    """
    Return the policy with the grants that the account of a run needs in `folder`. Other grants to this account are
    removed, and so are grants to a deleted account that had the same address.
    """
    rest = without(policy, email)
    member = [_living(email)]
    changes = {"title": "what instances of a run change", "expression": _condition(folder)}
    ours = [
        {"role": _role(project, CREATE), "members": member},
        {"role": _role(project, CHANGE), "members": member, "condition": changes},
    ]
    return {**rest, "version": VERSION, "bindings": [*rest["bindings"], *ours]}


def without(policy: Policy, email: str) -> Policy:
    """
    Return the policy without grants to an account, or to a deleted account that had the same address:
    https://cloud.google.com/iam/docs/principal-identifiers
    """
    kept = []
    for binding in policy.get("bindings", ()):
        members = [each for each in binding.get("members", ()) if not _is(each, email)]
        if members:
            kept.append({**binding, "members": members})
    return {**policy, "bindings": kept}


def _is(member: str, email: str) -> bool:
    return member == _living(email) or member.startswith(f"deleted:{_living(email)}?uid=")


def _living(email: str) -> str:
    return f"serviceAccount:{email}"


def _role(project: str, name: str) -> str:
    return f"projects/{project}/roles/{name}"


def _condition(folder: BucketAddress) -> str:
    """
    Return a condition that is true for objects of this folder whose keys begin with one of CHANGED. It compares
    the path from its beginning, so an object cannot match by a part in the middle of its path.
    """
    root = f"projects/_/buckets/{folder.bucket}/objects/{folder.root}"
    return " || ".join(f'resource.name.startsWith("{root}{each}")' for each in CHANGED)
