"""Checks bucket settings that only Google Cloud has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, failed, ok, warned
from spotrun.errors import CloudError
from spotrun.units import count_of

_MAKE = "use --store with an existing bucket (infra/gcp/README.md makes one)"


def bucket_findings(google: Google, bucket: str, regions: Sequence[str], own_accounts: bool) -> Iterator[Finding]:
    """Check a bucket. Raise CloudError if it does not exist, or if the caller is not allowed to read its settings."""
    try:
        facts = account_checks.bucket_facts(google, bucket)
    except NotThere as error:
        raise CloudError(f"there is no bucket gs://{bucket}", hint=_MAKE) from error
    yield from _soft_delete(facts, bucket)
    yield from _retention(facts, bucket)
    if own_accounts:
        yield from _access(facts, bucket)
    yield from _distance(facts, regions)


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
