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
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from tests.support.cel import Resource, holds
from tests.support.gce_agenda import Now
from tests.support.gce_answers import Json, Refusal, rpc_refusal
from tests.support.gce_catalog import PROJECT, PROJECT_NUMBER
from tests.support.gcp_policies import allows, bucket_named, folder_named, folders_over, object_named
from tests.support.gcp_templates import conditions, roles
from tests.support.google_api import Asked
from tests.support.google_secrets import METHODS as OF_SECRETS
from tests.support.google_secrets import SecretManager
from tests.support.object_stores import BUCKET

RUNNER = "user:ada@example.com"
ACCOUNTS = f"principalSet://cloudresourcemanager.googleapis.com/projects/{PROJECT_NUMBER}/type/ServiceAccount"
"""Each service account of the project: https://cloud.google.com/iam/docs/principal-identifiers"""
LOGICAL_MAX = 12
"""Operators of a condition: https://cloud.google.com/iam/quotas."""
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_MEMBER = re.compile(r"(?:(deleted):)?serviceAccount:([^?]+)(?:\?uid=(\d+))?")


class Where(NamedTuple):
    """A resource that is asked for, and the names of the managed folders that it is in."""

    resource: Resource
    folders: tuple[str, ...] = ()


class GoogleProject:
    """
    As infra/gcp sets it up for one runner. `accounts` are by their addresses. `policies` are those of managed folders,
    by their names; a member there has its unique id behind it.
    """

    def __init__(self, clock: Now, has_objects: Callable[[str], bool]) -> None:
        """`has_objects` says whether a managed folder has some."""
        self.clock = clock
        self.accounts: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.made_at: dict[str, datetime] = {}
        """Of each account, by its unique id."""
        self.accounts_max = 100
        self.uniform = True
        self.bucket_name = BUCKET
        self.bucket_project = PROJECT
        self.bucket: dict[str, Any] = {"location": "US-CENTRAL1", "locationType": "region"}
        """What the bucket says of itself, besides its access."""
        self.new_accounts_are_known = True
        """Whether the bucket knows an account that was just made."""
        self._has_objects = has_objects
        self._numbers = itertools.count(100000000000000000001)
        self._writes = itertools.count(1)
        of_runner = {"members": [RUNNER]}
        self.secrets = SecretManager(PROJECT, PROJECT_NUMBER)
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
                {"role": "spotrunFolder", **of_runner, "condition": conditions()["spotrunFolder"]},
            ]
        }

    def has_nights(self) -> str:
        """It is as infra/gcp/nights leaves it. The account that takes care of runs, a runner like any other."""
        self._make_account("spotrun-clock", {"displayName": "spotrun, calls who attends to runs"})
        email = str(self._make_account("spotrun-night", {"displayName": "spotrun, attends to runs"})["email"])
        for binding in (*self._of_project["bindings"], *self.of_bucket["bindings"]):
            if RUNNER not in binding["members"]:
                continue
            binding["members"] = [*binding["members"], f"serviceAccount:{email}"]
        return email

    # -- who may what --------------------------------------------------------------------------------------------

    def may(self, asked: Asked, permission: str) -> bool:
        """What Compute Engine is asked for is everybody's."""
        if permission.startswith("compute."):
            return True
        if permission.startswith("secretmanager."):
            return self._may_in_secrets(asked, permission)
        if not permission.startswith("storage."):
            return allows(self._of_project, asked.who, permission, Resource(f"projects/{PROJECT}"))
        where = self._where(asked)
        if allows(self.of_bucket, asked.who, permission, where.resource):
            return True
        return any(
            allows(self.policy(folder), asked.who, permission, where.resource)
            for folder in where.folders
            if folder in self.policies
        )

    def _may_in_secrets(self, asked: Asked, permission: str) -> bool:
        """Each service account is also one of the project's."""
        who = [asked.who, ACCOUNTS] if asked.who.startswith("serviceAccount:") else [asked.who]
        resource = self.secrets.resource(asked.arguments)
        return any(allows(self._of_project, each, permission, resource) for each in who)

    def _where(self, asked: Asked) -> Where:
        """A list is asked of the deepest folder that its prefix is in: storage/docs/managed-folders."""
        bucket, folder = asked.arguments["bucket"], asked.arguments.get("managedFolder")
        if asked.method.startswith("storage.objects.") and asked.name:
            return Where(object_named(bucket, asked.name), tuple(folders_over(asked.name)))
        if folder is not None:
            return Where(folder_named(bucket, folder), tuple(folders_over(folder)))
        over = tuple(folders_over(asked.query.get("prefix", "")))
        if asked.method != "storage.objects.list" or not over:
            return Where(bucket_named(bucket))
        return Where(folder_named(bucket, over[-1]), over)

    # -- what is answered ----------------------------------------------------------------------------------------

    @property
    def handlers(self) -> Mapping[str, Callable[[Asked], Json | None]]:
        """They raise the Refusal that Google would send."""
        of_accounts: Mapping[str, Callable[[Asked], Json]] = {
            "create": lambda asked: self._make_account(asked.body["accountId"], asked.body.get("serviceAccount", {})),
            "delete": self._delete_account,
            "get": lambda asked: self._account(asked.arguments["name"]),
            "list": lambda asked: self._page(asked.query),
        }
        in_bucket: Mapping[str, Callable[[Asked], Json | None]] = {
            "buckets.get": lambda _: self._bucket(),
            "buckets.getIamPolicy": lambda _: self._bucket_policy(),
            "managedFolders.delete": self._delete_folder,
            "managedFolders.getIamPolicy": self._told_policy,
            "managedFolders.insert": lambda asked: self._make_folder(asked.body["name"]),
            "managedFolders.setIamPolicy": lambda asked: self._set_policy(asked.arguments["managedFolder"], asked.body),
        }
        return {
            **{f"iam.projects.serviceAccounts.{verb}": handler for verb, handler in of_accounts.items()},
            **{f"storage.{name}": partial(self._in_our_bucket, handler) for name, handler in in_bucket.items()},
            **dict.fromkeys(OF_SECRETS, self.secrets.answer),
        }

    # -- service accounts ----------------------------------------------------------------------------------------

    def _make_account(self, account_id: str, told: Json) -> Json:
        email = f"{account_id}@{PROJECT}.iam.gserviceaccount.com"
        if not _ID.fullmatch(account_id):
            raise rpc_refusal(400, f"Invalid id {account_id}")
        if len(told.get("description", "").encode()) > 256 or len(told.get("displayName", "").encode()) > 100:
            raise rpc_refusal(400, "The description or the display name is too long.")
        if email in self.accounts:
            raise rpc_refusal(409, f"Service account {account_id} already exists within project projects/{PROJECT}.")
        if len(self.accounts) >= self.accounts_max:
            raise rpc_refusal(429, "Maximum number of service accounts on project reached.")
        name = f"projects/{PROJECT}/serviceAccounts/{email}"
        unique_id = str(next(self._numbers))
        self.made_at[unique_id] = self.clock.now()
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

    def _account(self, name: str) -> Json:
        email = name.rpartition("/")[2]
        if email not in self.accounts:
            raise rpc_refusal(404, f"Unknown service account {email}")
        return self.accounts[email]

    def _delete_account(self, asked: Asked) -> Json:
        del self.accounts[self._account(asked.arguments["name"])["email"]]
        return {}

    def _page(self, query: Mapping[str, str]) -> Json:
        start, size = int(query.get("pageToken", "0")), int(query.get("pageSize", "20"))
        found = [self.accounts[email] for email in sorted(self.accounts)]
        more = {"nextPageToken": str(start + size)} if len(found) > start + size else {}
        return {**({"accounts": found[start : start + size]} if found else {}), **more}

    # -- managed folders -----------------------------------------------------------------------------------------

    def policy(self, folder: str) -> Json:
        """As it is told: a member that lives by its address, another one as deleted."""
        if folder not in self.policies:
            raise Refusal(404, "notFound", "The specified managed folder does not exist.")
        policy = self.policies[folder]
        told = [{**each, "members": [self._told(member) for member in each["members"]]} for each in policy["bindings"]]
        kind = {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{self.bucket_name}/managedFolders/{folder}",
        }
        return {**kind, **policy, **({"bindings": told} if told else {})}

    def _told_policy(self, asked: Asked) -> Json:
        policy = self.policy(asked.arguments["managedFolder"])
        if policy["version"] == 3 and asked.query.get("optionsRequestedPolicyVersion") != "3":
            raise Refusal(400, "invalid", "A policy with conditions is asked for in an earlier version.")
        return policy

    def _make_folder(self, name: str) -> Json:
        if not self.uniform:
            raise Refusal(400, "invalid", "Managed folders need uniform bucket-level access.")
        if not name.endswith("/") or "//" in name or name.count("/") > 15:
            raise Refusal(400, "invalid", f"Invalid name of a managed folder: {name}")
        if name in self.policies:
            raise Refusal(409, "conflict", "The managed folder you tried to create already exists.")
        self.policies[name] = {"version": 1, "etag": _etag(next(self._writes)), "bindings": []}
        made = self.clock.now().isoformat()
        times = {"createTime": made, "updateTime": made, "metageneration": "1"}
        return {
            "kind": "storage#managedFolder",
            "id": f"{self.bucket_name}/{name}",
            "name": name,
            "bucket": self.bucket_name,
            **times,
        }

    def _delete_folder(self, asked: Asked) -> None:
        name = asked.arguments["managedFolder"]
        self.policy(name)
        if asked.query.get("allowNonEmpty") != "true" and (
            self._has_objects(name) or any(each.startswith(name) for each in self.policies if each != name)
        ):
            raise Refusal(409, "conflict", "The managed folder you tried to delete is not empty.")
        del self.policies[name]

    def _set_policy(self, folder: str, body: Json) -> Json:
        before = self.policy(folder)
        if "etag" in body and body["etag"] != before["etag"]:
            raise Refusal(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        self._check(body)
        bindings = [
            {**each, "members": [self._kept(member, before) for member in each["members"]]} for each in body["bindings"]
        ]
        version = body.get("version", 1)
        self.policies[folder] = {"version": version, "etag": _etag(next(self._writes)), "bindings": bindings}
        return self.policy(folder)

    def _check(self, policy: Json) -> None:
        for binding in policy["bindings"]:
            role, condition = binding["role"], binding.get("condition")
            custom = role.removeprefix(f"projects/{self.bucket_project}/roles/")
            if not role.startswith("roles/storage.") and (custom == role or custom not in roles()):
                raise Refusal(400, "invalid", f"Role {role} is not supported for this resource.")
            if condition is not None:
                self._check_condition(condition, policy)

    def _check_condition(self, condition: Json, policy: Json) -> None:
        if policy.get("version") != 3:
            raise Refusal(400, "invalid", "A policy with conditions has version 3.")
        expression = condition["expression"]
        holds(expression, Resource(""))
        if not condition.get("title") or len(re.findall(r"&&|\|\||!", expression)) > LOGICAL_MAX:
            raise Refusal(400, "invalid", "The condition has no title, or too many operators.")

    def _kept(self, member: str, before: Json) -> str:
        """A member with the unique id of the account that has its address now, or of the one that had it."""
        found = _MEMBER.fullmatch(member)
        if found is None:
            return member
        deleted, email, unique_id = found.groups()
        if deleted:
            if not any(member in each["members"] for each in before.get("bindings", ())):
                raise Refusal(400, "invalid", f"Invalid member {member}")
            return f"serviceAccount:{email}?uid={unique_id}"
        if email not in self.accounts or not self.new_accounts_are_known:
            raise Refusal(400, "invalid", f"Service account {email} does not exist.")
        return f"serviceAccount:{email}?uid={self.accounts[email]['uniqueId']}"

    def _told(self, member: str) -> str:
        found = _MEMBER.fullmatch(member)
        if found is None:
            return member
        _, email, unique_id = found.groups()
        lives = self.accounts.get(email, {}).get("uniqueId") == unique_id
        return f"serviceAccount:{email}" if lives else f"deleted:{member}"

    def _in_our_bucket(self, handler: Callable[[Asked], Json | None], asked: Asked) -> Json | None:
        if asked.arguments["bucket"] != self.bucket_name:
            raise Refusal(404, "notFound", "The specified bucket does not exist.")
        return handler(asked)

    def _bucket(self) -> Json:
        access = {"uniformBucketLevelAccess": {"enabled": self.uniform}, "publicAccessPrevention": "enforced"}
        return {
            "kind": "storage#bucket",
            "name": self.bucket_name,
            "projectNumber": PROJECT_NUMBER,
            "iamConfiguration": access,
            **self.bucket,
        }

    def _bucket_policy(self) -> Json:
        """Its roles by their whole names, as Cloud Storage tells them."""
        told = [
            each if each["role"].startswith("roles/") else {**each, "role": f"projects/{PROJECT}/roles/{each['role']}"}
            for each in self.of_bucket["bindings"]
        ]
        return {"kind": "storage#policy", "version": 3, "etag": _etag(0), "bindings": told}

    # -- what tests ask ------------------------------------------------------------------------------------------

    def members(self) -> Iterator[str]:
        """All members of all folders' policies, as they are told."""
        for folder in self.policies:
            for binding in self.policy(folder).get("bindings", ()):
                yield from binding["members"]


def _etag(number: int) -> str:
    return base64.b64encode(bytes([8, number])).decode()
