"""Checks bucket settings that only Google Cloud has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, failed, ok, warned
from spotrun.errors import AccessDenied, CloudError
from spotrun.units import count_of

_LEAST_DAYS = {"NEARLINE": 30, "COLDLINE": 90, "ARCHIVE": 365}
"""Minimum days for which an object of a class is billed: https://cloud.google.com/storage/docs/storage-classes."""
_MAKE = "use --store with an existing bucket (infra/gcp/README.md makes one)"


def require_bucket(google: Google, bucket: str) -> Iterable[Finding]:
    """Raise CloudError if the bucket does not exist. Its settings may be unreadable: `bucket_findings` reports that."""
    try:
        with suppress(AccessDenied):
            account_checks.bucket_facts(google, bucket)
    except NotThere as error:
        raise CloudError(f"there is no bucket gs://{bucket}", hint=_MAKE) from error
    return ()


def bucket_findings(google: Google, bucket: str, regions: Sequence[str], own_accounts: bool) -> Iterator[Finding]:
    """Check a bucket's settings. Raise CloudError if the caller is not allowed to read them."""
    facts = account_checks.bucket_facts(google, bucket)
    yield from _payer(facts, bucket)
    yield from _filter(facts, bucket)
    yield from _key(facts, bucket)
    yield from _class(facts, bucket)
    yield from _namespace(facts, bucket)
    yield from _soft_delete(facts, bucket)
    yield from _retention(facts, bucket)
    if own_accounts:
        yield from _access(facts, bucket)
    yield from _distance(facts, regions)


def _payer(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """Check that requests need not name a project that pays: https://cloud.google.com/storage/docs/requester-pays."""
    if facts.get("billing", {}).get("requesterPays", False):
        what = f"each request to gs://{bucket} has to name a project that pays, which spotrun's requests do not"
        hint = f"gcloud storage buckets update gs://{bucket} --no-requester-pays, or use another bucket"
        yield failed("requester pays", CloudError(what, hint=hint))


def _filter(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """
    Warn if the bucket takes requests only from some addresses:
    https://cloud.google.com/storage/docs/ip-filtering-overview
    """
    if facts.get("ipFilter", {}).get("mode") == "Enabled":
        what = f"gs://{bucket} takes requests only from some addresses, and refuses all others like a missing right"
        clear = f"gcloud storage buckets update gs://{bucket} --clear-ip-filter"
        yield warned("ip filter", what, f"admit this machine and the instances' network, or: {clear}")


def _key(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """
    Name the customer's key, if there is one: https://cloud.google.com/storage/docs/encryption/customer-managed-keys
    """
    key = str(facts.get("encryption", {}).get("defaultKmsKeyName", ""))
    if key:
        yield ok("bucket key", f"new objects are encrypted with {key}; while it is disabled, no run can read or write")


def _class(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """Warn of a class whose deleted objects stay billed for a minimum duration."""
    name = str(facts.get("storageClass", ""))
    if (least := _LEAST_DAYS.get(name)) is not None:
        what = f"{name}: a checkpoint that a run deletes is billed until it is {least} days old, and reads cost extra"
        hint = f"gcloud storage buckets update gs://{bucket} --default-storage-class=STANDARD"
        yield warned("storage class", what, hint)


def _namespace(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """
    Warn of a hierarchical namespace, which cannot be turned off: https://cloud.google.com/storage/docs/hns-overview
    """
    if facts.get("hierarchicalNamespace", {}).get("enabled", False):
        what = (
            f"gs://{bucket} has a hierarchical namespace: the empty folders of runs stay when their objects are deleted"
        )
        yield warned("hierarchical namespace", what, f"delete them by hand, or {_MAKE}")


def _soft_delete(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """Warn if deleted objects stay billed because of soft delete: https://cloud.google.com/storage/docs/soft-delete."""
    kept = timedelta(seconds=int(facts.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)))
    if kept:
        hint = f"gcloud storage buckets update gs://{bucket} --clear-soft-delete"
        what = f"each checkpoint that a run deletes is kept, and billed, for {count_of(max(1, kept.days), 'more day')}"
        yield warned("soft delete", what, hint)
    else:
        yield ok("soft delete", "off: deleted objects are gone at once, and cost nothing")


def _retention(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    """Check retention and holds: https://cloud.google.com/storage/docs/bucket-lock."""
    held = timedelta(seconds=int(facts.get("retentionPolicy", {}).get("retentionPeriod", 0)))
    if held or facts.get("defaultEventBasedHold", False):
        error = CloudError(
            f"gs://{bucket} has a retention policy or holds, so spotrun cannot overwrite or delete new objects",
            hint=f"gcloud storage buckets update gs://{bucket} --clear-retention-period, or use another bucket",
        )
        yield failed("retention", error)


def _access(facts: Mapping[str, Any], bucket: str) -> Iterator[Finding]:
    access = facts.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    if access.get("enabled", False):
        yield ok("bucket access", "uniform, so each run's folder can have a separate policy")
        return
    error = CloudError(
        f"gs://{bucket} does not have uniform bucket-level access, which a separate policy for each run's folder needs",
        hint=f"gcloud storage buckets update gs://{bucket} --uniform-bucket-level-access, or name gcp.service_account",
    )
    yield failed("bucket access", error)


def _distance(facts: Mapping[str, Any], regions: Sequence[str]) -> Iterator[Finding]:
    """
    Warn about each region in `regions` that is not the bucket's region. Skip the first region, because a check that all
    clouds share covers it.
    """
    location = str(facts.get("location", "")).lower()
    if facts.get("locationType", "region") != "region" or not location:
        return
    far = [region for region in regions[1:] if region != location]
    if far:
        hint = f"leave out all regions except {location}, or accept the cost of sending checkpoints between regions"
        yield warned("bucket location", f"the bucket is in {location}, and instances may be in {', '.join(far)}", hint)
