"""Who can read the keys of runs in a bucket, told from the bucket's policy."""

from __future__ import annotations

from typing import Any

import pytest

from spotrun.store.key_readers import EVERY_READER, gcs_key_readers, s3_key_readers
from tests.support.aws_templates import ACCOUNT, REGION, Template
from tests.support.gcp_templates import conditions

BUCKET = f"spotrun-{ACCOUNT}-{REGION}"
ADA = f"arn:aws:iam::{ACCOUNT}:user/ada"
DENIAL = next(
    each
    for each in Template("account", Runners=ADA).documents()["bucket"]["Statement"]
    if each["Sid"] == "KeysAreForRunners"
)


def readers(*statements: dict[str, Any], root: str = "runs/") -> tuple[str, ...]:
    return s3_key_readers({"Statement": [*statements]}, BUCKET, root)


@pytest.mark.parametrize("root", ["runs/", "runs/team/", "else/where/"])
def test_policy_of_our_template_leaves_no_reader_but_those_whom_it_names(root: str) -> None:
    assert s3_key_readers(Template("account", Runners=ADA).documents()["bucket"], BUCKET, root) == ()
    assert s3_key_readers({"Statement": DENIAL}, BUCKET, root) == (), "IAM takes one statement without a list"


def test_policy_without_the_denial_lets_every_reader_read_keys() -> None:
    assert s3_key_readers(Template("account").documents()["bucket"], BUCKET, "runs/") == (EVERY_READER,)
    assert s3_key_readers({}, BUCKET, "runs/") == (EVERY_READER,)
    assert readers(DENIAL, root="") == (EVERY_READER,), "a * of ours has at least a slash before keys"


@pytest.mark.parametrize(
    "changes",
    [
        {"Effect": "Allow"},
        {"Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/eve"}},
        {"Action": "s3:PutObject"},
        {"Resource": f"arn:aws:s3:::{BUCKET}/*/ledger/*"},
        {"Resource": "arn:aws:s3:::another/*/keys/*"},
        {"Condition": {"Bool": {"aws:SecureTransport": "false"}}},
        {"Condition": {"ArnLike": {"aws:PrincipalArn": ADA}}},
        {"Condition": {**DENIAL["Condition"], "Bool": {"aws:SecureTransport": "false"}}},
        {"Condition": {"StringNotLike": {"aws:PrincipalArn": ADA, "aws:SourceIp": "10.*"}}},
    ],
    ids=str,
)
def test_another_denial_is_not_taken_for_one_of_keys(changes: dict[str, Any]) -> None:
    assert readers({**DENIAL, **changes}) == (EVERY_READER,)


RUNNERS = {"role": "projects/acme/roles/spotrunBucket", "members": {"user:ada"}}


def grant(role: str, *members: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "members": {*members}, **more}


def test_reader_whom_no_condition_keeps_from_keys_is_named() -> None:
    viewers = grant("roles/storage.legacyObjectReader", "projectViewer:acme", "user:ada")
    anybody = grant("roles/storage.objectViewer", "user:eve", condition={"expression": "resource.name != 'x'"})
    custom = grant("projects/acme/roles/reader", "user:mallory")
    assert gcs_key_readers([RUNNERS, viewers, anybody, custom]) == (
        "projectViewer:acme (roles/storage.legacyObjectReader)",
        "user:eve (roles/storage.objectViewer)",
        "user:mallory (projects/acme/roles/reader)",
    )


def test_runners_administrators_and_readers_under_our_condition_are_not_named() -> None:
    ours = grant("projects/acme/roles/spotrunChange", "user:ada", condition=conditions()["spotrunChange"])
    reads = grant("roles/storage.objectViewer", "user:eve", condition=conditions()["spotrunRead"])
    owners = grant("roles/storage.legacyObjectOwner", "projectOwner:acme", "projectEditor:acme")
    lists = grant("roles/storage.legacyBucketReader", "projectViewer:acme")
    assert gcs_key_readers([RUNNERS, ours, reads, owners, lists]) == ()
    assert gcs_key_readers([]) == ()
