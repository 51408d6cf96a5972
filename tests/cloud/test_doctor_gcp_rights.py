"""`spotrun doctor gcp` names each permission of infra/gcp that is missing, before a run would miss it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clouds.gcp import right_checks as rights
from spotrun.clouds.gcp.account_checks import ACT_AS
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.doctor import GcpDoctor
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.doctor.finding import Finding, Verdict
from spotrun.spec.model import DEEP_LEARNING_IMAGE, ResourcesSpec
from tests.support.gcp_account import RUNNER_ROLES, STORE, UNDER_CONDITION, GcpAccount
from tests.support.gcp_permissions import ALWAYS, OPTIONAL
from tests.support.gcp_templates import permissions
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock

ALLOWED = sorted(permissions(*RUNNER_ROLES))
SHARED = "trainer@acme-training.iam.gserviceaccount.com"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def account(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpAccount]:
    with GcpAccount(clock) as found:
        found.reach(monkeypatch, tmp_path)
        yield found


CONFIG = GcpConfig(regions=("us-central1",), image=DEEP_LEARNING_IMAGE)


def findings(clock: ManualClock, service_account: str | None = None) -> list[Finding]:
    config = replace(CONFIG, service_account=service_account)
    wanted = ResourcesSpec().model_copy(update={"cloud": "gcp"})
    return [*GcpDoctor(config, wanted, STORE, clock).findings()]


def naming(permission: str, found: list[Finding]) -> list[Finding]:
    """Those that are not fine and have the word, and not only as a part of another one."""
    told = (each for each in found if each.verdict is not Verdict.OK)
    return [each for each in told if permission in f"{each.detail} {each.hint}".replace(",", " ").split()]


@pytest.mark.parametrize("permission", ALLOWED)
def test_a_permission_that_alone_is_missing_is_named(account: GcpAccount, clock: ManualClock, permission: str) -> None:
    account.allowed.remove(permission)
    found = [each for each in findings(clock) if each.verdict is not Verdict.OK]
    assert any(permission in f"{each.name} {each.detail}" for each in found), permission
    assert account.iam.accounts == {}


def test_where_none_is_missing_none_is_named(account: GcpAccount, clock: ManualClock) -> None:
    found = findings(clock)
    named = {each for each in ALLOWED if naming(each, found)}
    assert named == UNDER_CONDITION, "conditions are not evaluated, so these stay unknown"
    (told,) = [each for each in found if each.name == "terminate"]
    assert told.verdict is Verdict.UNKNOWN


def launched(clock: ManualClock) -> str:
    driver = GcpDriver(replace(CONFIG, instance_types=("g2-standard-4",)), clock)
    offering = next(iter(driver.offerings()))
    uid = "0123456789"
    return driver.launch(requested(offering, run_uri=f"{STORE}/r-{uid}")).instance_id


def test_an_end_that_is_not_allowed_is_found_where_there_is_an_instance_to_ask_about(
    account: GcpAccount, clock: ManualClock
) -> None:
    name = launched(clock)
    (told,) = [each for each in findings(clock) if each.name == rights.END]
    assert told.detail == f"you are allowed to end {name}"
    account.allowed.remove("compute.instances.delete")
    (told,) = [each for each in findings(clock) if each.name == rights.END]
    assert told.verdict is Verdict.FAILED
    assert told.detail == f"you are not allowed to end {name}: this requires compute.instances.delete"
    assert account.project.vm(name).ending == []


def test_an_owner_has_the_rights_that_a_condition_hides(
    account: GcpAccount, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.gcp_account.UNDER_CONDITION", set())
    (told,) = [each for each in findings(clock) if each.name == "terminate"]
    assert told.verdict is Verdict.OK


def test_doctor_checks_the_permissions_that_the_roles_grant() -> None:
    of_project = {*rights.NEEDED, *rights.FOR_ACCOUNTS, *rights.ASIDE, *rights.UNDER_CONDITION}
    assert of_project == permissions("spotrunRunner", "spotrunEnd")
    of_bucket = {*rights.IN_BUCKET, *rights.FOR_FOLDERS, *rights.ASIDE_IN_BUCKET}
    assert of_bucket == permissions("spotrunBucket", "spotrunFolder", "spotrunChange")
    assert {*rights.UNDER_CONDITION} == permissions("spotrunEnd")


def test_runs_that_share_an_account_need_fewer_rights(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed -= {ACT_AS, "iam.serviceAccounts.create", "iam.serviceAccounts.delete", *rights.FOR_FOLDERS}
    email = SHARED
    account.iam.accounts[email] = {"email": email, "name": f"projects/acme-training/serviceAccounts/{email}"}
    (told,) = [each for each in findings(clock, SHARED) if each.verdict is Verdict.FAILED]
    assert told.detail == f"you are not allowed to attach {SHARED} to instances: this requires {ACT_AS}"
    assert f"add-iam-policy-binding {SHARED} --role=roles/iam.serviceAccountUser" in told.hint
    account.allowed_on_accounts.add(ACT_AS)
    assert [each for each in findings(clock, SHARED) if each.verdict is Verdict.FAILED] == []
    assert [each for each in findings(clock) if each.verdict is Verdict.FAILED]


@pytest.mark.parametrize("permission", sorted({*rights.ASIDE}))
def test_missing_optional_permission_is_a_warning(account: GcpAccount, clock: ManualClock, permission: str) -> None:
    account.allowed.remove(permission)
    found = findings(clock)
    assert [each for each in found if each.verdict is Verdict.FAILED] == []
    (told,) = [each for each in naming(f"{permission}", found) if each.name == rights.PROJECT]
    assert told.verdict is Verdict.WARNED
    assert "infra/gcp" in told.hint


def test_each_call_of_the_doctor_is_one_that_the_table_of_permissions_has(
    account: GcpAccount, clock: ManualClock
) -> None:
    account.allowed.add("resourcemanager.projects.getIamPolicy")
    findings(clock)
    assert {each.method for each in account.asked} <= {*ALWAYS, *OPTIONAL}


def test_doctor_checks_the_rights_of_each_resource_in_one_call(account: GcpAccount, clock: ManualClock) -> None:
    findings(clock)
    asked = account.calls("cloudresourcemanager.projects.testIamPermissions")
    assert [len(each.body["permissions"]) for each in asked] == [
        len({*rights.NEEDED, *rights.FOR_ACCOUNTS, *rights.ASIDE, *rights.UNDER_CONDITION})
    ]
    assert len(account.calls("storage.buckets.testIamPermissions")) == 1
