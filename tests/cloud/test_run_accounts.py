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

from spotrun.clouds.error_kinds import BadImage, NotThere
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.error_codes import PolicyForbids, refused
from spotrun.clouds.gcp.run_accounts import ADDRESS_MAX_BYTES, MADE, TRIES_MAX, RunAccounts
from spotrun.clouds.identities import SETTLES_WITHIN, trial_uid
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, IdentityUnknown, QuotaExceeded
from tests.support.gce_answers import Refusal, rpc_refusal
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_project import RUNNER
from tests.support.google_cloud import Lost
from tests.support.google_server import GoogleServer
from tests.support.http_server import as_json
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
PASSING = Refusal(503, "backendError", "Backend Error")


@pytest.fixture
def google(
    servers: Callable[[str], RunningServer], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GoogleServer]:
    with GoogleServer(clock, servers("gs").endpoint) as google:
        google.reach(monkeypatch, tmp_path)
        yield google


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def accounts(google: GoogleServer, clock: ManualClock) -> RunAccounts:
    return new_accounts(clock)


def new_accounts(clock: ManualClock | None = None) -> RunAccounts:
    """What a runner that has asked nothing yet asks."""
    clock = clock or ManualClock(START)
    return RunAccounts(Google(clock), clock)


def made(google: GoogleServer) -> dict[str, Any]:
    """What there is of the run's account: where it says that the folder is, and who has which role in which folder."""
    project = google.iam
    return {
        "describes": project.accounts.get(EMAIL, {}).get("description"),
        "grants": {
            folder: sorted((each["role"].rpartition("/")[2], *each["members"]) for each in bindings(google, folder))
            for folder in project.policies
        },
    }


def bindings(google: GoogleServer, folder: str = FOLDER) -> list[dict[str, Any]]:
    return list(google.iam.policy(folder).get("bindings", ()))


WHOLE = {"describes": URI, "grants": {FOLDER: [("spotrunChange", MEMBER), ("spotrunCreate", MEMBER)]}}
NOTHING = {"describes": None, "grants": {}}


# -- making ----------------------------------------------------------------------------------------------------------


def test_a_run_gets_an_account_of_its_own_in_four_calls_and_it_is_made_once(
    google: GoogleServer, accounts: RunAccounts, clock: ManualClock
) -> None:
    assert accounts.make(UID, URI) == START
    assert made(google) == WHOLE
    assert [each.method for each in google.asked] == list(MAKING)
    assert {each.who for each in google.asked} == {RUNNER}
    clock.advance(100)
    assert [new_accounts(clock).make(UID, URI) for _ in range(2)] == [START, START]
    assert made(google) == WHOLE
    assert google.counts[f"{FOLDERS}setIamPolicy"] == 1


def test_run_may_change_only_what_a_condition_names_and_only_create_the_rest(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    accounts.make(UID, URI)
    create, change = bindings(google)
    root = f"projects/_/buckets/{BUCKET}/objects/{FOLDER}"
    assert create == {"role": f"projects/{PROJECT}/roles/spotrunCreate", "members": [MEMBER]}
    assert change["condition"]["expression"].split(" || ") == [
        f'resource.name.startsWith("{root}checkpoints/")',
        f'resource.name.startsWith("{root}environments/")',
        f'resource.name.startsWith("{root}hints/agent-")',
        f'resource.name.startsWith("{root}outputs/")',
    ]


def test_the_roles_of_a_runner_allow_each_call(google: GoogleServer, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    accounts.make(UID, URI)
    accounts.runs()
    accounts.remove(UID)
    assert {each.method for each in google.asked} >= {*MAKING, *REMOVING}
    assert google.denied == []


@pytest.mark.parametrize("method", MAKING)
def test_object_made_by_a_call_with_a_lost_answer_is_adopted(
    google: GoogleServer, accounts: RunAccounts, method: str
) -> None:
    """Also a 409 or a 412 for one's own success."""
    google.fail(method, Lost)
    accounts.make(UID, URI)
    assert made(google) == WHOLE
    assert google.counts[method] >= 2
    assert len(bindings(google)) == 2


@pytest.mark.parametrize("method", MAKING)
@pytest.mark.parametrize("refusal", [PASSING, Refusal(403, "rateLimitExceeded", "Rate Limit Exceeded")], ids=str)
def test_a_step_that_fails_for_a_moment_is_tried_again(
    google: GoogleServer, accounts: RunAccounts, method: str, refusal: Refusal
) -> None:
    google.fail(method, refusal, times=2)
    accounts.make(UID, URI)
    assert made(google) == WHOLE
    assert google.counts[method] == 3


@pytest.mark.parametrize("method", MAKING)
def test_a_runner_that_ends_before_a_step_is_followed_by_one_that_completes_it(
    google: GoogleServer, accounts: RunAccounts, method: str
) -> None:
    google.fail(method, PASSING, times=4)
    with pytest.raises(CloudUnavailable):
        accounts.make(UID, URI)
    assert made(google) != WHOLE
    new_accounts().make(UID, URI)
    assert made(google) == WHOLE


@pytest.mark.parametrize("method", MAKING)
def test_refused_step_names_the_roles_and_the_shared_account(
    google: GoogleServer, accounts: RunAccounts, method: str
) -> None:
    words = "does not have access"
    google.fail(method, rpc_refusal(403, words) if method.startswith("iam") else Refusal(403, "forbidden", words))
    with pytest.raises(AccessDenied) as raised:
        accounts.make(UID, URI)
    assert "infra/gcp" in str(raised.value.hint)
    assert str(raised.value.hint).count("gcp.service_account") == 1
    new_accounts().make(UID, URI)
    assert made(google) == WHOLE


def test_store_whose_folders_a_runner_may_not_share_is_refused_with_one_that_works(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    """A condition of infra/gcp knows the folders of runs by their place, below `runs/`."""
    with pytest.raises(AccessDenied) as raised:
        accounts.make(UID, f"gs://{BUCKET}/my-runs/r-{UID}")
    assert "storage.managedFolders.setIamPolicy" in raised.value.message
    assert "share only folders below runs/: use --store gs://BUCKET/runs" in str(raised.value.hint)
    google.denied.clear()
    assert accounts.make("9876543210", f"gs://{BUCKET}/team/runs/r-9876543210") is not None


def test_two_runners_at_once_make_one_account(google: GoogleServer, accounts: RunAccounts) -> None:
    for method in MAKING[1:]:
        google.before(method, lambda: new_accounts().make(UID, URI))
        accounts.make(UID, URI)
        assert made(google) == WHOLE
        assert len(bindings(google)) == 2
        accounts.remove(UID)


def test_project_full_of_accounts_gets_the_reap_command(google: GoogleServer, accounts: RunAccounts) -> None:
    google.iam.accounts_max = 0
    with pytest.raises(QuotaExceeded) as raised:
        accounts.make(UID, URI)
    assert "spotrun reap --cloud gcp" in str(raised.value.hint)
    assert google.counts[f"{ACCOUNT}create"] == 1
    assert made(google) == NOTHING


@pytest.mark.parametrize("details", [[], [{"violations": [{"type": "constraints/iam.disableServiceAccountCreation"}]}]])
def test_g13_an_organization_that_forbids_accounts_gets_the_shared_account_as_a_hint(
    google: GoogleServer, accounts: RunAccounts, details: list[Any]
) -> None:
    forbidden = rpc_refusal(400, "Service account creation is not allowed on this project.").body
    google.fail(f"{ACCOUNT}create", as_json({"error": {**forbidden["error"], "details": details}}, 400))
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
    google: GoogleServer, accounts: RunAccounts, theirs: dict[str, str]
) -> None:
    google.iam._make_account(f"spotrun-{UID}", theirs)
    before = made(google)
    for call in (lambda: accounts.make(UID, URI), lambda: accounts.remove(UID)):
        with pytest.raises(CloudError, match="was not made for this run's folder") as raised:
            call()
        assert str(raised.value.hint).startswith(f"gcloud iam service-accounts delete {EMAIL}")
    assert made(google) == before


def test_account_that_iam_does_not_show_yet_is_requested_again(google: GoogleServer, accounts: RunAccounts) -> None:
    google.fail(f"{ACCOUNT}create", rpc_refusal(409, "it exists"))
    with pytest.raises(CloudUnavailable, match="cannot find it"):
        accounts.make(UID, URI)
    accounts.make(UID, URI)
    assert made(google) == WHOLE


# -- the policy ------------------------------------------------------------------------------------------------------

THEIRS = {"role": "roles/storage.objectViewer", "members": ["user:bob@example.com"]}


def grant_theirs(google: GoogleServer) -> None:
    policy = google.iam.policy(FOLDER)
    google.iam._set_policy(FOLDER, {**policy, "bindings": [*policy.get("bindings", ()), THEIRS]})


def test_concurrent_grants_of_others_stay(google: GoogleServer, accounts: RunAccounts) -> None:
    google.before(f"{FOLDERS}setIamPolicy", lambda: grant_theirs(google))
    accounts.make(UID, URI)
    assert google.counts[f"{FOLDERS}setIamPolicy"] == 2
    assert THEIRS in bindings(google)
    google.before(f"{FOLDERS}setIamPolicy", lambda: grant_theirs(google))
    accounts.remove(UID)
    assert made(google)["describes"] is None
    assert {member for each in bindings(google) for member in each["members"]} == set(THEIRS["members"])


def test_account_deleted_by_hand_and_made_again_has_only_its_own_grants(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    accounts.make(UID, URI)
    old = google.iam.accounts.pop(EMAIL)["uniqueId"]
    assert {*google.iam.members()} == {f"deleted:{MEMBER}?uid={old}"}
    accounts.make(UID, URI)
    assert made(google) == WHOLE


def test_a_role_that_was_granted_otherwise_is_granted_as_it_is_now(google: GoogleServer, accounts: RunAccounts) -> None:
    """As an earlier spotrun may have done."""
    accounts.make(UID, URI)
    policy = google.iam.policy(FOLDER)
    create, change = policy["bindings"]
    change = {**change, "condition": {"title": "all", "expression": 'resource.name.startsWith("projects/")'}}
    google.iam._set_policy(FOLDER, {**policy, "bindings": [create, change]})
    accounts.make(UID, URI)
    assert made(google) == WHOLE
    assert "checkpoints/" in bindings(google)[1]["condition"]["expression"]


def test_policy_that_changes_at_each_try_is_reported_in_the_end(google: GoogleServer, accounts: RunAccounts) -> None:
    conflict = Refusal(409, "conflict", "concurrent policy changes")
    google.fail(f"{FOLDERS}setIamPolicy", conflict, times=TRIES_MAX)
    with pytest.raises(CloudUnavailable, match="keep changing the policy"):
        accounts.make(UID, URI)
    assert google.counts[f"{FOLDERS}setIamPolicy"] == TRIES_MAX


def test_constraint_of_the_organization_is_reported_in_its_own_words(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    words = "One or more users named in the policy do not belong to a permitted customer."
    google.fail(f"{FOLDERS}setIamPolicy", Refusal(412, "conditionNotMet", words), times=TRIES_MAX)
    with pytest.raises(PolicyForbids, match="permitted customer"):
        accounts.make(UID, URI)


# -- until the bucket knows it ---------------------------------------------------------------------------------------


def test_an_account_that_the_bucket_does_not_know_yet_is_waited_for_and_told_in_the_end(
    google: GoogleServer, accounts: RunAccounts, clock: ManualClock
) -> None:
    google.iam.new_accounts_are_known = False
    for _ in range(2):
        with pytest.raises(CloudUnavailable, match="does not exist"):
            accounts.make(UID, URI)
        clock.advance(60)
    clock.advance(SETTLES_WITHIN.total_seconds())
    with pytest.raises(IdentityUnknown, match="does not exist"):
        accounts.make(UID, URI)
    google.iam.new_accounts_are_known = True
    accounts.make(UID, URI)
    assert made(google) == WHOLE


def test_a_run_that_just_got_its_grants_says_so_however_old_its_account_is(
    google: GoogleServer, accounts: RunAccounts, clock: ManualClock
) -> None:
    accounts.make(UID, URI)
    google.iam.policies.clear()
    clock.advance(1000)
    assert accounts.make(UID, URI) == clock.now()


# -- buckets that do not do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 412])
def test_bucket_without_uniform_access_gets_the_command_for_it(
    google: GoogleServer, accounts: RunAccounts, status: int
) -> None:
    google.iam.uniform = False
    refusal = Refusal(status, "conditionNotMet" if status == 412 else "invalid", "Managed folders need uniform access")
    google.fail(f"{FOLDERS}insert", refusal)
    with pytest.raises(CloudError, match="without uniform bucket-level access") as raised:
        accounts.make(UID, URI)
    assert f"gcloud storage buckets update gs://{BUCKET} --uniform-bucket-level-access" in str(raised.value.hint)


def test_a_bucket_of_another_project_takes_no_roles_of_this_one(google: GoogleServer, accounts: RunAccounts) -> None:
    google.iam.bucket_project = "another"
    with pytest.raises(CloudError, match=f"does not accept roles of the project {PROJECT}.*not supported") as raised:
        accounts.make(UID, URI)
    assert "infra/gcp" in str(raised.value.hint)


def test_a_store_without_managed_folders_takes_no_roles(google: GoogleServer, accounts: RunAccounts) -> None:
    google.fail(f"{FOLDERS}insert", as_json({"error": {"code": 404, "message": "Not Found"}}, 404))
    with pytest.raises(CloudError, match="does not accept roles") as raised:
        accounts.make(UID, URI)
    assert not isinstance(raised.value, CloudUnavailable)


def test_a_bucket_that_is_not_there_is_named(google: GoogleServer, accounts: RunAccounts) -> None:
    forbidden = Refusal(404, "notFound", "The specified bucket does not exist.")
    google.fail("storage.buckets.get", forbidden)
    google.fail(f"{FOLDERS}insert", forbidden)
    with pytest.raises(CloudError, match=f"there is no bucket gs://{BUCKET}"):
        accounts.make(UID, URI)


@pytest.mark.parametrize("uri", [f"s3://{BUCKET}/runs/r-{UID}", f"/home/ada/runs/r-{UID}", f"gs://{BUCKET}"])
def test_an_account_is_made_only_for_a_folder_in_a_bucket_of_googles(
    google: GoogleServer, accounts: RunAccounts, uri: str
) -> None:
    with pytest.raises(CloudError, match="cannot be limited to") as raised:
        accounts.make(UID, uri)
    assert "gs://" in str(raised.value.hint)
    assert made(google) == NOTHING


def test_a_folder_whose_address_no_account_can_hold_gets_none(google: GoogleServer, accounts: RunAccounts) -> None:
    longest = f"gs://{BUCKET}/{'p' * (ADDRESS_MAX_BYTES - len(URI) - 1)}/runs/r-{UID}"
    assert len(longest) == ADDRESS_MAX_BYTES
    accounts.make(UID, longest)
    accounts.remove(UID)
    assert made(google) == NOTHING
    with pytest.raises(CloudError, match="256 bytes") as raised:
        accounts.make(UID, longest.replace("runs/", "runs-/"))
    assert "--store" in str(raised.value.hint)
    assert made(google) == NOTHING


# -- removing --------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_an_account_that_is_removed_in_four_calls(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    accounts.make(UID, URI)
    google.asked.clear()
    accounts.remove(UID)
    assert [each.method for each in google.asked] == list(REMOVING)
    assert made(google) == NOTHING
    assert [*google.iam.members()] == []


def test_a_run_without_an_account_has_nothing_to_remove(google: GoogleServer, accounts: RunAccounts) -> None:
    accounts.remove(UID)
    assert [each.method for each in google.asked] == [f"{ACCOUNT}get", f"{ACCOUNT}list"]


@pytest.mark.parametrize("method", REMOVING)
def test_a_removal_whose_answer_is_lost_is_complete_in_the_end(
    google: GoogleServer, accounts: RunAccounts, method: str
) -> None:
    accounts.make(UID, URI)
    google.fail(method, Lost)
    accounts.remove(UID)
    assert made(google) == NOTHING


@pytest.mark.parametrize("method", REMOVING)
def test_a_removal_that_was_cut_off_is_completed_by_the_next(
    google: GoogleServer, accounts: RunAccounts, method: str
) -> None:
    accounts.make(UID, URI)
    google.fail(method, PASSING, times=4)
    with pytest.raises(CloudUnavailable):
        accounts.remove(UID)
    assert accounts.runs() == [UID]
    new_accounts().remove(UID)
    assert made(google) == NOTHING


@pytest.mark.parametrize("steps", range(1, len(MAKING)))
def test_a_part_of_an_account_is_removed_like_the_whole(
    google: GoogleServer, accounts: RunAccounts, steps: int
) -> None:
    google.fail(MAKING[steps], PASSING, times=4)
    with pytest.raises(CloudUnavailable):
        accounts.make(UID, URI)
    accounts.remove(UID)
    assert made(google) == NOTHING


def test_an_account_goes_although_its_folder_and_its_bucket_are_gone(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    accounts.make(UID, URI)
    google.iam.policies.clear()
    accounts.remove(UID)
    assert made(google) == NOTHING
    accounts.make(UID, URI)
    gone = Refusal(404, "notFound", "The specified bucket does not exist.")
    google.fail(f"{FOLDERS}getIamPolicy", gone)
    accounts.remove(UID)
    assert made(google)["describes"] is None


def test_refused_removal_is_reported_and_the_account_stays_listed(google: GoogleServer, accounts: RunAccounts) -> None:
    accounts.make(UID, URI)
    google.iam.of_bucket["bindings"] = []
    with pytest.raises(AccessDenied, match=r"storage\.managedFolders\.getIamPolicy") as raised:
        accounts.remove(UID)
    assert "infra/gcp" in str(raised.value.hint)
    assert accounts.runs() == [UID]


def test_account_of_a_trial_is_removed_too(google: GoogleServer, accounts: RunAccounts, clock: ManualClock) -> None:
    uid = trial_uid(clock.now())
    accounts.make(uid, f"gs://{BUCKET}/runs/{uid}")
    assert accounts.runs() == [uid]
    accounts.remove(uid)
    assert made(google) == NOTHING


# -- all runs --------------------------------------------------------------------------------------------------------


def test_the_runs_that_have_an_account_are_those_whose_account_spotrun_has_made(
    google: GoogleServer, accounts: RunAccounts
) -> None:
    uids = [f"{number:010x}" for number in range(97)] + [UID]
    google.iam.accounts_max = 200
    for uid in uids:
        told = {"displayName": f"{MADE}2026-11-25T01:02:03Z", "description": f"gs://{BUCKET}/runs/r-{uid}"}
        google.iam._make_account(f"spotrun-{uid}", told)
    for each in ("spotrun-nightly", "another", "terraform"):
        google.iam._make_account(each, {"displayName": each})
    assert sorted(accounts.runs()) == sorted(uids)
    assert google.counts[f"{ACCOUNT}list"] == 2


def test_a_project_without_accounts_has_no_runs(accounts: RunAccounts) -> None:
    assert accounts.runs() == []


# -- what Google's words mean ----------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_is_no_image_whatever_it_is_called() -> None:
    gone = "The specified managed folder runs/image-0123456789/images/ does not exist."
    assert isinstance(refused("read", 404, Refusal(404, "notFound", gone).body), NotThere)
    gone = "The resource 'projects/debian-cloud/global/images/family/none' was not found"
    assert isinstance(refused("read", 404, Refusal(404, "notFound", gone).body), BadImage)
