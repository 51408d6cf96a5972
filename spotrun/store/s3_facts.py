"""
Reads facts about an S3 bucket. An account that is allowed to use a bucket is often not allowed to read these facts.
"""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from spotrun.address import BucketAddress
from spotrun.store.key_readers import s3_key_readers
from spotrun.store.lifecycle import s3_expiries, s3_older_versions_days
from spotrun.store.port import StoreFacts, UnknownFact

_NO_ANSWER = (403, 405, 501)
"""
HTTP statuses of answers after which a fact stays unknown: the account is not allowed to read it, or this S3-compatible
store does not support the request.
"""
_NOTHING_SET = ("NoSuchBucketPolicy", "NoSuchLifecycleConfiguration")


def facts_of(client: Any, place: BucketAddress) -> StoreFacts:
    """
    Read the bucket's facts.

    Raises:
        ClientError, and other errors of botocore: the bucket cannot be reached.
    """
    rules = _rules(client, place.bucket)
    return StoreFacts(
        region=region_of(client, place.bucket),
        versioned=_versioned(client, place.bucket),
        older_versions_days=None if isinstance(rules, UnknownFact) else s3_older_versions_days(rules, place.root),
        expiries=rules if isinstance(rules, UnknownFact) else s3_expiries(rules, place.root),
        key_readers=_key_readers(client, place),
    )


def region_of(client: Any, bucket: str) -> str | UnknownFact:
    """Return the bucket's region, with one request to S3. Raise the same errors as `facts_of`."""
    answer = _ask(client.head_bucket, "HeadBucket", bucket)
    if isinstance(answer, UnknownFact):
        return answer
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    return (
        str(headers["x-amz-bucket-region"])
        if "x-amz-bucket-region" in headers
        else UnknownFact("this S3-compatible store reports no region")
    )


def _versioned(client: Any, bucket: str) -> bool | UnknownFact:
    answer = _ask(client.get_bucket_versioning, "GetBucketVersioning", bucket)
    return answer if isinstance(answer, UnknownFact) else answer.get("Status") == "Enabled"


def _rules(client: Any, bucket: str) -> list[dict[str, Any]] | UnknownFact:
    answer = _ask(client.get_bucket_lifecycle_configuration, "GetLifecycleConfiguration", bucket)
    return answer if isinstance(answer, UnknownFact) else answer.get("Rules", [])


def _key_readers(client: Any, place: BucketAddress) -> tuple[str, ...] | UnknownFact:
    answer = _ask(client.get_bucket_policy, "GetBucketPolicy", place.bucket)
    if isinstance(answer, UnknownFact):
        return answer
    return s3_key_readers(json.loads(answer.get("Policy", "{}")), place.bucket, place.root)


def _ask(question: Any, name: str, bucket: str) -> dict[str, Any] | UnknownFact:
    try:
        answer: dict[str, Any] = question(Bucket=bucket)
    except ClientError as error:
        status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
        if code in _NOTHING_SET:
            return {}
        if status in _NO_ANSWER:
            return UnknownFact(f"{answered(error)} to {name}")
        raise
    return answer


def answered(error: ClientError) -> str:
    """
    Describe the error in S3's answer, for example `S3 answered 403 AccessDenied`. If the answer has no error code, show
    only its HTTP status. (In that case, botocore reports either the status as the code, or no code.)
    """
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(error.response.get("Error", {}).get("Code", ""))
    return " ".join(("S3 answered", *dict.fromkeys(word for word in (status, code) if word)))
