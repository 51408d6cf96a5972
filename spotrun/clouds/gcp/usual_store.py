"""Finds the store in the bucket that infra/gcp makes, if its variables keep their defaults."""

from __future__ import annotations

from spotrun.clouds.cloud import UsualStore
from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.account_checks import bucket_facts, project_facts
from spotrun.clouds.gcp.calls import Google
from spotrun.errors import AccessDenied


def usual_store(google: Google, project: str) -> UsualStore | None:
    """
    Return the project's usual store; None if it does not exist. Names of buckets are global, so a bucket that belongs
    to another project is not returned. A bucket reports the number of its project, and that number begins the address
    of the project's default service account: https://cloud.google.com/compute/docs/access/service-accounts

    Raises:
        CloudError: there is no valid login, or Google does not answer.
    """
    bucket = f"spotrun-{project}"
    try:
        facts = bucket_facts(google, bucket)
    except (NotThere, AccessDenied):
        return None
    number, _, _ = str(project_facts(google, project).get("defaultServiceAccount", "")).partition("-")
    if not number or number != str(facts.get("projectNumber")):
        return None
    has_one_region = facts.get("locationType", "region") == "region"
    return UsualStore(f"gs://{bucket}/runs", str(facts.get("location", "")).lower() if has_one_region else "")
