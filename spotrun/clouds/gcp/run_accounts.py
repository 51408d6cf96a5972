"""
Creates an identity for each run on Google Cloud: a service account with the run's uid in its name. The policy of the
run's folder grants rights to this account (folder_grants.py).

Training code has all rights of its instance's account, because the metadata server gives them to every process on the
instance. Calls and their errors: https://cloud.google.com/iam/docs/service-accounts-create and
https://cloud.google.com/storage/docs/access-control/using-iam-for-managed-folders
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

from spotrun import address
from spotrun.address import BucketAddress
from spotrun.clock import Clock
from spotrun.clouds.error_kinds import AlreadyThere, CredentialsRefused, NotThere
from spotrun.clouds.gcp.calls import IAM, STORAGE, Api, Call, Google
from spotrun.clouds.gcp.config import OWN_ACCOUNT, account_address
from spotrun.clouds.gcp.error_codes import PerimeterForbids, PolicyForbids
from spotrun.clouds.gcp.folder_grants import VERSION, Policy, granted, grants, without
from spotrun.clouds.gcp.moments import moment
from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, IdentityUnknown, QuotaExceeded, StoreError

MADE = "spotrun, made "
"""
Prefix of the display name of a run's account. The time when the account was made follows the prefix, because IAM does
not report that time.
"""
ADDRESS_MAX_BYTES = 256
"""Maximum bytes of an account's description, which contains the address of the run's folder."""
TRIES_MAX = 5
"""Maximum number of tries to change a policy while other processes change it too."""
_SHARE = "set gcp.service_account to one account that all runs share"
_GRANT = "deploy the current infra/gcp, grant its roles to the user who runs spotrun, and use --store gs://BUCKET/runs"
_RUNS = "/runs/"
"""The part of a folder's path by which a condition in infra/gcp knows the folders that a runner may share."""
_USE_RUNS = "the roles of infra/gcp let a runner share only folders below runs/: use --store gs://BUCKET/runs"
_REAP = (
    "`spotrun reap --cloud gcp` removes the accounts of runs that are over; a project can have 100 service accounts; "
    "request more at https://console.cloud.google.com/iam-admin/quotas"
)


class RunAccounts:
    """
    Makes and removes the service accounts of runs. A run's identity has three parts: the account, a managed folder, and
    the grants in that folder's policy. The account is made first and removed last, and its description contains the
    address of the run's folder. So if a removal stops halfway, the account still exists and shows where the other parts
    are. It takes four calls to make an identity, and four to remove it.

    `project` is None if the login determines the project.
    """

    noun = "service account"

    def __init__(self, google: Google, clock: Clock, project: str | None = None) -> None:
        self._google = google
        self._clock = clock
        self._named = project

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        folder = _in_a_bucket(run_uri)
        email = account_address(run_uid, self._project)
        with _with_advice():
            made_at = self._have_account(run_uid, str(folder))
            news = [made_at is None, self._have_folder(folder)]
            with self._settling(made_at or self._clock.now()):
                news.append(self._have_grants(folder, email))
        return self._clock.now() if made_at is None or any(news) else made_at

    def remove(self, run_uid: str) -> None:
        email = account_address(run_uid, self._project)
        with _with_advice():
            try:
                self._remove(run_uid, email)
            except NotThere as error:
                if run_uid in self.runs():
                    raise CloudUnavailable(f"IAM lists {email}, but cannot find it: {error.message}") from error

    def runs(self) -> list[str]:
        call = Call(IAM, "GET", f"{self._accounts}", {"pageSize": "100"})
        found = self._google.items("list service accounts", call, "accounts")
        ids = (str(each["email"]).partition("@")[0] for each in found if _made_at(each) is not None)
        return [each.removeprefix(OWN_ACCOUNT) for each in ids if each.startswith(OWN_ACCOUNT)]

    def _remove(self, run_uid: str, email: str) -> None:
        folder = _described(self._look_at(run_uid))
        if folder is None or not folder.prefix.endswith(run_uid):
            raise _not_ours(email)
        self._take_grants(folder, email)
        self._ask("delete a service account", IAM, "DELETE", self._path_of(run_uid))

    # -- individual resources, which may already exist ---------------------------------------------------------------

    def _have_account(self, run_uid: str, folder: str) -> datetime | None:
        """Make the account and return None. If it already exists, return the time at which it was made."""
        described = {"displayName": f"{MADE}{self._clock.now():%Y-%m-%dT%H:%M:%SZ}", "description": folder}
        body = {"accountId": f"{OWN_ACCOUNT}{run_uid}", "serviceAccount": described}
        try:
            self._ask("make a service account", IAM, "POST", self._accounts, body=body)
        except AlreadyThere:
            return self._made_before(run_uid, folder)
        except (IdentityUnknown, PolicyForbids) as error:
            # Google returns these errors if an organization policy forbids creating accounts
            raise AccessDenied(error.message, hint=f"ask your organization for an exception, or {_SHARE}") from error
        return None

    def _made_before(self, run_uid: str, folder: str) -> datetime:
        try:
            account = self._look_at(run_uid)
        except NotThere as error:
            raise CloudUnavailable(f"IAM says that the account exists, but cannot find it: {error.message}") from error
        made_at = _made_at(account)
        if made_at is None or account.get("description") != folder:
            raise _not_ours(account_address(run_uid, self._project))
        return made_at

    def _have_folder(self, folder: BucketAddress) -> bool:
        """Make the managed folder; return False if it already exists."""
        try:
            self._ask("make a managed folder", STORAGE, "POST", _folders_of(folder), body={"name": folder.root})
        except AlreadyThere:
            return False
        except CloudError as error:
            raise self._why(folder, error) from error
        return True

    def _have_grants(self, folder: BucketAddress, email: str) -> bool:
        """Add the grants to the folder's policy; return False if it already has them."""
        try:
            return self._rewritten(folder, lambda policy: granted(policy, email, self._project, folder))
        except NotThere as error:
            raise CloudUnavailable(f"another runner is removing the folder's policy: {error.message}") from error
        except (IdentityUnknown, CredentialsRefused, PerimeterForbids):
            raise
        except AccessDenied as error:
            hint = error.hint if _RUNS in f"/{folder.root}" else _USE_RUNS
            raise AccessDenied(error.message, hint=hint) from error
        except CloudError as error:
            raise self._why(folder, error) from error

    def _take_grants(self, folder: BucketAddress, email: str) -> None:
        """
        Remove the account's grants from the policy of the run's managed folder. If no grants are left in the policy,
        remove the managed folder together with its policy.
        """
        with contextlib.suppress(NotThere):
            if without(self._policy(folder), email)["bindings"]:
                self._rewritten(folder, lambda policy: without(policy, email))
            else:
                nested = {"allowNonEmpty": "true"}  # the objects in the folder stay
                self._ask("delete a managed folder", STORAGE, "DELETE", _folder_path(folder), nested)

    def _rewritten(self, folder: BucketAddress, edit: Callable[[Policy], Policy]) -> bool:
        """
        Change a policy. Return True if a change was necessary. Cloud Storage refuses the new policy if another process
        has changed the policy since it was read. After a refusal or a lost answer, read and edit the policy again.
        """
        refused: CloudError = CloudUnavailable(f"other processes keep changing the policy of {folder}")
        for _ in range(TRIES_MAX):
            policy = self._policy(folder)
            wanted = edit(policy)
            if {*grants(wanted)} == {*grants(policy)}:
                return False
            try:
                self._ask("set a folder's policy", STORAGE, "PUT", f"{_folder_path(folder)}/iam", body=wanted)
            except AlreadyThere:
                continue
            except PolicyForbids as error:
                refused = error  # either an organization policy refuses it, or the etag is old
            else:
                return True
        raise refused

    # -- the calls ---------------------------------------------------------------------------------------------------

    def _look_at(self, run_uid: str) -> Mapping[str, Any]:
        return self._ask("read a service account", IAM, "GET", self._path_of(run_uid))

    def _policy(self, folder: BucketAddress) -> Policy:
        version = {"optionsRequestedPolicyVersion": str(VERSION)}
        return self._ask("read a folder's policy", STORAGE, "GET", f"{_folder_path(folder)}/iam", version)

    def _ask(
        self,
        what: str,
        api: Api,
        method: str,
        path: str,
        query: Mapping[str, str] = {},
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return self._google.ask(what, Call(api, method, path, query, body))

    @cached_property
    def _project(self) -> str:
        return self._google.project(self._named)

    @property
    def _accounts(self) -> str:
        return f"v1/projects/{quote(self._project, safe='')}/serviceAccounts"

    def _path_of(self, run_uid: str) -> str:
        return f"{self._accounts}/{quote(account_address(run_uid, self._project), safe='')}"

    # -- refusals ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _settling(self, since: datetime) -> Iterator[None]:
        """
        Raise CloudUnavailable if the block fails only because the account is new, so that the caller tries again later.
        It takes a while until every bucket knows a new account
        (https://cloud.google.com/iam/docs/service-accounts-create). `since` is the time at which the account was made.
        """
        try:
            yield
        except IdentityUnknown as error:
            if self._clock.now() - since >= SETTLES_WITHIN:
                raise
            raise CloudUnavailable(error.message) from error

    def _why(self, folder: BucketAddress, error: CloudError) -> CloudError:
        """Return an error that explains why Cloud Storage refused a folder or its policy."""
        if isinstance(error, AccessDenied | CloudUnavailable | QuotaExceeded):
            return error
        name = f"gs://{folder.bucket}"
        try:
            found = self._ask("read the bucket", STORAGE, "GET", f"b/{folder.bucket}")
        except NotThere:
            return CloudError(f"there is no bucket {name}", hint="use --store with an existing bucket")
        access = found.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
        if not access.get("enabled"):
            hint = f"gcloud storage buckets update {name} --uniform-bucket-level-access; or {_SHARE}"
            return CloudError(
                f"folders in {name} cannot have policies without uniform bucket-level access",
                hint=hint,
            )
        if isinstance(error, PolicyForbids):
            return error
        hint = f"use a bucket of that project, with the current infra/gcp deployed there; or {_SHARE}"
        return CloudError(f"{name} does not accept roles of the project {self._project}: {error.message}", hint=hint)


@contextlib.contextmanager
def _with_advice() -> Iterator[None]:
    """
    Add a hint to the error if Google refuses a call in the block. If a right is missing, the hint is to grant a role;
    if the quota of service accounts is used up, the hint is to remove unused accounts. An error about invalid
    credentials, or about a perimeter, keeps its hint, because a role would not help.
    """
    try:
        yield
    except (CredentialsRefused, PerimeterForbids):
        raise
    except AccessDenied as error:
        hint = error.hint or _GRANT
        raise AccessDenied(error.message, hint=hint if _SHARE in hint else f"{hint}; or {_SHARE}") from error
    except QuotaExceeded as error:
        raise QuotaExceeded(error.message, hint=_REAP) from error


def _in_a_bucket(run_uri: str) -> BucketAddress:
    """
    Parse the address of a run's folder in a bucket.

    Raises:
        CloudError: the run is not in a Google bucket, so a service account cannot be limited to its folder; or the
            address is too long for an account's description.
    """
    if len(run_uri.encode()) > ADDRESS_MAX_BYTES:
        what = f"the run's address has more than {ADDRESS_MAX_BYTES} bytes, the limit of an account's description"
        raise CloudError(what, hint=f"use --store with a shorter prefix; or {_SHARE}")
    place = address.parse(run_uri)
    if not isinstance(place, BucketAddress) or place.scheme != "gs" or not place.prefix:
        what = f"a service account cannot be limited to {run_uri}"
        raise CloudError(what, hint="keep runs in a Google Cloud bucket: --store gs://BUCKET/runs")
    return place


def _described(account: Mapping[str, Any]) -> BucketAddress | None:
    """Return the folder of the run to which `account` belongs; None if spotrun did not make the account."""
    if _made_at(account) is None:
        return None
    try:
        place = address.parse(str(account.get("description", "")))
    except StoreError:
        return None
    return place if isinstance(place, BucketAddress) else None


def _made_at(account: Mapping[str, Any]) -> datetime | None:
    name = str(account.get("displayName", ""))
    return moment(name.removeprefix(MADE)) if name.startswith(MADE) else None


def _not_ours(email: str) -> CloudError:
    what = f"the service account {email} was not made for this run's folder"
    return CloudError(what, hint=f"gcloud iam service-accounts delete {email}, if nothing uses it")


def _folders_of(folder: BucketAddress) -> str:
    return f"b/{folder.bucket}/managedFolders"


def _folder_path(folder: BucketAddress) -> str:
    """Return the API path of a managed folder. A managed folder's name ends in a slash."""
    return f"{_folders_of(folder)}/{quote(folder.root, safe='')}"
