"""
The IAM roles of runs on EC2. Each run has a role and an instance profile, both named after the run's uid.

One policy defines the rights of all these roles (infra/aws/account.yaml). A role's tags name a folder and secrets: the
role is allowed to use only this folder, and to read only these secrets. The policy is also the permissions boundary of
the roles. The API calls and their errors:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_switch-role-ec2_instance-profiles.html
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.aws import account_checks, role_rights
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import OWN_PROFILE
from spotrun.clouds.aws.request import RUN
from spotrun.clouds.aws.secret_tags import KEY as SECRET
from spotrun.clouds.aws.secret_tags import secret_tags
from spotrun.clouds.error_kinds import AlreadyThere, CredentialsRefused, NotThere
from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.clouds.identity_trial import DENIED_WITHIN
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, QuotaExceeded
from spotrun.secrets.reference import Reference

POLICY = "spotrun-node"
"""The policy of all runs' roles. infra/aws makes it."""
IMAGE = "spotrun:image"
"""The tag that names the ECR repository of the job's container image."""
FOLDER = "spotrun:folder"
"""Tag that names the run's folder. Its value is the prefix that the names of the folder's objects have in common."""
_DEPLOY = "deploy the current infra/aws/account.yaml, or set aws.instance_profile to a profile for all runs"
_ATTACH = "attach the current policy spotrun-runner (infra/aws), or set aws.instance_profile to a profile for all runs"
OTHER_STORE = (
    f"use the store for which infra/aws/account.yaml made the policy {POLICY}, by default "
    "s3://spotrun-ACCOUNT-REGION/runs; or deploy that file again with another RunsPrefix"
)
"""Advice for a store that the policy of all runs' roles does not cover."""
_REAP = (
    "`spotrun reap --cloud aws` removes the roles of runs that are over; an account can have 1,000 roles, unless AWS "
    "allows more"
)


class RunRoles:
    """
    Creates and removes the roles and instance profiles of runs. A run's role is created first and removed last. So
    after an interruption, the role shows that something remains to be removed.

    IAM is the same in all regions, so all calls to IAM go through `region`. If `region` does not report the account's
    number, it is read from one of `others`. A role can read only the job's `secrets` and `repository`, the
    ECR repository of the job's container image ("" if it has none).
    """

    noun = "role"

    def __init__(
        self,
        region: Region,
        clock: Clock,
        others: Sequence[Region] = (),
        secrets: Iterable[Reference] = (),
        repository: str = "",
    ) -> None:
        self._region = region
        self._others = others
        self._clock = clock
        self._secrets = secret_tags(secrets)
        self._image = {IMAGE: repository} if repository else {}
        self._policy = ""

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        name = f"{OWN_PROFILE}{run_uid}"
        tags = {RUN: run_uid, FOLDER: _folder(run_uri)}
        with self._with_advice(name):
            made_at = self._have_role(name, tags)
            with self._settling(made_at or self._clock.now()):
                self._ask("give a role its policy", "attach_role_policy", RoleName=name, PolicyArn=self._policy_arn)
                news = [self._have_profile(name, tags), self._have_role_in_profile(name)]
        return self._clock.now() if made_at is None or any(news) else made_at

    def remove(self, run_uid: str) -> None:
        name = f"{OWN_PROFILE}{run_uid}"
        both, role, profile = _both(name), {"RoleName": name}, {"InstanceProfileName": name}
        with self._with_advice(name):
            with contextlib.suppress(NotThere):
                self._known_role(name, {RUN: run_uid})
            self._undo("take a role from its instance profile", "remove_role_from_instance_profile", **both)
            self._undo("delete an instance profile", "delete_instance_profile", "get_instance_profile", **profile)
            self._undo("take a role's policy", "detach_role_policy", **role, PolicyArn=self._policy_arn)
            self._undo("delete a role", "delete_role", "get_role", **role)

    def runs(self) -> list[str]:
        roles = self._region.pages(self._region.iam, "list_roles", "Roles")
        names = (str(role["RoleName"]) for role in roles)
        return [name.removeprefix(OWN_PROFILE) for name in names if name.startswith(OWN_PROFILE)]

    # -- individual resources, which may exist already ---------------------------------------------------------------

    def _have_role(self, name: str, tags: Mapping[str, str]) -> datetime | None:
        """Create the role and return None. If it exists already, return the time at which it was created."""
        asked = {
            "RoleName": name,
            "AssumeRolePolicyDocument": json.dumps(_trust(self._region.partition)),
            "PermissionsBoundary": self._policy_arn,
            "Description": "What the instances of one run of spotrun may do.",
            "Tags": _as_list({**tags, **self._secrets, **self._image}),
        }
        try:
            self._ask("make a role", "create_role", **asked)
        except AlreadyThere:
            return self._made_before(name, tags)
        except AccessDenied:
            # IAM policies of an earlier version of spotrun do not allow the tags that name secrets. Under such
            # policies, IAM denies this call even if the role exists already.
            with contextlib.suppress(NotThere):
                return self._made_before(name, tags)
            raise
        return None

    def _made_before(self, name: str, tags: Mapping[str, str]) -> datetime:
        role = self._known_role(name, tags)
        self._have_what_it_reads(role)
        made_at: datetime = role["CreateDate"]
        return made_at.astimezone(UTC)

    def _known_role(self, name: str, tags: Mapping[str, str]) -> Any:
        """Return this run's role. Raise CloudError if spotrun did not create it: its rights are then unknown."""
        role = self._ask("read a role", "get_role", RoleName=name)["Role"]
        boundary = role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
        if boundary != self._policy_arn or not tags.items() <= _tags_of(role).items():
            raise _not_ours(name)
        return role

    def _have_what_it_reads(self, role: Any) -> None:
        """
        Add the tags for secrets and image to a role that an earlier version of spotrun created without them.

        If the account still has the policies of that version, IAM denies the call. This does no harm, because under
        those policies a role does not need the tags.

        Raises:
            CloudError: the role names other secrets or another image.
        """
        tags = _tags_of(role)
        secrets = {key: text for key, text in tags.items() if key.startswith(SECRET)}
        image = {key: text for key, text in tags.items() if key == IMAGE}
        if (secrets and secrets != self._secrets) or (image and image != self._image):
            raise _not_ours(role["RoleName"])
        wanted = {**self._secrets, **self._image}
        if wanted != {**secrets, **image}:
            with contextlib.suppress(AccessDenied):
                self._ask("tag a role", "tag_role", RoleName=role["RoleName"], Tags=_as_list(wanted))

    def _have_profile(self, name: str, tags: Mapping[str, str]) -> bool:
        """Create the instance profile. Return False if it existed already."""
        try:
            asked = {"InstanceProfileName": name, "Tags": _as_list(tags)}
            self._ask("make an instance profile", "create_instance_profile", **asked)
        except AlreadyThere:
            return False
        return True

    def _have_role_in_profile(self, name: str) -> bool:
        """
        Put the role into its instance profile. Return False if it was there already. (IAM refuses to add a role to a
        profile that has one, even if it is the same role.)
        """
        try:
            self._ask("put a role into its instance profile", "add_role_to_instance_profile", **_both(name))
        except (AlreadyThere, QuotaExceeded) as error:
            profile = self._ask("read an instance profile", "get_instance_profile", InstanceProfileName=name)
            roles = [role["RoleName"] for role in profile["InstanceProfile"]["Roles"]]
            if not roles:
                raise
            if roles != [name]:
                hint = "delete this instance profile, because spotrun did not create it in this form"
                raise CloudError(
                    f"the instance profile {name} holds the roles {roles} instead of its own", hint=hint
                ) from error
            return False
        return True

    # -- IAM calls ---------------------------------------------------------------------------------------------------

    def _ask(self, what: str, operation: str, **parameters: Any) -> Any:
        call: Callable[..., Any] = getattr(self._region.iam, operation)
        name = parameters.get("RoleName") or parameters["InstanceProfileName"]
        return self._region.ask(f"{what}, {name}", lambda: call(**parameters))

    def _undo(self, what: str, operation: str, look: str = "", **parameters: Any) -> None:
        """
        Undo one step of `make` with the call `operation`. If IAM reports that the resource is absent, there is nothing
        to undo. But for a while after a change, this report may be wrong, so the call `look` checks it.

        Raises:
            CloudUnavailable: `look` still finds the resource. The caller tries the step again later.
        """
        try:
            self._ask(what, operation, **parameters)
        except NotThere as error:
            if look and self._is_there(look, **parameters):
                raise CloudUnavailable(
                    f"IAM gives different answers, because a deletion has not reached all of IAM yet: {error.message}"
                ) from error

    def _is_there(self, look: str, **parameters: Any) -> bool:
        try:
            self._ask("check what is deleted", look, **parameters)
        except NotThere:
            return False
        return True

    @property
    def _policy_arn(self) -> str:
        if not self._policy:
            account = account_checks.account_number([self._region, *self._others])
            self._policy = f"arn:{self._region.partition}:iam::{account}:policy/{POLICY}"
        return self._policy

    @contextlib.contextmanager
    def _settling(self, since: datetime) -> Iterator[None]:
        """
        If IAM denies a call in the `with` block and the role is new, raise CloudUnavailable, so that the caller repeats
        the call later. The right to change a role depends on the role's tags, and the tags of a new role take a while
        to reach all of IAM.
        """
        try:
            yield
        except AccessDenied as error:
            if self._clock.now() - since >= SETTLES_WITHIN:
                raise
            raise CloudUnavailable(error.message, hint=_advice(error)) from error

    @contextlib.contextmanager
    def _with_advice(self, name: str) -> Iterator[None]:
        try:
            yield
        except AccessDenied as error:
            raise AccessDenied(error.message, hint=_advice(error)) from error
        except QuotaExceeded as error:
            raise QuotaExceeded(error.message, hint=_REAP) from error
        except NotThere as error:
            if self._policy_arn in error.message:
                raise CloudError(f"there is no policy {POLICY} in this account", hint=_DEPLOY) from error
            # Either the new role or profile is not known everywhere in IAM yet, or another runner is removing it.
            raise CloudUnavailable(f"{name} is incomplete: {error.message}") from error


class CheckedRunRoles(RunRoles):
    """
    Also checks that a run's role may use the run's folder, before the run requests its first instance. Otherwise the
    instances would start, and end because they cannot use the store. If IAM does not answer, the check is left out.
    """

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        made_at, folder = super().make(run_uid, run_uri), address.parse(run_uri)
        if isinstance(folder, address.BucketAddress):
            try:
                tags = {RUN: run_uid, FOLDER: folder.prefix}
                role_rights.require_store(self._region.aside, f"{OWN_PROFILE}{run_uid}", folder, tags, OTHER_STORE)
            except role_rights.StoreDenied as error:
                if made_at is not None and self._clock.now() - made_at < DENIED_WITHIN:
                    raise CloudUnavailable(error.message, hint=error.hint) from error
                raise
            except CloudError:
                return made_at
        return made_at


def _advice(error: AccessDenied) -> str | None:
    """
    Return a hint for a denied call. If the caller has no valid credentials, this is the error's own hint. Otherwise it
    is the advice to attach the policy spotrun-runner.
    """
    return error.hint if isinstance(error, CredentialsRefused) else _ATTACH


def _trust(partition: str) -> dict[str, Any]:
    """
    Return the trust policy, which allows only EC2 instances to use the role. In China, the EC2 service has a different
    name.
    """
    suffix = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    allow = {"Effect": "Allow", "Principal": {"Service": f"ec2.{suffix}"}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [allow]}


def _folder(uri: str) -> str:
    place = address.parse(uri)
    return place.prefix if isinstance(place, address.BucketAddress) else ""


def _not_ours(name: str) -> CloudError:
    what = f"the role {name} does not have the boundary {POLICY} or this run's tags"
    return CloudError(what, hint="delete this role, because spotrun did not create it in this form")


def _tags_of(role: Any) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in role.get("Tags", [])}


def _both(name: str) -> dict[str, str]:
    return {"InstanceProfileName": name, "RoleName": name}


def _as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": text} for key, text in tags.items()]
