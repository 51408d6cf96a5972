"""The region of a bucket, as the bucket's own server names it."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

from spotrun.clock import ScaledClock
from spotrun.runner.creation import region_of
from spotrun.store.opening import open_store
from tests.support.ec2_server import Ec2Account
from tests.support.histories import START
from tests.support.object_stores import RunningServer


def test_bucket_reports_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ec2Account(ScaledClock(START, 1.0)) as account:
        account.reach(monkeypatch)
        made = {"LocationConstraint": "eu-west-1"}
        boto3.client("s3", region_name="eu-west-1").create_bucket(Bucket="far", CreateBucketConfiguration=made)
        assert region_of(open_store("s3://far/runs")) == "eu-west-1"


def test_server_that_names_no_region_changes_nothing(
    servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("s3")
    server.reach(monkeypatch)
    assert region_of(open_store(server.new_prefix())) == ""
