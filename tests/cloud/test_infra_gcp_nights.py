"""infra/gcp/nights: the account of nights has a runner's rights, and who calls it may do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.gcp_templates import (
    FOLDER,
    NIGHTS,
    REFERENCE,
    TERRAFORM,
    Evaluated,
    Resource,
    conditions,
    evaluated,
    named,
    permissions,
    resources,
    roles,
    written,
)
from tests.support.google_nights import NEEDED
from tests.support.provider_schema import schema

PROJECT, ADA = "acme-training", "user:ada@example.com"
VARIABLES = {"project": PROJECT, "installers": [ADA]}
NIGHT, CLOCK = (f"serviceAccount:spotrun-{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("night", "clock"))
OF_A_RUNNER = {
    ("project", "spotrunRunner"): None,
    ("project", "spotrunEnd"): conditions()["spotrunEnd"],
    ("bucket", "spotrunBucket"): None,
    ("bucket", "spotrunChange"): conditions()["spotrunChange"],
    ("bucket", "spotrunFolder"): conditions()["spotrunFolder"],
}
needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="there is no terraform on the PATH")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[Evaluated]:
    folder = tmp_path_factory.mktemp("gcp") / "nights"
    folder.mkdir()
    return evaluated(folder, VARIABLES, NIGHTS)[0]


def granted(planned: list[Evaluated], member: str) -> Iterator[tuple[tuple[str, str], object]]:
    for each in planned:
        if each.values.get("member") == member:
            where = next(
                (each.values[key] for key in ("service_account_id", "bucket") if key in each.values), "project"
            )
            where = "bucket" if where == f"spotrun-{PROJECT}" else where.rpartition("/")[2]
            condition = each.values.get("condition")
            yield (where, each.values["role"].rpartition("/")[2]), condition[0] if condition else None


@needs_terraform
def test_the_account_of_nights_has_a_runners_roles_under_the_same_conditions_and_may_switch_its_call(
    planned: list[Evaluated],
) -> None:
    found = dict(granted(planned, NIGHT))
    assert found.pop(("project", "spotrunNight")) is None
    assert found == OF_A_RUNNER


@needs_terraform
def test_scheduler_account_may_only_invoke_the_service(planned: list[Evaluated]) -> None:
    assert dict(granted(planned, CLOCK)) == {("project", "run.invoker"): None}


@needs_terraform
def test_installer_may_assign_both_service_accounts_and_impersonate_the_scheduler(planned: list[Evaluated]) -> None:
    night, clock = (each.removeprefix("serviceAccount:") for each in (NIGHT, CLOCK))
    assert dict(granted(planned, ADA)) == {
        ("project", "spotrunNightInstall"): None,
        (night, "iam.serviceAccountUser"): None,
        (clock, "iam.serviceAccountUser"): None,
        (clock, "iam.serviceAccountOpenIdTokenCreator"): None,
    }


@needs_terraform
def test_no_other_member_has_a_grant(planned: list[Evaluated]) -> None:
    assert {each.values["member"] for each in planned if "member" in each.values} == {NIGHT, CLOCK, ADA}


def test_the_roles_of_nights_have_what_their_calls_need_and_no_more() -> None:
    assert {each["title"] for each in roles(NIGHTS).values()} == {"spotrun night", "spotrun night install"}
    for role, methods in NEEDED.items():
        assert permissions(role) == {each for method in methods.values() for each in method}


@pytest.mark.parametrize("name", roles(NIGHTS))
def test_no_role_of_nights_reaches_beyond_them(name: str) -> None:
    assert all(re.match(r"(cloudscheduler\.(jobs|locations)|run\.services)\.\w+$", each) for each in permissions(name))
    assert not [each for each in permissions(name) if each.endswith("IamPolicy")]
    assert len(roles(NIGHTS)[name]["description"]) <= 256


def test_each_reference_has_its_target_and_each_variable_its_description() -> None:
    text = (NIGHTS / "main.tf").read_text()
    assert set(re.findall(r"\bvar\.(\w+)", text)) == set(named("variable", NIGHTS))
    assert set(re.findall(r"\blocal\.(\w+)", text)) == {name for each in written(NIGHTS)["locals"] for name in each}
    for kind, name, _, asked in REFERENCE.findall(text):
        assert Resource(kind, name) in resources(NIGHTS)
        assert not asked or asked in schema()[kind]["told"]
    assert all(each["description"] and "type" in each for each in named("variable", NIGHTS).values())
    readme = (FOLDER / "README.md").read_text().partition("## Nights")[2]
    for name in (*named("variable", NIGHTS), *roles(NIGHTS)):
        assert f"`{name}`" in readme
