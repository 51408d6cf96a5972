"""
The service account of a run on Google Cloud: who makes it, what a crash or a lost answer leaves of it, and who takes it
away.

tests/cloud/test_run_folders.py has what such an account may do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.error_codes import BadImage, NotThere, PolicyForbids, refused
from spotrun.clouds.gcp.run_accounts import ADDRESS_MAX_BYTES, MADE, TRIES_MAX, RunAccounts
from spotrun.clouds.identities import SETTLES_WITHIN, trial_uid
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, IdentityUnknown, QuotaExceeded
from tests.support.gcp_gate import Gate, gate_before
from tests.support.gcp_project import PROJECT, RUNNER, Refusal
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import BUCKET, RunningServer

UID = "0123456789"
URI = f"gs://{BUCKET}/runs/r-{UID}"
FOLDER = f"runs/r-{UID}/"
EMAIL = f"spotrun-{UID}@{PROJECT}.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{EMAIL}"
ACCOUNT, FOLDERS = "iam.projects.serviceAccounts.", "storage.managedFolders."
MAKING = (f"{ACCOUNT}create", f"{FOLDERS}insert", f"{FOLDERS}getIamPolicy", f"{FOLDERS}setIamPolicy")
REMOVING = (f"{ACCOUNT}get", f"{FOLDERS}getIamPolicy", f"{FOLDERS}delete", f"{ACCOUNT}delete")
START = datetime(2026, 11, 25, 1, 2, 3, tzinfo=UTC)
PASSING = Refusal(503, "Backend Error", "backendError")


@pytest.fixture
def gate(servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gate]:
    with gate_before(servers("gs").endpoint) as gate:
        gate.reach(monkeypatch, tmp_path)
        yield gate


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def accounts(gate: Gate, clock: ManualClock) -> RunAccounts:
    return new_accounts(clock)


def new_accounts(clock: ManualClock | None = None) -> RunAccounts:
    """What a runner that has asked nothing yet asks."""
    clock = clock or ManualClock(START)
    return RunAccounts(Google(clock), clock)


def made(gate: Gate) -> dict[str, Any]:
    """What there is of the run's account: where it says that the folder is, and who has which role in which folder."""
    project = gate.project
    return {
        "describes": project.accounts.get(EMAIL, {}).get("description"),
        "grants": {
            folder: sorted((each["role"].rpartition("/")[2], *each["members"]) for each in bindings(gate, folder))
            for folder in project.policies
        },
    }


def bindings(gate: Gate, folder: str = FOLDER) -> list[dict[str, Any]]:
    return list(gate.project.policy(folder).get("bindings", ()))


WHOLE = {"describes": URI, "grants": {FOLDER: [("spotrunChange", MEMBER), ("spotrunCreate", MEMBER)]}}
NOTHING = {"describes": None, "grants": {}}


# -- making ----------------------------------------------------------------------------------------------------------


def test_a_run_gets_an_account_of_its_own_in_four_calls_and_it_is_made_once(
    gate: Gate, accounts: RunAccounts, clock: ManualClock
) -> None:
    assert accounts.make(UID, URI) == START
    assert made(gate) == WHOLE
    assert [each.method for each in gate.asked] == list(MAKING)
    assert {each.member for each in gate.asked} == {RUNNER}
    clock.advance(100)
    assert [new_accounts(clock).make(UID, URI) for _ in range(2)] == [START, START]
    assert made(gate) == WHOLE
    assert gate.count(f"{FOLDERS}setIamPolicy") == 1


def test_run_may_change_only_what_a_condition_names_and_only_create_the_rest(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    create, change = bindings(gate)
    root = f"projects/_/buckets/{BUCKET}/objects/{FOLDER}"
    assert create == {"role": f"projects/{PROJECT}/roles/spotrunCreate", "members": [MEMBER]}
    assert change["condition"]["expression"].split(" || ") == [
        f'resource.name.startsWith("{root}checkpoints/")',
        f'resource.name.startsWith("{root}environments/")',
        f'resource.name.startsWith("{root}hints/agent-")',
        f'resource.name.startsWith("{root}outputs/")',
    ]


def test_the_roles_of_a_runner_allow_each_call(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    accounts.make(UID, URI)
    accounts.runs()
    accounts.remove(UID)
    assert {each.method for each in gate.asked} >= {*MAKING, *REMOVING}
    assert gate.denied == []


@pytest.mark.parametrize("method", MAKING)
def test_object_made_by_a_call_with_a_lost_answer_is_adopted(gate: Gate, accounts: RunAccounts, method: str) -> None:
    """Also a 409 or a 412 for one's own success."""
    gate.lose_answer(method)
    accounts.make(UID, URI)
    assert made(gate) == WHOLE
    assert gate.count(method) >= 2
    assert len(bindings(gate)) == 2


@pytest.mark.parametrize("method", MAKING)
@pytest.mark.parametrize("refusal", [PASSING, Refusal(403, "Rate Limit Exceeded", "rateLimitExceeded")], ids=str)
def test_a_step_that_fails_for_a_moment_is_tried_again(
    gate: Gate, accounts: RunAccounts, method: str, refusal: Refusal
) -> None:
    gate.refuse(method, refusal.status, refusal.body("storage"), times=2)
    accounts.make(UID, URI)
    assert made(gate) == WHOLE
    assert gate.count(method) == 3


@pytest.mark.parametrize("method", MAKING)
def test_a_runner_that_ends_before_a_step_is_followed_by_one_that_completes_it(
    gate: Gate, accounts: RunAccounts, method: str
) -> None:
    gate.refuse(method, PASSING.status, PASSING.body("storage"), times=4)
    with pytest.raises(CloudUnavailable):
        accounts.make(UID, URI)
    assert made(gate) != WHOLE
    new_accounts().make(UID, URI)
    assert made(gate) == WHOLE


@pytest.mark.parametrize("method", MAKING)
def test_refused_step_names_the_roles_and_the_shared_account(gate: Gate, accounts: RunAccounts, method: str) -> None:
    forbidden = Refusal(403, "does not have access", "forbidden")
    gate.refuse(method, 403, forbidden.body("iam" if method.startswith("iam") else "storage"))
    with pytest.raises(AccessDenied) as raised:
        accounts.make(UID, URI)
    assert "infra/gcp" in str(raised.value.hint)
    assert str(raised.value.hint).count("gcp.service_account") == 1
    new_accounts().make(UID, URI)
    assert made(gate) == WHOLE


def test_two_runners_at_once_make_one_account(gate: Gate, accounts: RunAccounts) -> None:
    for method in MAKING[1:]:
        gate.before(method, lambda: new_accounts().make(UID, URI))
        accounts.make(UID, URI)
        assert made(gate) == WHOLE
        assert len(bindings(gate)) == 2
        accounts.remove(UID)


def test_project_full_of_accounts_gets_the_reap_command(gate: Gate, accounts: RunAccounts) -> None:
    gate.project.accounts_max = 0
    with pytest.raises(QuotaExceeded) as raised:
        accounts.make(UID, URI)
    assert "spotrun reap --cloud gcp" in str(raised.value.hint)
    assert gate.count(f"{ACCOUNT}create") == 1
    assert made(gate) == NOTHING


@pytest.mark.parametrize("details", [[], [{"violations": [{"type": "constraints/iam.disableServiceAccountCreation"}]}]])
def test_g13_an_organization_that_forbids_accounts_gets_the_shared_account_as_a_hint(
    gate: Gate, accounts: RunAccounts, details: list[Any]
) -> None:
    forbidden = Refusal(400, "Service account creation is not allowed on this project.").body("iam")
    gate.refuse(f"{ACCOUNT}create", 400, {"error": {**forbidden["error"], "details": details}})
    with pytest.raises(AccessDenied, match="not allowed") as raised:
        accounts.make(UID, URI)
    assert "gcp.service_account" in str(raised.value.hint)


@pytest.mark.parametrize(
    "theirs",
    [
        {"displayName": "the nightly build", "description": URI},
        {"displayName": f"{MADE}yesterday", "description": URI},
        {"displayName": f"{MADE}2026-11-25T01:02:03Z", "description": f"gs://{BUCKET}/runs/another"},
        {"displayName": f"{MADE}2026-11-25T01:02:03Z"},
    ],
    ids=str,
)
def test_an_account_of_that_name_that_is_not_ours_is_neither_used_nor_removed(
    gate: Gate, accounts: RunAccounts, theirs: dict[str, str]
) -> None:
    gate.project._make_account(f"spotrun-{UID}", theirs)
    before = made(gate)
    for call in (lambda: accounts.make(UID, URI), lambda: accounts.remove(UID)):
        with pytest.raises(CloudError, match="was not made for this run's folder") as raised:
            call()
        assert str(raised.value.hint).startswith(f"gcloud iam service-accounts delete {EMAIL}")
    assert made(gate) == before


def test_account_that_iam_does_not_show_yet_is_requested_again(gate: Gate, accounts: RunAccounts) -> None:
    gate.refuse(f"{ACCOUNT}create", 409, Refusal(409, "it exists").body("iam"))
    with pytest.raises(CloudUnavailable, match="does not show"):
        accounts.make(UID, URI)
    accounts.make(UID, URI)
    assert made(gate) == WHOLE


# -- the policy ------------------------------------------------------------------------------------------------------

THEIRS = {"role": "roles/storage.objectViewer", "members": ["user:bob@example.com"]}


def grant_theirs(gate: Gate) -> None:
    policy = gate.project.policy(FOLDER)
    gate.project._set_policy(FOLDER, {**policy, "bindings": [*policy.get("bindings", ()), THEIRS]})


def test_concurrent_grants_of_others_stay(gate: Gate, accounts: RunAccounts) -> None:
    gate.before(f"{FOLDERS}setIamPolicy", lambda: grant_theirs(gate))
    accounts.make(UID, URI)
    assert gate.count(f"{FOLDERS}setIamPolicy") == 2
    assert THEIRS in bindings(gate)
    gate.before(f"{FOLDERS}setIamPolicy", lambda: grant_theirs(gate))
    accounts.remove(UID)
    assert made(gate)["describes"] is None
    assert {member for each in bindings(gate) for member in each["members"]} == set(THEIRS["members"])


def test_account_deleted_by_hand_and_made_again_has_only_its_own_grants(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    old = gate.project.accounts.pop(EMAIL)["uniqueId"]
    assert {*gate.project.members()} == {f"deleted:{MEMBER}?uid={old}"}
    accounts.make(UID, URI)
    assert made(gate) == WHOLE


def test_a_role_that_was_granted_otherwise_is_granted_as_it_is_now(gate: Gate, accounts: RunAccounts) -> None:
    """As an earlier spotrun may have done."""
    accounts.make(UID, URI)
    policy = gate.project.policy(FOLDER)
    create, change = policy["bindings"]
    change = {**change, "condition": {"title": "all", "expression": 'resource.name.startsWith("projects/")'}}
    gate.project._set_policy(FOLDER, {**policy, "bindings": [create, change]})
    accounts.make(UID, URI)
    assert made(gate) == WHOLE
    assert "checkpoints/" in bindings(gate)[1]["condition"]["expression"]


def test_policy_that_changes_at_each_try_is_reported_in_the_end(gate: Gate, accounts: RunAccounts) -> None:
    conflict = Refusal(409, "concurrent policy changes", "conflict")
    gate.refuse(f"{FOLDERS}setIamPolicy", 409, conflict.body("storage"), times=TRIES_MAX)
    with pytest.raises(CloudUnavailable, match="all the time"):
        accounts.make(UID, URI)
    assert gate.count(f"{FOLDERS}setIamPolicy") == TRIES_MAX


def test_constraint_of_the_organization_is_reported_in_its_own_words(gate: Gate, accounts: RunAccounts) -> None:
    words = "One or more users named in the policy do not belong to a permitted customer."
    constraint = Refusal(412, words, "conditionNotMet").body("storage")
    gate.refuse(f"{FOLDERS}setIamPolicy", 412, constraint, times=TRIES_MAX)
    with pytest.raises(PolicyForbids, match="permitted customer"):
        accounts.make(UID, URI)


# -- until the bucket knows it ---------------------------------------------------------------------------------------


def test_an_account_that_the_bucket_does_not_know_yet_is_waited_for_and_told_in_the_end(
    gate: Gate, accounts: RunAccounts, clock: ManualClock
) -> None:
    gate.project.new_accounts_are_known = False
    for _ in range(2):
        with pytest.raises(CloudUnavailable, match="does not exist"):
            accounts.make(UID, URI)
        clock.advance(60)
    clock.advance(SETTLES_WITHIN.total_seconds())
    with pytest.raises(IdentityUnknown, match="does not exist"):
        accounts.make(UID, URI)
    gate.project.new_accounts_are_known = True
    accounts.make(UID, URI)
    assert made(gate) == WHOLE


def test_a_run_that_just_got_its_grants_says_so_however_old_its_account_is(
    gate: Gate, accounts: RunAccounts, clock: ManualClock
) -> None:
    accounts.make(UID, URI)
    gate.project.policies.clear()
    clock.advance(1000)
    assert accounts.make(UID, URI) == clock.now()


# -- buckets that do not do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 412])
def test_bucket_without_uniform_access_gets_the_command_for_it(gate: Gate, accounts: RunAccounts, status: int) -> None:
    gate.project.uniform = False
    refusal = Refusal(status, "Managed folders need uniform access", "conditionNotMet" if status == 412 else "invalid")
    gate.refuse(f"{FOLDERS}insert", status, refusal.body("storage"))
    with pytest.raises(CloudError, match="not uniform") as raised:
        accounts.make(UID, URI)
    assert f"gcloud storage buckets update gs://{BUCKET} --uniform-bucket-level-access" in str(raised.value.hint)


def test_a_bucket_of_another_project_takes_no_roles_of_this_one(gate: Gate, accounts: RunAccounts) -> None:
    gate.project.bucket_project = "another"
    with pytest.raises(CloudError, match=f"takes no roles of the project {PROJECT}.*not supported") as raised:
        accounts.make(UID, URI)
    assert "infra/gcp" in str(raised.value.hint)


def test_a_store_without_managed_folders_takes_no_roles(gate: Gate, accounts: RunAccounts) -> None:
    gate.refuse(f"{FOLDERS}insert", 404, {"error": {"code": 404, "message": "Not Found"}})
    with pytest.raises(CloudError, match="takes no roles") as raised:
        accounts.make(UID, URI)
    assert not isinstance(raised.value, CloudUnavailable)


def test_a_bucket_that_is_not_there_is_named(gate: Gate, accounts: RunAccounts) -> None:
    forbidden = Refusal(404, "The specified bucket does not exist.", "notFound")
    gate.refuse("storage.buckets.get", 404, forbidden.body("storage"))
    gate.refuse(f"{FOLDERS}insert", 404, forbidden.body("storage"))
    with pytest.raises(CloudError, match=f"there is no bucket gs://{BUCKET}"):
        accounts.make(UID, URI)


@pytest.mark.parametrize("uri", [f"s3://{BUCKET}/runs/r-{UID}", f"/home/ada/runs/r-{UID}", f"gs://{BUCKET}"])
def test_an_account_is_made_only_for_a_folder_in_a_bucket_of_googles(
    gate: Gate, accounts: RunAccounts, uri: str
) -> None:
    with pytest.raises(CloudError, match="cannot be limited to") as raised:
        accounts.make(UID, uri)
    assert "gs://" in str(raised.value.hint)
    assert made(gate) == NOTHING


def test_a_folder_whose_address_no_account_can_hold_gets_none(gate: Gate, accounts: RunAccounts) -> None:
    longest = f"gs://{BUCKET}/{'p' * (ADDRESS_MAX_BYTES - len(URI) - 1)}/runs/r-{UID}"
    assert len(longest) == ADDRESS_MAX_BYTES
    accounts.make(UID, longest)
    accounts.remove(UID)
    assert made(gate) == NOTHING
    with pytest.raises(CloudError, match="256 bytes") as raised:
        accounts.make(UID, longest.replace("runs/", "runs-/"))
    assert "--store" in str(raised.value.hint)
    assert made(gate) == NOTHING


# -- removing --------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_an_account_that_is_removed_in_four_calls(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    gate.asked.clear()
    accounts.remove(UID)
    assert [each.method for each in gate.asked] == list(REMOVING)
    assert made(gate) == NOTHING
    assert [*gate.project.members()] == []


def test_a_run_without_an_account_has_nothing_to_remove(gate: Gate, accounts: RunAccounts) -> None:
    accounts.remove(UID)
    assert [each.method for each in gate.asked] == [f"{ACCOUNT}get", f"{ACCOUNT}list"]


@pytest.mark.parametrize("method", REMOVING)
def test_a_removal_whose_answer_is_lost_is_complete_in_the_end(gate: Gate, accounts: RunAccounts, method: str) -> None:
    accounts.make(UID, URI)
    gate.lose_answer(method)
    accounts.remove(UID)
    assert made(gate) == NOTHING


@pytest.mark.parametrize("method", REMOVING)
def test_a_removal_that_was_cut_off_is_completed_by_the_next(gate: Gate, accounts: RunAccounts, method: str) -> None:
    accounts.make(UID, URI)
    gate.refuse(method, PASSING.status, PASSING.body("storage"), times=4)
    with pytest.raises(CloudUnavailable):
        accounts.remove(UID)
    assert accounts.runs() == [UID]
    new_accounts().remove(UID)
    assert made(gate) == NOTHING


@pytest.mark.parametrize("steps", range(1, len(MAKING)))
def test_a_part_of_an_account_is_removed_like_the_whole(gate: Gate, accounts: RunAccounts, steps: int) -> None:
    gate.refuse(MAKING[steps], PASSING.status, PASSING.body("storage"), times=4)
    with pytest.raises(CloudUnavailable):
        accounts.make(UID, URI)
    accounts.remove(UID)
    assert made(gate) == NOTHING


def test_an_account_goes_although_its_folder_and_its_bucket_are_gone(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    gate.project.policies.clear()
    accounts.remove(UID)
    assert made(gate) == NOTHING
    accounts.make(UID, URI)
    gone = Refusal(404, "The specified bucket does not exist.", "notFound")
    gate.refuse(f"{FOLDERS}getIamPolicy", 404, gone.body("storage"))
    accounts.remove(UID)
    assert made(gate)["describes"] is None


def test_refused_removal_is_reported_and_the_account_stays_listed(gate: Gate, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    gate.project.of_bucket["bindings"] = []
    with pytest.raises(AccessDenied, match=r"storage\.managedFolders\.getIamPolicy") as raised:
        accounts.remove(UID)
    assert "infra/gcp" in str(raised.value.hint)
    assert accounts.runs() == [UID]


def test_account_of_a_trial_is_removed_too(gate: Gate, accounts: RunAccounts, clock: ManualClock) -> None:
    uid = trial_uid(clock.now())
    accounts.make(uid, f"gs://{BUCKET}/runs/{uid}")
    assert accounts.runs() == [uid]
    accounts.remove(uid)
    assert made(gate) == NOTHING


# -- all runs --------------------------------------------------------------------------------------------------------


def test_the_runs_that_have_an_account_are_those_whose_account_spotrun_has_made(
    gate: Gate, accounts: RunAccounts
) -> None:
    uids = [f"{number:010x}" for number in range(97)] + [UID]
    gate.project.accounts_max = 200
    for uid in uids:
        told = {"displayName": f"{MADE}2026-11-25T01:02:03Z", "description": f"gs://{BUCKET}/runs/r-{uid}"}
        gate.project._make_account(f"spotrun-{uid}", told)
    for each in ("spotrun-nightly", "another", "terraform"):
        gate.project._make_account(each, {"displayName": each})
    assert sorted(accounts.runs()) == sorted(uids)
    assert gate.count(f"{ACCOUNT}list") == 2


def test_a_project_without_accounts_has_no_runs(accounts: RunAccounts) -> None:
    assert accounts.runs() == []


# -- what Google's words mean ----------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_is_no_image_whatever_it_is_called() -> None:
    gone = "The specified managed folder runs/image-0123456789/images/ does not exist."
    assert isinstance(refused("read", 404, Refusal(404, gone, "notFound").body("storage")), NotThere)
    gone = "The resource 'projects/debian-cloud/global/images/family/none' was not found"
    assert isinstance(refused("read", 404, Refusal(404, gone, "notFound").body("compute")), BadImage)
