"""
Checks a Google Cloud project: the login and its rights, the firewall and the network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.calls import COMPUTE, IAM, RESOURCES, STORAGE, Call, Google
from spotrun.clouds.gcp.config import OWN_ACCOUNT
from spotrun.clouds.gcp.description import last_part
from spotrun.clouds.gcp.instances import look
from spotrun.clouds.gcp.names import read_name
from spotrun.errors import CloudError, IdentityUnknown

OF_IAP = frozenset(("35.235.240.0/20",))
"""
The addresses of Identity-Aware Proxy. The proxy checks the caller before it connects:
https://cloud.google.com/iap/docs/using-tcp-forwarding
"""
ACT_AS = "iam.serviceAccounts.actAs"
"""The permission to attach a service account to an instance. It can be granted in a project, or on one account."""
_ACCOUNT = "serviceAccount:"


class Rule(NamedTuple):
    """A firewall rule that allows incoming traffic. `is_of_iap` is True if its only source is Identity-Aware Proxy."""

    name: str
    is_of_iap: bool


def caller(google: Google) -> str:
    """
    Return the login's email address; "" if Google does not report it. Whether the login is valid shows only in other
    calls.
    """
    with contextlib.suppress(CloudError):
        return google.caller()
    return ""


def project_facts(google: Google, project: str) -> Mapping[str, Any]:
    """
    Return Compute Engine's description of the project, with the quotas that apply to all regions together.

    Raises:
        CloudError: no user is logged in, the API or billing is disabled, or the project does not exist or is hidden
            from the user.
    """
    return google.ask(f"read the project {project}", Call(COMPUTE, "GET", f"projects/{project}"))


def granted(google: Google, project: str, permissions: Collection[str]) -> set[str]:
    """
    Return those of `permissions` (at most 100) that the caller has in the project. The result leaves out permissions
    that are granted only for resources with certain names:
    https://cloud.google.com/resource-manager/reference/rest/v3/projects/testIamPermissions

    Raises:
        CloudError: Resource Manager does not answer.
    """
    path = f"v3/projects/{quote(project, safe=':')}:testIamPermissions"
    call = Call(RESOURCES, "POST", path, body={"permissions": sorted(permissions)})
    return set(google.ask("say what you may do in the project", call).get("permissions", ()))


def one_of_ours(google: Google, project: str) -> Mapping[str, Any] | None:
    """Return Google's description of one of spotrun's instances; None if there are none, or if listing them fails."""
    try:
        records = look(google, project, None).records.values()
    except CloudError:
        return None
    return next((record.row for record in records if record.row is not None and read_name(record.name)), None)


def granted_on(google: Google, project: str, instance: Mapping[str, Any], permissions: Collection[str]) -> set[str]:
    """
    Return those of `permissions` that the caller has on an instance. This includes permissions that are granted only
    for instances with certain names, which `granted` leaves out.
    """
    place = f"projects/{project}/zones/{last_part(instance['zone'])}/instances/{instance['name']}"
    call = Call(COMPUTE, "POST", f"{place}/testIamPermissions", body={"permissions": sorted(permissions)})
    return set(google.ask(f"say what you may do with {instance['name']}", call).get("permissions", ()))


def granted_in_bucket(google: Google, bucket: str, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the caller has in a bucket. Raise CloudError if it does not exist."""
    query = {"permissions": sorted(permissions)}
    call = Call(STORAGE, "GET", f"b/{quote(bucket, safe='')}/iam/testPermissions", query)
    return set(google.ask(f"say what you may do in gs://{bucket}", call).get("permissions", ()))


def roles_in_bucket(google: Google, bucket: str, email: str) -> set[str]:
    """
    Return the roles that the bucket's own policy grants to a service account. Raise CloudError if the caller is not
    allowed to read the policy.
    """
    call = Call(STORAGE, "GET", f"b/{quote(bucket, safe='')}/iam", {"optionsRequestedPolicyVersion": "3"})
    policy = google.ask(f"read the policy of gs://{bucket}", call)
    return {role for member, role in _grants_to_accounts(policy) if member == email}


def bucket_facts(google: Google, bucket: str) -> Mapping[str, Any]:
    return google.ask(f"read the settings of gs://{bucket}", Call(STORAGE, "GET", f"b/{quote(bucket, safe='')}"))


def regions_told(google: Google, project: str) -> dict[str, Mapping[str, Any]]:
    """Return all regions that Google lists for the project, with their quotas."""
    rows = google.items("list regions and their quotas", Call(COMPUTE, "GET", f"projects/{project}/regions"))
    return {str(row["name"]): row for row in rows}


class Subnetwork(NamedTuple):
    """The name of its network, and whether instances without external addresses reach Google's APIs in it."""

    network: str
    reaches_google: bool


def subnetwork_at(google: Google, path: str) -> Subnetwork:
    found = google.ask("find the network of the subnetwork", Call(COMPUTE, "GET", path))
    return Subnetwork(last_part(found["network"]), bool(found.get("privateIpGoogleAccess")))


def ingress_rules(google: Google, project: str, network: str) -> list[Rule]:
    rows = google.items("list firewall rules", Call(COMPUTE, "GET", f"projects/{project}/global/firewalls"))
    return [
        Rule(row["name"], _is_of_iap(row)) for row in rows if _lets_in(row) and last_part(row["network"]) == network
    ]


def other_accounts(google: Google, project: str) -> list[str]:
    """
    Return the email addresses of the project's enabled service accounts, except those that spotrun creates for runs and
    nights.
    """
    call = Call(IAM, "GET", f"v1/projects/{quote(project, safe=':')}/serviceAccounts", {"pageSize": "100"})
    found = google.items("list service accounts", call, "accounts")
    others = (str(row["email"]) for row in found if not row.get("disabled", False))
    return sorted(email for email in others if not email.startswith(OWN_ACCOUNT))


def require_account(google: Google, email: str) -> None:
    """
    Raise IdentityUnknown if no service account has this email address, or if the caller is not allowed to see the
    account.
    """
    call = Call(IAM, "GET", f"v1/projects/-/serviceAccounts/{quote(email)}")
    try:
        google.ask(f"read the service account {email}", call)
    except NotThere as error:
        what = f"there is no service account {email}, or you are not allowed to see it"
        key = ("gcp", "service_account")
        raise IdentityUnknown(what, hint="check gcp.service_account, or leave it out", key=key) from error


def may_act_as(google: Google, email: str) -> bool:
    """
    Return True if the caller may attach a service account to instances:
    https://cloud.google.com/iam/docs/reference/rest/v1/projects.serviceAccounts/testIamPermissions
    """
    path = f"v1/projects/-/serviceAccounts/{quote(email)}:testIamPermissions"
    answer = google.ask(f"say what you may do with {email}", Call(IAM, "POST", path, body={"permissions": [ACT_AS]}))
    return ACT_AS in answer.get("permissions", ())


def roles_of_accounts(google: Google, project: str) -> dict[str, set[str]]:
    """
    Return the roles that the project's policy grants to service accounts, keyed by the accounts' email addresses. Raise
    CloudError if the caller is not allowed to read the policy.
    """
    path = f"v3/projects/{quote(project, safe=':')}:getIamPolicy"
    policy = google.ask("read the project's policy", Call(RESOURCES, "POST", path, body=_WITH_CONDITIONS))
    found: dict[str, set[str]] = {}
    for email, role in _grants_to_accounts(policy):
        found.setdefault(email, set()).add(role)
    return found


_WITH_CONDITIONS = {"options": {"requestedPolicyVersion": 3}}


def _grants_to_accounts(policy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for binding in policy.get("bindings", ()):
        for member in binding.get("members", ()):
            if member.startswith(_ACCOUNT):
                yield member.removeprefix(_ACCOUNT), binding["role"]


def _lets_in(rule: Mapping[str, Any]) -> bool:
    return rule.get("direction", "INGRESS") == "INGRESS" and "allowed" in rule and not rule.get("disabled", False)


def _is_of_iap(rule: Mapping[str, Any]) -> bool:
    return frozenset(rule.get("sourceRanges", ())) == OF_IAP
