"""
A project of Google Cloud in memory: its service accounts, and the managed folders of its bucket with their policies.

    https://cloud.google.com/iam/docs/reference/rest/v1/projects.serviceAccounts
    https://cloud.google.com/iam/docs/service-accounts-create: ids, 100 accounts a project
    https://cloud.google.com/storage/docs/json_api/v1/managedFolder
    https://cloud.google.com/storage/docs/managed-folders: names, uniform access
    https://cloud.google.com/iam/docs/policies: etags, versions; members that are deleted keep their grants

A member of a policy is an account's unique id, whatever has its address later. Calls arrive as tests.support.google_api
reads them, so they are well formed.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.support.cel import Resource, holds
from tests.support.gcp_policies import allows, bucket_named, folder_named, folders_over, object_named
from tests.support.gcp_templates import conditions, roles
from tests.support.google_api import Called
from tests.support.google_secrets import METHODS as OF_SECRETS
from tests.support.google_secrets import Refused, SecretManager
from tests.support.object_stores import BUCKET

PROJECT, NUMBER = "acme-training", "123456789012"

RUNNER = "user:ada@example.com"
ACCOUNTS = f"principalSet://cloudresourcemanager.googleapis.com/projects/{NUMBER}/type/ServiceAccount"
"""Each service account of the project: https://cloud.google.com/iam/docs/principal-identifiers"""
LOGICAL_MAX = 12
"""Operators of a condition: https://cloud.google.com/iam/quotas."""
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_MEMBER = re.compile(r"(?:(deleted):)?serviceAccount:([^?]+)(?:\?uid=(\d+))?")
_IAM_STATUS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS"}
_DENIALS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}

Body = Mapping[str, Any]


class Refusal(Exception):
    """An answer that is none of success. `reason` is as the service has it that refuses; IAM has a status only."""

    def __init__(self, status: int, message: str, reason: str = "invalid") -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason

    def body(self, service: str) -> Body:
        if service == "iam":
            status = "RESOURCE_EXHAUSTED" if self.status == 429 else _IAM_STATUS.get(self.status, "UNKNOWN")
            return {"error": {"code": self.status, "message": self.message, "status": status}}
        if service == "secretmanager":
            reason = _DENIALS.get(self.status, self.reason)
            return {"error": {"code": self.status, "message": self.message, "status": reason}}
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [one]}}


class Where(NamedTuple):
    """A resource that is asked for, and the names of the managed folders that it is in."""

    resource: Resource
    folders: tuple[str, ...] = ()


class GoogleProject:
    """
    As infra/gcp sets it up for one runner. `accounts` are by their addresses. `policies` are those of managed folders,
    by their names; a member there has its unique id behind it.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.accounts_max = 100
        self.uniform = True
        self.bucket_project = PROJECT
        self.bucket_told: dict[str, str] = {}
        """What the bucket says of itself beside."""
        self.new_accounts_are_known = True
        """Whether the bucket knows an account that was just made."""
        self.objects_below: Any = lambda _name: False
        """Whether a managed folder has objects."""
        self._numbers = itertools.count(100000000000000000001)
        self._writes = itertools.count(1)
        of_runner = {"members": [RUNNER]}
        self.secrets = SecretManager(PROJECT, NUMBER)
        self._of_project: dict[str, Any] = {
            "bindings": [
                {"role": "spotrunRunner", **of_runner},
                {"role": "spotrunSecret", "members": [ACCOUNTS], "condition": conditions()["spotrunSecret"]},
            ]
        }
        self.of_bucket: dict[str, Any] = {
            "bindings": [
                {"role": "spotrunBucket", **of_runner},
                {"role": "spotrunChange", **of_runner, "condition": conditions()["spotrunChange"]},
            ]
        }

    def has_nights(self) -> str:
        """It is as infra/gcp/nights leaves it. The account that attends to runs, a runner like any other."""
        email = str(self._make_account("spotrun-night", {"displayName": "spotrun, attends to runs"})["email"])
        for binding in (*self._of_project["bindings"], *self.of_bucket["bindings"]):
            if RUNNER not in binding["members"]:
                continue
            binding["members"] = [*binding["members"], f"serviceAccount:{email}"]
        return email

    # -- who may what --------------------------------------------------------------------------------------------

    def may(self, member: str, permission: str, called: Called, name: str = "") -> bool:
        """`name` is that of the object which an upload makes."""
        if permission.startswith("secretmanager."):
            return self._may_in_secrets(member, permission, called)
        if not permission.startswith("storage."):
            return allows(self._of_project, member, permission, Resource(f"projects/{PROJECT}"))
        where = self._where(called, name)
        if allows(self.of_bucket, member, permission, where.resource):
            return True
        return any(
            allows(self.policy(folder), member, permission, where.resource)
            for folder in where.folders
            if folder in self.policies
        )

    def _may_in_secrets(self, member: str, permission: str, called: Called) -> bool:
        """Each service account is also one of the project's."""
        who = [member, ACCOUNTS] if member.startswith("serviceAccount:") else [member]
        resource = self.secrets.resource(called.arguments)
        return any(allows(self._of_project, each, permission, resource) for each in who)

    def _where(self, called: Called, name: str) -> Where:
        """A list is asked of the deepest folder that its prefix is in: storage/docs/managed-folders."""
        bucket = called.arguments["bucket"]
        folder, item = called.arguments.get("managedFolder"), name or called.arguments.get("object")
        if item is not None:
            return Where(object_named(bucket, item), tuple(folders_over(item)))
        if folder is not None:
            return Where(folder_named(bucket, folder), tuple(folders_over(folder)))
        over = tuple(folders_over(called.query.get("prefix", "")))
        if called.method.id != "storage.objects.list" or not over:
            return Where(bucket_named(bucket))
        return Where(folder_named(bucket, over[-1]), over)

    # -- what is answered ----------------------------------------------------------------------------------------

    def answer(self, called: Called, body: Body) -> Body | None:
        """
        Raises:
            Refusal: it is refused.
        """
        match called.method.id:
            case "iam.projects.serviceAccounts.create":
                return self._make_account(body["accountId"], body.get("serviceAccount", {}))
            case "iam.projects.serviceAccounts.get":
                return self._account(called.arguments["name"])
            case "iam.projects.serviceAccounts.delete":
                del self.accounts[self._account(called.arguments["name"])["email"]]
                return {}
            case "iam.projects.serviceAccounts.list":
                return self._page(called.query)
        if called.method.id in OF_SECRETS:
            return self._of_secrets(called, body)
        if called.arguments["bucket"] != BUCKET:
            raise Refusal(404, "The specified bucket does not exist.", "notFound")
        match called.method.id:
            case "storage.buckets.get":
                return self._bucket()
            case "storage.managedFolders.insert":
                return self._make_folder(body["name"])
            case "storage.managedFolders.delete":
                return self._delete_folder(called)
            case "storage.managedFolders.getIamPolicy":
                return self._told_policy(called)
            case "storage.managedFolders.setIamPolicy":
                self._set_policy(called.arguments["managedFolder"], body)
                return self.policy(called.arguments["managedFolder"])
        raise NotImplementedError(called.method.id)

    def _of_secrets(self, called: Called, body: Body) -> Body:
        try:
            return self.secrets.answer(called.method.id, called.arguments, called.query, body)
        except Refused as refused:
            raise Refusal(refused.status, refused.message, refused.reason) from refused

    # -- service accounts ----------------------------------------------------------------------------------------

    def _make_account(self, account_id: str, told: Body) -> Body:
        email = f"{account_id}@{PROJECT}.iam.gserviceaccount.com"
        if not _ID.fullmatch(account_id):
            raise Refusal(400, f"Invalid id {account_id}")
        if len(told.get("description", "").encode()) > 256 or len(told.get("displayName", "").encode()) > 100:
            raise Refusal(400, "The description or the display name is too long.")
        if email in self.accounts:
            raise Refusal(409, f"Service account {account_id} already exists within project projects/{PROJECT}.")
        if len(self.accounts) >= self.accounts_max:
            raise Refusal(429, "Maximum number of service accounts on project reached.")
        name = f"projects/{PROJECT}/serviceAccounts/{email}"
        unique_id = str(next(self._numbers))
        told = {key: told[key] for key in ("displayName", "description") if key in told}
        self.accounts[email] = {
            "name": name,
            "email": email,
            "uniqueId": unique_id,
            "projectId": PROJECT,
            "etag": _etag(0),
            "oauth2ClientId": unique_id,
            **told,
        }
        return self.accounts[email]

    def _account(self, name: str) -> Body:
        email = name.rpartition("/")[2]
        if email not in self.accounts:
            raise Refusal(404, f"Unknown service account {email}")
        return self.accounts[email]

    def _page(self, query: Mapping[str, str]) -> Body:
        start, size = int(query.get("pageToken", "0")), int(query.get("pageSize", "20"))
        found = [self.accounts[email] for email in sorted(self.accounts)]
        more = {"nextPageToken": str(start + size)} if len(found) > start + size else {}
        return {**({"accounts": found[start : start + size]} if found else {}), **more}

    # -- managed folders -----------------------------------------------------------------------------------------

    def policy(self, folder: str) -> Body:
        """As it is told: a member that lives by its address, another one as deleted."""
        if folder not in self.policies:
            raise Refusal(404, "The specified managed folder does not exist.", "notFound")
        policy = self.policies[folder]
        told = [{**each, "members": [self._told(member) for member in each["members"]]} for each in policy["bindings"]]
        kind = {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{BUCKET}/managedFolders/{folder}"}
        return {**kind, **policy, **({"bindings": told} if told else {})}

    def _told_policy(self, called: Called) -> Body:
        policy = self.policy(called.arguments["managedFolder"])
        if policy["version"] == 3 and called.query.get("optionsRequestedPolicyVersion") != "3":
            raise Refusal(400, "A policy with conditions is asked for in an earlier version.")
        return policy

    def _make_folder(self, name: str) -> Body:
        if not self.uniform:
            raise Refusal(400, "Managed folders need uniform bucket-level access.")
        if not name.endswith("/") or "//" in name or name.count("/") > 15:
            raise Refusal(400, f"Invalid name of a managed folder: {name}")
        if name in self.policies:
            raise Refusal(409, "The managed folder you tried to create already exists.", "conflict")
        self.policies[name] = {"version": 1, "etag": _etag(next(self._writes)), "bindings": []}
        made = datetime.now(UTC).isoformat()
        times = {"createTime": made, "updateTime": made, "metageneration": "1"}
        return {"kind": "storage#managedFolder", "id": f"{BUCKET}/{name}", "name": name, "bucket": BUCKET, **times}

    def _delete_folder(self, called: Called) -> None:
        name = called.arguments["managedFolder"]
        self.policy(name)
        if called.query.get("allowNonEmpty") != "true" and (
            self.objects_below(name) or any(each.startswith(name) for each in self.policies if each != name)
        ):
            raise Refusal(409, "The managed folder you tried to delete is not empty.", "conflict")
        del self.policies[name]

    def _set_policy(self, folder: str, body: Body) -> None:
        before = self.policy(folder)
        if "etag" in body and body["etag"] != before["etag"]:
            raise Refusal(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")
        self._check(body)
        bindings = [
            {**each, "members": [self._kept(member, before) for member in each["members"]]} for each in body["bindings"]
        ]
        version = body.get("version", 1)
        self.policies[folder] = {"version": version, "etag": _etag(next(self._writes)), "bindings": bindings}

    def _check(self, policy: Body) -> None:
        for binding in policy["bindings"]:
            role, condition = binding["role"], binding.get("condition")
            custom = role.removeprefix(f"projects/{self.bucket_project}/roles/")
            if not role.startswith("roles/storage.") and (custom == role or custom not in roles()):
                raise Refusal(400, f"Role {role} is not supported for this resource.")
            if condition is not None:
                self._check_condition(condition, policy)

    def _check_condition(self, condition: Body, policy: Body) -> None:
        if policy.get("version") != 3:
            raise Refusal(400, "A policy with conditions has version 3.")
        expression = condition["expression"]
        holds(expression, Resource(""))
        if not condition.get("title") or len(re.findall(r"&&|\|\||!", expression)) > LOGICAL_MAX:
            raise Refusal(400, "The condition has no title, or too many operators.")

    def _kept(self, member: str, before: Body) -> str:
        """A member with the unique id of the account that has its address now, or of the one that had it."""
        found = _MEMBER.fullmatch(member)
        if found is None:
            return member
        deleted, email, unique_id = found.groups()
        if deleted:
            if not any(member in each["members"] for each in before.get("bindings", ())):
                raise Refusal(400, f"Invalid member {member}")
            return f"serviceAccount:{email}?uid={unique_id}"
        if email not in self.accounts or not self.new_accounts_are_known:
            raise Refusal(400, f"Service account {email} does not exist.")
        return f"serviceAccount:{email}?uid={self.accounts[email]['uniqueId']}"

    def _told(self, member: str) -> str:
        found = _MEMBER.fullmatch(member)
        if found is None:
            return member
        _, email, unique_id = found.groups()
        lives = self.accounts.get(email, {}).get("uniqueId") == unique_id
        return f"serviceAccount:{email}" if lives else f"deleted:{member}"

    def _bucket(self) -> Body:
        access = {"uniformBucketLevelAccess": {"enabled": self.uniform}, "publicAccessPrevention": "enforced"}
        return {
            "kind": "storage#bucket",
            "name": BUCKET,
            "projectNumber": NUMBER,
            "iamConfiguration": access,
            **self.bucket_told,
        }

    # -- what tests ask ------------------------------------------------------------------------------------------

    def members(self) -> Iterator[str]:
        """All members of all folders' policies, as they are told."""
        for folder in self.policies:
            for binding in self.policy(folder).get("bindings", ()):
                yield from binding["members"]


def _etag(number: int) -> str:
    return base64.b64encode(bytes([8, number])).decode()
