"""Checks whether the caller has the rights that a run needs, and names each missing right."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, Refusal, Verdict, failed, findings_of, ok, unknown, warned
from spotrun.errors import AccessDenied, CloudError
from spotrun.units import count_of

PROJECT, BUCKET, END = "project permissions", "bucket permissions", "terminate"
STORE = "store of instances"
UNREAD_POLICY = Refusal(
    "whether instances may use the store is unknown", "grant the current roles of infra/gcp", verdict=Verdict.WARNED
)
_TOO_LITTLE = {
    f"roles/storage.{each}"
    for each in ("bucketViewer", "legacyBucketReader", "legacyObjectReader", "objectCreator", "objectViewer")
}
"""Roles that do not allow both to read and to write: https://cloud.google.com/storage/docs/access-control/iam-roles"""
GRANT = "grant the roles of infra/gcp (infra/gcp/README.md) to your account"
UNTOLD_RIGHTS = Refusal("your permissions cannot be checked", advice=GRANT, error=CloudError)
_END = "also grant the role spotrunEnd of infra/gcp: without it, only the time limit ends an instance"
NEEDED = (
    "compute.disks.create",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.globalOperations.list",
    "compute.images.get",
    "compute.images.getFromFamily",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.machineTypes.list",
    "compute.projects.get",
    "compute.subnetworks.get",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zones.list",
)
"""Permissions that every run needs."""
FOR_ACCOUNTS = (
    account_checks.ACT_AS,
    "iam.serviceAccounts.create",
    "iam.serviceAccounts.delete",
    "iam.serviceAccounts.get",
    "iam.serviceAccounts.list",
)
"""
Permissions that a run needs in the project to have a separate service account. Runs that share one account need
`account_checks.ACT_AS` on this account alone.
"""
ASIDE: Mapping[str, str] = {
    "compute.advice.capacityHistory": "no past spot prices, and no shares of interrupted spot instances",
    "compute.firewalls.list": "`spotrun doctor` cannot check which traffic is let in",
    "compute.instances.getSerialPortOutput": "no log of an instance that fails before its agent runs",
    "compute.regions.list": "`spotrun doctor` cannot check the regions' quotas",
    "compute.reservations.list": "`spotrun doctor` cannot check the reservation that a job names",
    "secretmanager.versions.get": "`spotrun doctor` cannot check whether a job's secrets exist",
    "serviceusage.services.use": "Google refuses each call of a login that names this project as its quota project",
}
"""Permissions that a run can do without, each with the consequence of lacking it."""
_END_INSTANCE = "compute.instances.delete"
UNDER_CONDITION = ("compute.disks.delete", _END_INSTANCE)
"""
Permissions that are granted only for names that begin with `spotrun-`. A query on the whole project ignores grants with
this condition.
"""
IN_BUCKET = (
    "storage.buckets.get",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
ASIDE_IN_BUCKET: Mapping[str, str] = {
    "storage.buckets.getIamPolicy": "`spotrun doctor` cannot check who can read the keys of runs",
}
FOR_FOLDERS = (
    "storage.managedFolders.create",
    "storage.managedFolders.delete",
    "storage.managedFolders.getIamPolicy",
    "storage.managedFolders.setIamPolicy",
)
"""Permissions that a run needs to limit its service account to the run's folder."""


def right_findings(google: Google, project: str, own_accounts: bool) -> Iterator[Finding]:
    """
    Check the caller's rights in the project; raise CloudError if Resource Manager does not answer. If `own_accounts`
    is True, each run gets a separate service account, so the rights to create service accounts are checked too.
    """
    needed = {*NEEDED, *(FOR_ACCOUNTS if own_accounts else ())}
    granted = account_checks.granted(google, project, {*needed, *ASIDE, *UNDER_CONDITION})
    yield _of(PROJECT, needed, granted, "of the project")
    yield from _lost(PROJECT, ASIDE, granted)
    yield from findings_of(END, partial(_of_ending, google, project, granted))


def bucket_right_findings(google: Google, bucket: str, own_accounts: bool) -> Iterator[Finding]:
    """
    Check the rights in a bucket; raise CloudError if the bucket does not exist, or if Cloud Storage does not answer.
    """
    needed = {*IN_BUCKET, *(FOR_FOLDERS if own_accounts else ())}
    granted = account_checks.granted_in_bucket(google, bucket, {*needed, *ASIDE_IN_BUCKET})
    yield _of(BUCKET, needed, granted, f"of gs://{bucket}")
    yield from _lost(BUCKET, ASIDE_IN_BUCKET, granted)


def shared_account_findings(google: Google, bucket: str, email: str) -> Iterator[Finding]:
    """
    Check that the account that all runs share may read and write in the bucket. The rights of the caller say nothing
    about it. Raise AccessDenied if the caller is not allowed to read the bucket's policy.
    """
    roles = account_checks.roles_in_bucket(google, bucket, email)
    if roles - _TOO_LITTLE:
        yield ok(STORE, f"the policy of gs://{bucket} grants {', '.join(sorted(roles))} to {email}")
        return
    granted = f"only {', '.join(sorted(roles))}" if roles else "no role"
    what = f"the policy of gs://{bucket} grants {granted} to {email}, so instances may be unable to use the store"
    command = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{email}"
    yield warned(STORE, what, f"{command} --role=roles/storage.objectUser, unless the project's policy grants it")


def _of(name: str, needed: Collection[str], granted: Collection[str], where: str) -> Finding:
    missing = sorted({*needed} - {*granted})
    if missing:
        return failed(name, AccessDenied(f"missing rights {where}: {', '.join(missing)}", hint=GRANT))
    return ok(name, f"all {count_of(len(needed), 'right')} {where} that a run needs; conditions are not evaluated")


def _lost(name: str, aside: Mapping[str, str], granted: Collection[str]) -> Iterator[Finding]:
    for right, loss in aside.items():
        if right not in granted:
            yield warned(name, f"{right} is missing: {loss}", GRANT)


def _of_ending(google: Google, project: str, granted: Collection[str]) -> Iterator[Finding]:
    """
    Check the right to end instances. A condition limits this right to instances with spotrun's names. So Google does
    not report it for the project as a whole, only for one of these instances.
    """
    hidden = sorted({*UNDER_CONDITION} - {*granted})
    if not hidden:
        yield ok(END, "you are allowed to end instances and delete disks")
        return
    ours = account_checks.one_of_ours(google, project)
    if ours is None:
        what = f"spotrun has no instance now, and Google checks these rights only on an instance: {', '.join(hidden)}"
        yield unknown(END, f"whether you may end one is not known: {what}", _END)
        return
    name = str(ours["name"])
    if _END_INSTANCE in account_checks.granted_on(google, project, ours, hidden):
        yield ok(END, f"you are allowed to end {name}")
    else:
        yield failed(END, AccessDenied(f"you are not allowed to end {name}: this requires {_END_INSTANCE}", hint=_END))
