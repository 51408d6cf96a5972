"""Finds the store in the bucket that infra/aws/account.yaml makes, if its parameters keep their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from spotrun.clouds.aws.account_checks import account_number
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.cloud import UsualStore

_NOT_OURS = (301, 403, 404)
"""The answers for a bucket of another region, for one of another account, and for one that does not exist."""


def usual_store(regions: Sequence[Region]) -> UsualStore | None:
    """
    Return the store in the first of `regions` in which the template made a bucket; None if there is none. A bucket of
    this name that belongs to another account is not returned, because bucket names are global: ExpectedBucketOwner in
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html

    Raises:
        CloudError: there is no valid login, or AWS does not answer.
    """
    account = account_number(regions)
    for region in regions:
        bucket = f"spotrun-{account}-{region.name}"
        ask = partial(region.s3.list_objects_v2, Bucket=bucket, MaxKeys=1, ExpectedBucketOwner=account)
        if region.ask(f"look for the bucket {bucket}", partial(_is_there, ask)):
            return UsualStore(f"s3://{bucket}/runs", region.name)
    return None


def _is_there(ask: Any) -> bool:
    try:
        ask()
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] not in _NOT_OURS:
            raise
        return False
    return True
