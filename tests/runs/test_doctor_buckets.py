"""The doctor and buckets: real servers, rules that delete, rights that are missing, conditions that get lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from spotrun.clock import system_clock
from spotrun.doctor.facts import fact_findings
from spotrun.doctor.finding import Finding, Verdict, findings_of
from spotrun.doctor.trial import StoreTrial
from spotrun.errors import StoreError
from spotrun.store.lifecycle import gcs_expiries, s3_expiries, s3_older_versions_days
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from tests.support import fault_proxy as faults
from tests.support.fault_proxy import FaultProxy, Request
from tests.support.object_stores import BUCKET, RunningServer, SeaweedFS
from tests.support.sandbox import Sandbox

ROOT = "runs/"
Servers = Callable[[str], RunningServer]


@pytest.fixture
def s3(servers: Servers) -> RunningServer:
    return servers("s3")


def tried(store: Store) -> dict[str, Finding]:
    return {found.name: found for found in findings_of("store", StoreTrial(store, system_clock()).findings)}


def told(store: Store) -> dict[str, Finding]:
    return {found.name: found for found in findings_of("store", lambda: fact_findings(store, None))}


def test_a_good_bucket_passes_and_nothing_is_left_in_it(bucket: RunningServer) -> None:
    store = open_store(bucket.new_prefix())
    found = tried(store)
    assert {name for name, finding in found.items() if finding.verdict is not Verdict.OK} == {"protection"}
    assert "could delete" in found["protection"].detail
    assert "one winner each" in found["creation"].detail
    assert store.list("") == []
    facts = told(store)
    assert facts["expiry"].verdict is facts["versioning"].verdict is Verdict.OK


def test_a_store_that_loses_the_condition_of_a_write_is_refused(
    bucket: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(bucket.endpoint, lambda _: faults.without_condition(signed_anew)) as line:
        bucket.reach(monkeypatch, line.url)
        store = open_store(bucket.new_prefix())
        found = tried(store)
        assert found["store"].verdict is Verdict.FAILED
        assert "cannot hold a ledger" in found["store"].detail
        assert "creation" not in found
    bucket.reach(monkeypatch)
    assert open_store(store.uri).list("") == []


def test_a_launch_into_such_a_store_is_refused_before_anything_is_rented(
    bucket: RunningServer, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(bucket.endpoint, lambda _: faults.without_condition(signed_anew)) as line:
        bucket.reach(monkeypatch, line.url)
        uri = bucket.new_prefix()
        output = sandbox.ask("launch", sandbox.job("unsafe"), "-y", "--store", uri, code=StoreError.exit_code)
    assert "cannot hold a ledger" in output
    assert "If-None-Match" in output
    bucket.reach(monkeypatch)
    assert open_store(uri).list("") == []
    assert sandbox.left_running() == []


def signed_anew(request: Request) -> Request:
    """As the client would have signed it without the header that is gone. GCS's fake looks at no signature."""
    if not (request.header("Authorization") or "").startswith("AWS4"):
        return request
    url = f"http://{request.header('Host')}{request.target}"
    again = AWSRequest(request.method, url, dict(request.headers), request.body)
    del again.headers["Authorization"]
    S3SigV4Auth(Credentials(SeaweedFS.KEY, SeaweedFS.SECRET), "s3", "us-east-1").add_auth(again)
    return Request(request.method, request.target, dict(again.headers.items()), request.body)


def test_a_key_that_may_only_read_is_refused_with_the_right_that_is_missing(
    s3: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.reach(monkeypatch)
    uri = s3.new_prefix()
    open_store(uri).put("x", b"1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SeaweedFS.READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SeaweedFS.READER_SECRET)
    store = open_store(uri)
    assert store.get("x") == b"1"
    found = tried(store)
    assert list(found) == ["store"]
    assert found["store"].detail.startswith("cannot create an object: S3 answered 403 AccessDenied")
    assert "PutObject" in found["store"].hint


def test_a_ledger_whose_entries_may_not_be_deleted_is_protected(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers("s3").reach(monkeypatch)
    client, bucket = boto3.Session().client("s3"), "doctor-protected"
    client.create_bucket(Bucket=bucket)
    rule = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:DeleteObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/*/ledger/*"],
    }
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [rule]}))
    assert_protected(open_store(f"s3://{bucket}/runs"))

    def fate(request: Request) -> faults.Fault:
        of_an_entry = request.method == "DELETE" and "ledger" in request.path
        return faults.refused(faults.GCS_DENIED) if of_an_entry else faults.none

    gcs = servers("gs")
    with FaultProxy(gcs.endpoint, fate) as line:
        gcs.reach(monkeypatch, line.url)
        assert_protected(open_store(gcs.new_prefix()))


def assert_protected(store: Store) -> None:
    found = tried(store)
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert "cannot delete" in found["protection"].detail
    assert store.list("") == []


def test_a_bucket_that_is_not_there_is_refused(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS would make it: of S3's NoSuchBucket see test_store_faults.py."""
    servers("gs").reach(monkeypatch)
    found = tried(open_store("gs://no-such-bucket/runs"))
    assert found["store"].verdict is Verdict.FAILED
    assert "make the bucket" in found["store"].hint


def test_bucket_rules_that_delete_are_refused_and_versioning_is_reported(
    s3: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.reach(monkeypatch)
    client, bucket = boto3.Session().client("s3"), "doctor-rules"
    client.create_bucket(Bucket=bucket)
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "runs/"}, "Expiration": {"Days": 7}}
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    inside, beside = told(open_store(f"s3://{bucket}/runs/mine")), told(open_store(f"s3://{bucket}/other"))
    assert "after 7 days" in inside["store"].detail
    assert inside["store"].verdict is Verdict.FAILED
    assert inside["versioning"].verdict is Verdict.WARNED
    assert beside["expiry"].verdict is Verdict.OK


def test_facts_that_may_not_be_read_are_unknown_and_no_failure(
    bucket: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fate(request: Request) -> faults.Fault:
        about_the_bucket = request.path.rstrip("/").endswith(BUCKET) and "list-type" not in request.query
        denied = faults.S3_DENIED if bucket.server.scheme == "s3" else faults.GCS_DENIED
        return faults.refused(denied) if about_the_bucket else faults.none

    with FaultProxy(bucket.endpoint, fate) as line:
        bucket.reach(monkeypatch, line.url)
        found = told(open_store(bucket.new_prefix()))
    assert {found[name].verdict for name in ("region", "versioning", "expiry")} == {Verdict.UNKNOWN}
    assert "lifecycle" in found["expiry"].hint


def test_the_command_examines_a_bucket(s3: RunningServer, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.reach(monkeypatch)
    report = sandbox.call_json("doctor", "--store", s3.new_prefix())
    assert report["ok"]
    assert {"permissions", "creation", "latency", "clock", "expiry"} <= {check["name"] for check in report["checks"]}


# -- rules -----------------------------------------------------------------------------------------------------------


def s3_rule(**changes: Any) -> dict[str, Any]:
    return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}} | changes


@pytest.mark.parametrize(
    ("changes", "reaches"),
    [
        ({}, True),
        ({"Status": "Disabled"}, False),
        ({"Filter": {"Prefix": "ru"}}, True),
        ({"Filter": {"Prefix": "runs/demo-1/ledger/"}}, True),
        ({"Filter": {"Prefix": "logs/"}}, False),
        ({"Filter": {}}, True),
        ({"Filter": {"ObjectSizeGreaterThan": 1 << 20}}, True),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, False),
        ({"Filter": {"And": {"Prefix": "runs/", "ObjectSizeLessThan": 10}}}, True),
        ({"Filter": {"And": {"Prefix": "runs/", "Tags": [{"Key": "a", "Value": "b"}]}}}, False),
        ({"Expiration": {"Date": "2027-01-01"}}, True),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"Expiration": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False),
        ({"Expiration": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}, False),
        ({"Expiration": {}, "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}]}, True),
        ({"Expiration": {}, "Transitions": [{"Days": 30, "StorageClass": "STANDARD_IA"}]}, False),
    ],
    ids=str,
)
def test_which_rules_of_s3_take_a_run_away(changes: dict[str, Any], reaches: bool) -> None:
    assert bool(s3_expiries([s3_rule(**changes)], ROOT)) is reaches


def test_an_old_rule_has_its_prefix_outside_of_a_filter() -> None:
    old = {"ID": "r", "Status": "Enabled", "Prefix": "logs/", "Expiration": {"Days": 3}}
    assert s3_expiries([old], ROOT) == ()
    assert s3_expiries([{**old, "Prefix": "runs/"}], ROOT) == ("rule 'r' deletes after 3 days",)
    assert s3_expiries([{**old, "Prefix": "runs/", "Expiration": {"Days": 1}}], ROOT) == (
        "rule 'r' deletes after 1 day",
    )


@pytest.mark.parametrize(
    ("changes", "days"),
    [
        ({}, 7),
        ({"Filter": {}}, 7),
        ({"Filter": {"Prefix": "ru"}}, 7),
        ({"Filter": {"Prefix": "runs/mine/"}}, None),
        ({"Filter": {"Prefix": "logs/"}}, None),
        ({"Filter": {"ObjectSizeGreaterThan": 1 << 20}}, None),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, None),
        ({"Status": "Disabled"}, None),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 7, "NewerNoncurrentVersions": 3}}, None),
        ({"NoncurrentVersionExpiration": {}}, None),
    ],
    ids=str,
)
def test_which_rules_of_s3_forget_every_older_version(changes: dict[str, Any], days: int | None) -> None:
    forgetting = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}}
    forgetting["NoncurrentVersionExpiration"] = {"NoncurrentDays": 7}
    longer = {**forgetting, "NoncurrentVersionExpiration": {"NoncurrentDays": 30}}
    assert s3_older_versions_days([forgetting | changes], ROOT) == days
    assert s3_older_versions_days([longer, forgetting | changes], ROOT) == (days or 30)


@pytest.mark.parametrize(
    ("action", "condition", "reaches"),
    [
        ("Delete", {"age": 30}, True),
        ("Delete", {"age": 30, "matchesPrefix": ["logs/"]}, False),
        ("Delete", {"age": 30, "matchesPrefix": ["logs/", "runs/"]}, True),
        ("Delete", {"age": 30, "isLive": False}, False),
        ("Delete", {"age": 30, "isLive": True}, True),
        ("Delete", {"numNewerVersions": 3}, False),
        ("Delete", {"daysSinceNoncurrentTime": 3}, False),
        ("SetStorageClass", {"age": 30}, False),
        ("AbortIncompleteMultipartUpload", {"age": 1}, False),
    ],
    ids=str,
)
def test_which_rules_of_gcs_take_a_run_away(action: str, condition: dict[str, Any], reaches: bool) -> None:
    assert bool(gcs_expiries([{"action": {"type": action}, "condition": condition}], ROOT)) is reaches
