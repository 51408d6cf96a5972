"""What a run's account is granted in the policy of its folder, whatever the policy has been before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spotrun.address import BucketAddress
from spotrun.clouds.gcp.folder_grants import CHANGE, CREATE, Grant, granted, grants, without

PROJECT, FOLDER = "acme-training", BucketAddress("gs", "spotrun", "runs/r-0123456789")
EMAIL = f"spotrun-0123456789@{PROJECT}.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{EMAIL}"
OTHERS = (
    *("user:bob@example.com", "group:ops@example.com", "allAuthenticatedUsers", f"serviceAccount:x-{EMAIL}"),
    *(f"deleted:serviceAccount:x-{EMAIL}?uid=1", f"serviceAccount:{EMAIL}.example.com"),
)
OURS = (MEMBER, f"deleted:{MEMBER}?uid=1", f"deleted:{MEMBER}?uid=100000000000000000001")
ROLES = ("roles/storage.objectViewer", *(f"projects/{PROJECT}/roles/{name}" for name in (CREATE, CHANGE)))
CONDITIONS = ({}, {"condition": {"title": "for a while", "expression": 'resource.name.startsWith("projects/_/")'}})


def bindings() -> st.SearchStrategy[dict[str, Any]]:
    members = st.lists(st.sampled_from(OTHERS + OURS), min_size=1, max_size=4, unique=True)
    return st.builds(
        lambda role, members, condition: {"role": role, "members": members, **condition},
        st.sampled_from(ROLES),
        members,
        st.sampled_from(CONDITIONS),
    )


policies = st.builds(
    lambda found, is_told: {"etag": "CAE=", "version": 1, **({"bindings": found} if is_told else {})},
    st.lists(bindings(), max_size=4),
    st.booleans(),
)


def of_others(policy: Any) -> set[Grant]:
    return {each for each in grants(policy) if each.member in OTHERS}


@given(policies)
def test_an_account_has_its_two_grants_and_no_more_and_others_keep_theirs(policy: Any) -> None:
    after = granted(policy, EMAIL, PROJECT, FOLDER)
    ours = {each for each in grants(after) if each.member not in OTHERS}
    assert {(each.role.rpartition("/")[2], each.member, bool(each.expression)) for each in ours} == {
        (CREATE, MEMBER, False),
        (CHANGE, MEMBER, True),
    }
    assert of_others(after) == of_others(policy)
    assert (after["etag"], after["version"]) == ("CAE=", 3)


@given(policies)
def test_granting_again_changes_nothing(policy: Any) -> None:
    once = granted(policy, EMAIL, PROJECT, FOLDER)
    assert {*grants(granted(once, EMAIL, PROJECT, FOLDER))} == {*grants(once)}


@given(policies)
def test_taking_leaves_the_grants_of_others_and_no_empty_binding(policy: Any) -> None:
    for before in (policy, granted(policy, EMAIL, PROJECT, FOLDER)):
        after = without(before, EMAIL)
        assert {*grants(after)} == of_others(policy)
        assert all(each["members"] for each in after["bindings"])
        assert after["etag"] == "CAE="
