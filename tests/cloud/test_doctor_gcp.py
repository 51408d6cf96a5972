"""`spotrun doctor gcp`: each thing that keeps a project from carrying a run is found before anything is rented."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.doctor import GcpDoctor
from spotrun.clouds.identity_trial import LOOK_AGAIN_S
from spotrun.clouds.patience import CHECK_NETWORK
from spotrun.doctor.finding import Finding, Verdict
from spotrun.errors import AccessDenied, CloudError, QuotaExceeded, SpecInvalid, StoreError
from spotrun.spec.model import DEEP_LEARNING_IMAGE, ResourcesSpec
from spotrun.spec.values import read_accelerators
from tests.support.answering_server import TOKENS, Answer
from tests.support.called_spotrun import Spotrun
from tests.support.doc_pages import blocks, prints
from tests.support.gce_answers import API_DISABLED, BACKEND_ERROR, Refusal, not_found
from tests.support.gce_catalog import PROJECT
from tests.support.gce_lists import Listed
from tests.support.gcp_account import ADA, STORE, GcpAccount
from tests.support.google_login import log_in, log_out
from tests.support.manual_clock import AheadClock, ManualClock
from tests.support.object_stores import BUCKET, RunningServer
from tests.support.repository import JOBS, ROOT
from tests.support.sandbox import Sandbox

CONFIG = GcpConfig(regions=("us-central1",), image=DEEP_LEARNING_IMAGE)
SHARED = f"trainer@{PROJECT}.iam.gserviceaccount.com"
L4, SPOT_L4, ALL_GPUS = "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS", "GPUS_ALL_REGIONS"


@pytest.fixture
def clock() -> ManualClock:
    """Of somebody for whom waiting takes no time."""
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def account(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpAccount]:
    """As infra/gcp makes it, in which the caller is a runner."""
    with GcpAccount(clock) as found:
        found.reach(monkeypatch, tmp_path)
        yield found


def wanted(**facts: Any) -> ResourcesSpec:
    return ResourcesSpec().model_copy(update={"cloud": "gcp", **facts})


def all_findings(
    clock: ManualClock | AheadClock, resources: ResourcesSpec | None = None, store: str | None = STORE, **config: Any
) -> list[Finding]:
    return [*GcpDoctor(replace(CONFIG, **config), resources or wanted(), store, clock).findings()]


def examined(
    clock: ManualClock | AheadClock, resources: ResourcesSpec | None = None, store: str | None = STORE, **config: Any
) -> dict[str, Finding]:
    return {finding.name: finding for finding in all_findings(clock, resources, store, **config)}


def of(verdict: Verdict, found: dict[str, Finding]) -> dict[str, Finding]:
    return {name: each for name, each in found.items() if each.verdict is verdict}


def failures(found: dict[str, Finding]) -> dict[str, Finding]:
    return of(Verdict.FAILED, found)


def test_a_project_as_the_templates_make_it_passes_with_the_roles_of_a_runner(
    account: GcpAccount, clock: ManualClock
) -> None:
    found = examined(clock)
    assert failures(found) == of(Verdict.WARNED, found) == {}
    assert set(of(Verdict.UNKNOWN, found)) == {"terminate", "launch"}
    assert found["identity"].detail == f"{ADA}, in the project {PROJECT}"
    assert "common-cu129" in found["image"].detail
    assert found["image"].detail.endswith("made on 2026-11-01")


def test_nothing_is_launched_and_nothing_is_left(account: GcpAccount, clock: ManualClock) -> None:
    examined(clock)
    assert account.calls("compute.instances.insert") == []
    assert (account.iam.accounts, account.iam.policies) == ({}, {})


def test_every_finding_that_is_not_fine_says_what_to_do(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed.clear()
    account.allowed.add("compute.projects.get")
    account.iam.bucket |= {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    for finding in all_findings(clock, store=None) + all_findings(clock):
        assert finding.hint or finding.verdict is Verdict.OK, finding


# -- who asks, and when ----------------------------------------------------------------------------------------------


def test_doctor_checks_nothing_else_without_a_login(
    account: GcpAccount, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_out(monkeypatch, tmp_path)
    found = examined(clock)
    assert list(found) == ["identity"]
    assert "no login to Google Cloud" in found["identity"].detail
    assert "gcloud auth application-default login" in found["identity"].hint
    assert found["identity"].exit_code == CloudError.exit_code
    assert account.asked == []


def test_expired_login_is_reported_as_expired(
    account: GcpAccount, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.login.login = Answer(400, {"error": "invalid_grant", "error_description": "Token has been revoked."})
    log_in(monkeypatch, tmp_path / "login.json", f"{account.login.url}{TOKENS}")
    found = examined(clock)
    assert list(found) == ["identity"]
    assert "log in again" in found["identity"].hint


def test_login_may_hide_its_address(account: GcpAccount, clock: ManualClock) -> None:
    account.login.answers = [Answer(400, {"error": "invalid_token"})]
    found = examined(clock)
    assert found["identity"].detail == f"somebody whose address this login does not tell, in the project {PROJECT}"
    assert found["identity"].verdict is Verdict.OK


def test_doctor_requests_a_project_where_none_is_named(
    account: GcpAccount, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    found = examined(clock)
    assert list(found) == ["identity"]
    assert "gcp.project" in found["identity"].hint


def test_missing_project_is_reported(account: GcpAccount, clock: ManualClock) -> None:
    found = examined(clock, project="acme-trainings")
    assert list(found) == ["identity"]
    assert "projects/acme-trainings" in found["identity"].detail
    assert "gcp.project" in found["identity"].hint


def test_disabled_api_is_reported_with_the_command_that_enables_it(account: GcpAccount, clock: ManualClock) -> None:
    account.fail("compute.projects.get", API_DISABLED)
    found = examined(clock)
    assert list(found) == ["identity"]
    assert found["identity"].hint == "turn it on: gcloud services enable compute.googleapis.com"


def off(service: str) -> Refusal:
    message = f"The API {service} has not been used in project 123456789012 before or it is disabled."
    return Refusal(403, "forbidden", message, ({"reason": "SERVICE_DISABLED", "metadata": {"service": service}},))


@pytest.mark.parametrize(
    ("method", "service", "name", "verdict"),
    [
        ("iam.projects.serviceAccounts.create", "iam.googleapis.com", "service account", Verdict.FAILED),
        ("storage.buckets.get", "storage.googleapis.com", "bucket", Verdict.FAILED),
        (
            "cloudresourcemanager.projects.testIamPermissions",
            "cloudresourcemanager.googleapis.com",
            "project permissions",
            Verdict.UNKNOWN,
        ),
        ("cloudbilling.services.skus.list", "cloudbilling.googleapis.com", "price list", Verdict.WARNED),
    ],
)
def test_disabled_api_is_reported_by_the_check_that_needs_it(
    account: GcpAccount, clock: ManualClock, method: str, service: str, name: str, verdict: Verdict
) -> None:
    account.fail(method, off(service))
    finding = examined(clock)[name]
    assert finding.verdict is verdict
    assert f"gcloud services enable {service}" in finding.hint


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("compute.projects.get", "identity"),
        ("storage.buckets.get", "bucket"),
        ("iam.projects.serviceAccounts.create", "service account"),
    ],
)
def test_perimeter_that_keeps_a_call_out_is_not_reported_as_a_missing_role(
    account: GcpAccount, clock: ManualClock, method: str, name: str
) -> None:
    words = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: eYhDkfYCu"
    account.fail(method, Refusal(403, "forbidden", words))
    finding = failures(examined(clock))[name]
    assert "eYhDkfYCu" in finding.detail
    assert finding.hint.startswith("call from inside the perimeter")
    assert "role" not in finding.hint


def test_disabled_billing_is_reported(account: GcpAccount, clock: ManualClock) -> None:
    account.fail("compute.projects.get", Refusal(403, "forbidden", "Project acme (#1) has billing disabled."))
    found = examined(clock)
    assert list(found) == ["identity"]
    assert "link a billing account" in found["identity"].hint


def test_a_google_that_is_down_is_no_fault_of_the_project(account: GcpAccount, clock: ManualClock) -> None:
    account.fail("compute.projects.get", BACKEND_ERROR)
    found = examined(clock)["identity"]
    assert "backendError" in found.detail
    assert "the fault may pass" in found.hint


def test_unreachable_google_is_reported_as_a_network_fault(
    account: GcpAccount, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9/"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER", nowhere)
    found = examined(clock)["project permissions"]
    assert found.verdict is Verdict.UNKNOWN
    assert "cannot say what you may do in the project: Google cannot be reached" in found.detail
    assert found.hint == CHECK_NETWORK
    for api in ("COMPUTE", "IAM", "STORAGE"):
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", nowhere)
    found = examined(clock)["identity"]
    assert found.verdict is Verdict.FAILED
    assert "cannot read the project acme-training: Google cannot be reached" in found.detail
    assert found.hint == CHECK_NETWORK


@pytest.mark.parametrize(("ahead_s", "words"), [(100, "ahead of"), (-100, "behind")])
def test_a_clock_that_is_off_is_warned_of(account: GcpAccount, clock: ManualClock, ahead_s: int, words: str) -> None:
    finding = examined(AheadClock(clock, timedelta(seconds=ahead_s)))["gcp clock"]
    assert finding.verdict is Verdict.WARNED
    assert words in finding.detail
    assert "timedatectl" in finding.hint


# -- what surrounds an instance --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image", [f"projects/{PROJECT}/global/images/gone", f"projects/{PROJECT}/global/images/family/gone"]
)
def test_an_image_that_is_not_there_is_found(account: GcpAccount, clock: ManualClock, image: str) -> None:
    finding = failures(examined(clock, image=image))["image"]
    assert image in finding.detail
    assert "gcp.image" in finding.hint


def test_an_image_that_is_larger_than_the_disk_is_found(account: GcpAccount, clock: ManualClock) -> None:
    finding = failures(examined(clock, volume_gib=40))["image"]
    assert "needs 50 GiB" in finding.detail
    assert finding.hint == "set gcp.volume_gb to 50 or more"


def test_misspelled_region_is_reported_with_the_intended_one(account: GcpAccount, clock: ManualClock) -> None:
    found = examined(clock, regions=("us-cetnral1", "us-east1"))
    assert list(failures(found)) == ["regions"]
    assert found["regions"].detail == "Google lists no region called us-cetnral1"
    assert found["regions"].hint == "did you mean us-central1?"
    assert "zone us-east1-b" in found
    assert list(failures(examined(clock, regions=("moon",)))) == ["regions"]


def test_a_subnetwork_that_is_not_there_is_found_in_its_region(account: GcpAccount, clock: ManualClock) -> None:
    found = examined(clock, regions=("us-central1", "us-east1"), subnetwork="mine")
    assert set(failures(found)) == {"network in us-central1", "network in us-east1"}
    assert "infra/gcp" in found["network in us-east1"].hint


def test_subnetwork_without_private_access_is_found_if_instances_have_no_address(
    account: GcpAccount, clock: ManualClock
) -> None:
    found = account.handlers["compute.subnetworks.get"]
    account.handlers["compute.subnetworks.get"] = lambda asked: {**(found(asked) or {}), "privateIpGoogleAccess": False}
    assert failures(examined(clock)) == {}
    finding = failures(examined(clock, external_address=False))["network in us-central1"]
    assert "instances without an external address do not reach Google from the subnetwork spotrun" in finding.detail
    update = "gcloud compute networks subnets update spotrun --region=us-central1 --enable-private-ip-google-access"
    assert finding.hint.endswith(update)


def rule(name: str, **facts: Any) -> dict[str, Any]:
    network = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/spotrun"
    allowed = [{"IPProtocol": "tcp", "ports": ["22"]}]
    found = {
        "name": name,
        "network": network,
        "direction": "INGRESS",
        "allowed": allowed,
        "sourceRanges": ["0.0.0.0/0"],
    }
    return {"kind": "compute#firewall", "id": "1", **found, **facts}


def test_a_rule_that_lets_something_in_is_warned_of(account: GcpAccount, clock: ManualClock) -> None:
    account.methods.firewalls = [rule("ssh-from-anywhere"), rule("ssh-too")]
    finding = examined(clock)["ingress"]
    assert finding.verdict is Verdict.WARNED
    assert finding.detail == "rules let traffic into the network spotrun: ssh-from-anywhere, ssh-too"
    assert "firewall-rules delete" in finding.hint


def test_ssh_through_iap_and_rules_that_let_nothing_in_are_fine(account: GcpAccount, clock: ManualClock) -> None:
    other = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/default"
    account.methods.firewalls = [
        rule("off", disabled=True),
        rule("out", direction="EGRESS"),
        rule("elsewhere", network=other),
    ]
    assert examined(clock)["ingress"].detail == "no rule lets traffic into the network spotrun"
    account.methods.firewalls.append(rule("spotrun-ssh", sourceRanges=["35.235.240.0/20"]))
    finding = examined(clock)["ingress"]
    assert finding.verdict is Verdict.OK
    assert "Identity-Aware Proxy" in finding.detail


# -- the reservation -------------------------------------------------------------------------------------------------


def reserve(account: GcpAccount, machine_type: str, zone: str = "us-central1-a", used: int = 0, **facts: Any) -> None:
    properties = {"machineType": machine_type}
    machines = {"count": "2", "inUseCount": str(used), "instanceProperties": properties}
    row = {"name": "nights", "zone": f"{COMPUTE}/zones/{zone}", "specificReservation": machines, "status": "READY"}
    account.methods.reservations.append(Listed(f"zones/{zone}", {**row, **facts}))


COMPUTE = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"


def reserved(clock: ManualClock, **wish: Any) -> Finding:
    resources = wanted(**{"instance_type": "g2-standard-4", "zone": "us-central1-a", **wish})
    return examined(clock, resources, reservation="nights")["reservation"]


def test_reservation_that_fits_is_fine(account: GcpAccount, clock: ManualClock) -> None:
    reserve(account, "g2-standard-4", used=1)
    finding = reserved(clock)
    assert (finding.verdict, finding.detail) == (
        Verdict.OK,
        "1 of 2 reserved g2-standard-4 in us-central1-a are free",
    )


def test_missing_reservation_is_found_with_the_command_that_makes_it(account: GcpAccount, clock: ManualClock) -> None:
    finding = reserved(clock)
    assert finding.verdict is Verdict.FAILED
    assert finding.detail == f"the project {PROJECT} has no reservation called nights"
    command = f"gcloud compute reservations create nights --project={PROJECT} --zone=us-central1-a"
    assert f"{command} --machine-type=g2-standard-4 --vm-count=1" in finding.hint


@pytest.mark.parametrize("place", [("g2-standard-8", "us-central1-a"), ("g2-standard-4", "us-central1-b")])
def test_reservation_of_another_place_is_found(account: GcpAccount, clock: ManualClock, place: tuple[str, str]) -> None:
    reserve(account, *place)
    finding = reserved(clock)
    assert finding.verdict is Verdict.FAILED
    assert finding.detail == f"nights reserves {place[0]} in {place[1]}, which the job does not want"
    assert f"instance_type: {place[0]} and zone: {place[1]}" in finding.hint


def test_reservation_that_is_used_up_or_covers_one_zone_of_several_is_warned_of(
    account: GcpAccount, clock: ManualClock
) -> None:
    reserve(account, "g2-standard-4", used=2)
    finding = reserved(clock)
    assert finding.verdict is Verdict.WARNED
    assert "reservations update nights" in finding.hint
    finding = reserved(clock, zone=None)
    assert finding.verdict is Verdict.WARNED
    assert "on-demand launches elsewhere are refused, as of g2-standard-4 in us-central1-b" in finding.detail


def test_reservation_does_not_matter_to_spot(account: GcpAccount, clock: ManualClock) -> None:
    assert "reservation" not in examined(clock, wanted(spot_policy="spot"), reservation="nights")


def test_reservation_that_may_not_be_read_is_unknown(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed.remove("compute.reservations.list")
    finding = reserved(clock)
    assert finding.verdict is Verdict.UNKNOWN
    assert "infra/gcp" in finding.hint


# -- what there is to rent -------------------------------------------------------------------------------------------


def test_each_zone_says_what_it_has(account: GcpAccount, clock: ManualClock) -> None:
    found = examined(clock, wanted(instance_type="g2-standard-4"), regions=("us-central1", "us-east1"))
    zones = {name.removeprefix("zone "): each.detail for name, each in found.items() if name.startswith("zone ")}
    assert zones == dict.fromkeys(
        ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "us-east1-c"), "g2-standard-4"
    )


def test_a_region_that_has_none_of_it_is_warned_of(account: GcpAccount, clock: ManualClock) -> None:
    resources = wanted(instance_type="a3-highgpu-8g", accelerators=read_accelerators("H100:8"))
    found = examined(clock, resources, regions=("us-central1", "us-east1"))
    assert found["zone us-central1-a"].detail == "a3-highgpu-8g"
    assert found["zones of us-east1"].verdict is Verdict.WARNED
    assert "a3-highgpu-8g" in found["zones of us-east1"].detail


def test_unavailable_accelerator_is_reported_with_the_available_ones(account: GcpAccount, clock: ManualClock) -> None:
    finding = failures(examined(clock, wanted(accelerators=read_accelerators("H999:1"))))["capacity"]
    assert "H999:1" in finding.detail
    assert all(f"{name}:" in finding.hint for name in ("A100", "H100", "L4"))


def test_types_that_the_job_names_are_the_only_ones(account: GcpAccount, clock: ManualClock) -> None:
    found = examined(clock, instance_types=("g2-standard-8",))
    assert found["zone us-central1-a"].detail == "g2-standard-8"
    finding = failures(examined(clock, instance_types=("g3-standard-8",)))["capacity"]
    assert "g3-standard-8" in finding.detail
    assert finding.hint == "did you mean g2-standard-8?"


def test_spot_prices_come_from_the_past_that_google_tells(account: GcpAccount, clock: ManualClock) -> None:
    finding = examined(clock, wanted(instance_type="g2-standard-4"))["spot prices"]
    assert finding.detail == "g2-standard-4 in us-central1: $0.3973 an hour, in a year $0.3973 to $0.3973"


def test_a_past_that_google_does_not_tell_is_a_warning(account: GcpAccount, clock: ManualClock) -> None:
    account.fail("compute.advice.capacityHistory", not_found("advice"))
    finding = examined(clock, wanted(instance_type="g2-standard-4"))["spot prices"]
    assert finding.verdict is Verdict.WARNED
    assert "advice" in finding.detail
    assert "compute.advice.capacityHistory" in finding.hint


# -- quotas ----------------------------------------------------------------------------------------------------------


def quotas(found: dict[str, Finding]) -> dict[str, Finding]:
    return {name.removeprefix("quota "): each for name, each in found.items() if name.startswith("quota ")}


def test_quotas_are_those_of_spot_of_on_demand_and_of_all_regions(account: GcpAccount, clock: ManualClock) -> None:
    found = quotas(examined(clock))
    assert set(found) == {f"{SPOT_L4} in us-central1", f"{L4} in us-central1", ALL_GPUS}
    assert {each.detail for each in found.values()} == {
        "8, 0 in use; g2-standard-4 takes 1",
        "16, 0 in use; g2-standard-4 takes 1",
    }


def test_spot_takes_from_the_quota_of_on_demand_where_none_of_its_own_was_granted(
    account: GcpAccount, clock: ManualClock
) -> None:
    account.project.set_quota(SPOT_L4, 0)
    found = quotas(examined(clock, wanted(spot_policy="spot")))
    assert set(found) == {f"{L4} in us-central1", ALL_GPUS}
    assert {each.verdict for each in found.values()} == {Verdict.OK}


def test_a_quota_of_nothing_is_a_warning_while_another_market_is_open(account: GcpAccount, clock: ManualClock) -> None:
    account.project.set_quota(L4, 0)
    found = examined(clock)
    assert failures(found) == {}
    finding = found[f"quota {L4} in us-central1"]
    assert finding.verdict is Verdict.WARNED
    assert "iam-admin/quotas" in finding.hint
    account.project.set_quota(SPOT_L4, 0, "us-east1")
    assert failures(examined(clock, regions=("us-central1", "us-east1"))) == {}


def test_quotas_that_let_nothing_start_are_a_failure(account: GcpAccount, clock: ManualClock) -> None:
    account.project.set_quota(L4, 0)
    account.project.set_quota(SPOT_L4, 0)
    found = failures(examined(clock))
    assert set(found) == {f"quota {L4} in us-central1"}
    assert found[f"quota {L4} in us-central1"].exit_code == QuotaExceeded.exit_code


def test_a_new_project_has_no_gpus_in_any_region(account: GcpAccount, clock: ManualClock) -> None:
    account.project.set_quota(ALL_GPUS, 0)
    assert set(failures(examined(clock, regions=("us-central1", "us-east1")))) == {f"quota {ALL_GPUS}"}


def test_a_quota_of_one_instance_leaves_no_standby(account: GcpAccount, clock: ManualClock) -> None:
    account.project.set_quota(SPOT_L4, 1)
    finding = quotas(examined(clock))[f"{SPOT_L4} in us-central1"]
    assert finding.verdict is Verdict.WARNED
    assert "no standby" in finding.detail


def test_a_quota_that_google_does_not_tell_is_unknown_and_not_zero(account: GcpAccount, clock: ManualClock) -> None:
    resources = wanted(instance_type="a3-highgpu-8g", accelerators=read_accelerators("H100:8"), spot_policy="on-demand")
    finding = quotas(examined(clock, resources))["NVIDIA_H100_GPUS in us-central1"]
    assert finding.verdict is Verdict.UNKNOWN
    assert "does not report this quota" in finding.detail
    assert "iam-admin/quotas" in finding.hint


def test_a_quota_that_is_too_small_is_a_warning_while_that_of_the_other_market_is_unknown(
    account: GcpAccount, clock: ManualClock
) -> None:
    account.project.set_quota("PREEMPTIBLE_NVIDIA_H100_GPUS", 4)
    resources = wanted(instance_type="a3-highgpu-8g", accelerators=read_accelerators("H100:8"))
    found = examined(clock, resources)
    assert failures(found) == {}
    assert quotas(found)["PREEMPTIBLE_NVIDIA_H100_GPUS in us-central1"].verdict is Verdict.WARNED


def test_unreadable_quotas_are_unknown(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed.remove("compute.regions.list")
    found = examined(clock)
    assert found["regions"].verdict is Verdict.UNKNOWN
    assert quotas(found)[f"{L4} in us-central1"].verdict is Verdict.UNKNOWN
    assert failures(found) == {}


# -- accounts --------------------------------------------------------------------------------------------------------


def test_an_account_that_google_does_not_know_yet_is_waited_for(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.new_accounts_are_known = False
    knowing = Knowing(account, LOOK_AGAIN_S * 2)
    account.project.clock = knowing
    found = all_findings(knowing)
    (told,) = [each for each in found if each.verdict is Verdict.WAITS]
    assert told.name == "service account"
    assert "20s at most" in told.detail
    assert not [each for each in found if each.verdict is Verdict.FAILED]
    assert account.iam.accounts == {}


class Knowing(ManualClock):
    """Buckets know all accounts once so many seconds were waited."""

    def __init__(self, account: GcpAccount, after: float) -> None:
        super().__init__(datetime.now(UTC))
        self._account, self._left = account, after

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._left -= seconds
        self._account.iam.new_accounts_are_known = self._left <= 0


def test_an_account_that_never_comes_to_be_known_is_found_and_removed(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.new_accounts_are_known = False
    found = failures(examined(clock))
    assert set(found) == {"service account"}
    assert account.iam.accounts == {}


def test_organization_that_forbids_new_accounts_is_quoted(account: GcpAccount, clock: ManualClock) -> None:
    constraint = "constraints/iam.disableServiceAccountCreation"
    detail = {"violations": [{"type": constraint}]}
    refusal = Refusal(400, "failedPrecondition", "Service account creation is not allowed on this project.", (detail,))
    account.fail("iam.projects.serviceAccounts.create", refusal)
    finding = failures(examined(clock))["service account"]
    assert constraint in finding.detail
    assert "gcp.service_account" in finding.hint
    assert "exception" in finding.hint


def test_a_project_that_is_full_of_accounts_is_found(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.accounts_max = 0
    finding = failures(examined(clock))["service account"]
    assert finding.exit_code == QuotaExceeded.exit_code
    assert "reap --cloud gcp" in finding.hint


def others(account: GcpAccount, *names: str) -> None:
    for name in names:
        email = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        account.iam.accounts[email] = {"email": email, "name": f"projects/{PROJECT}/serviceAccounts/{email}"}


def test_an_account_for_all_runs_is_looked_at_instead(account: GcpAccount, clock: ManualClock) -> None:
    finding = failures(examined(clock, service_account=SHARED))["service account"]
    assert SHARED in finding.detail
    assert "gcp.service_account" in finding.hint
    others(account, "trainer")
    found = examined(clock, service_account=SHARED)
    assert found["service account"].detail.startswith(f"{SHARED} serves all runs")
    assert found["other accounts"].verdict is Verdict.OK
    assert account.calls("iam.projects.serviceAccounts.create") == []


def test_account_for_all_runs_that_may_not_write_in_the_bucket_is_warned_of(
    account: GcpAccount, clock: ManualClock
) -> None:
    """The caller's own rights in the bucket do not help instances."""
    others(account, "trainer")
    finding = examined(clock, service_account=SHARED)["store of instances"]
    assert finding.verdict is Verdict.WARNED
    assert f"gs://{BUCKET} grants no role to {SHARED}" in finding.detail
    assert f"add-iam-policy-binding gs://{BUCKET} --member=serviceAccount:{SHARED}" in finding.hint
    member = {"members": [f"serviceAccount:{SHARED}"]}
    account.iam.of_bucket["bindings"].append({"role": "roles/storage.objectViewer", **member})
    assert examined(clock, service_account=SHARED)["store of instances"].verdict is Verdict.WARNED
    account.iam.of_bucket["bindings"].append({"role": "roles/storage.objectUser", **member})
    assert examined(clock, service_account=SHARED)["store of instances"].verdict is Verdict.OK
    account.allowed.remove("storage.buckets.getIamPolicy")
    finding = examined(clock, service_account=SHARED)["store of instances"]
    assert finding.verdict is Verdict.WARNED
    assert "whether instances may use the store is unknown" in finding.detail


def test_other_accounts_with_roles_are_warned_of(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed.add("resourcemanager.projects.getIamPolicy")
    others(account, "billing-robot", "harmless", "switched-off", "spotrun-0123456789")
    account.iam.accounts[f"switched-off@{PROJECT}.iam.gserviceaccount.com"]["disabled"] = True
    member = f"serviceAccount:billing-robot@{PROJECT}.iam.gserviceaccount.com"
    account.grants = [{"role": "roles/editor", "members": [member, "user:ada@example.com"]}]
    finding = examined(clock)["other accounts"]
    assert finding.verdict is Verdict.WARNED
    assert finding.detail.endswith(f"the roles of billing-robot@{PROJECT}.iam.gserviceaccount.com")
    assert "a separate project" in finding.hint
    account.grants.clear()
    assert examined(clock)["other accounts"].detail == "2 other service accounts, without a role in the project"


def test_other_accounts_with_unreadable_roles_are_unknown(account: GcpAccount, clock: ManualClock) -> None:
    others(account, "robot")
    finding = examined(clock)["other accounts"]
    assert finding.verdict is Verdict.UNKNOWN
    assert f"1 other service account, with roles or without: robot@{PROJECT}.iam" in finding.detail
    assert f"ask an owner of the project for `gcloud projects get-iam-policy {PROJECT} " in finding.hint
    assert "resourcemanager.projects.getIamPolicy" in finding.detail


# -- the bucket ------------------------------------------------------------------------------------------------------


def test_a_bucket_that_keeps_what_is_deleted_is_warned_of(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.bucket |= {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    finding = examined(clock)["soft delete"]
    assert finding.verdict is Verdict.WARNED
    assert "7 more days" in finding.detail
    assert finding.hint == f"gcloud storage buckets update gs://{BUCKET} --clear-soft-delete"


def test_a_bucket_that_lets_nothing_be_deleted_is_found(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.bucket |= {"retentionPolicy": {"retentionPeriod": "86400"}}
    assert "--clear-retention-period" in failures(examined(clock))["retention"].hint


def test_a_bucket_without_uniform_access_is_found(account: GcpAccount, clock: ManualClock) -> None:
    account.iam.uniform = False
    found = failures(examined(clock))
    assert "--uniform-bucket-level-access" in found["bucket access"].hint
    others(account, "trainer")
    assert failures(examined(clock, service_account=SHARED)) == {}


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "words"),
    [
        ({"billing": {"requesterPays": True}}, "requester pays", Verdict.FAILED, "--no-requester-pays"),
        ({"ipFilter": {"mode": "Enabled"}}, "ip filter", Verdict.WARNED, "--clear-ip-filter"),
        ({"encryption": {"defaultKmsKeyName": "projects/p/k"}}, "bucket key", Verdict.OK, "projects/p/k"),
        ({"storageClass": "COLDLINE"}, "storage class", Verdict.WARNED, "until it is 90 days old"),
        ({"hierarchicalNamespace": {"enabled": True}}, "hierarchical namespace", Verdict.WARNED, "empty folders"),
    ],
)
def test_setting_of_the_bucket_that_costs_or_refuses_is_named(
    account: GcpAccount, clock: ManualClock, facts: dict[str, Any], name: str, verdict: Verdict, words: str
) -> None:
    account.iam.bucket |= {"storageClass": "STANDARD", "ipFilter": {"mode": "Disabled"}, **facts}
    finding = examined(clock)[name]
    assert finding.verdict is verdict
    assert words in f"{finding.detail} {finding.hint}"


def test_a_bucket_that_is_not_there_is_found(account: GcpAccount, clock: ManualClock) -> None:
    found = failures(examined(clock, store="gs://nobodys/runs"))
    assert [*found] == ["bucket"]
    assert found["bucket"].detail == "there is no bucket gs://nobodys"
    assert "infra/gcp" in found["bucket"].hint
    account.allowed.discard("compute.instances.create")
    shared = examined(clock, store="gs://nobodys/runs", service_account=SHARED)
    assert [*failures(shared)] == ["bucket", "project permissions", "service account"]
    assert "store of instances" not in shared


def test_regions_that_are_far_from_the_bucket_are_warned_of(account: GcpAccount, clock: ManualClock) -> None:
    finding = examined(clock, regions=("us-central1", "us-east1"))["bucket location"]
    assert finding.verdict is Verdict.WARNED
    assert finding.detail == "the bucket is in us-central1, and instances may be in us-east1"
    account.iam.bucket |= {"location": "US", "locationType": "multi-region"}
    assert "bucket location" not in examined(clock, regions=("us-central1", "us-east1"))


def test_without_a_bucket_it_is_not_known_whether_a_run_could_have_an_account(
    account: GcpAccount, clock: ManualClock
) -> None:
    for store in (None, "/home/ada/runs", "s3://bucket/runs"):
        found = examined(clock, store=store)
        assert found["bucket"].verdict is Verdict.UNKNOWN
        assert "service account" not in found
        assert "--store" in found["bucket"].hint


def test_rights_that_are_missing_fail_with_the_exit_code_of_a_denial(account: GcpAccount, clock: ManualClock) -> None:
    account.allowed -= {"compute.instances.create", "storage.objects.create"}
    found = failures(examined(clock))
    assert found["project permissions"].detail == "missing rights of the project: compute.instances.create"
    assert found["bucket permissions"].detail == f"missing rights of gs://{BUCKET}: storage.objects.create"
    assert found["project permissions"].exit_code == AccessDenied.exit_code


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch) -> str:
    """Its objects are in a real server of the protocol."""
    server = servers("gs")
    server.reach(monkeypatch)
    return server.new_prefix()


@pytest.fixture
def called(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    """The commands in this process, with the surroundings of the sandbox."""
    return Spotrun(monkeypatch, capsys)


def test_the_command_looks_at_the_project_and_at_the_bucket(account: GcpAccount, sandbox: Sandbox, store: str) -> None:
    told = sandbox.call("doctor", "gcp", "--accelerators", "L4:1", "--store", store)
    assert f"ok      identity: {ADA}, in the project {PROJECT}\n" in told
    assert "ok      zone us-central1-c: g2-standard-4, g2-standard-8\n" in told
    assert "ok      service account: a run can have a separate one" in told
    assert "ok      creation: " in told
    assert f"ok      store: {store}\n" in told
    report = sandbox.call_json("doctor", "gcp", "--store", store)
    assert report["ok"]
    assert {"project permissions", "bucket permissions", "soft delete"} <= {check["name"] for check in report["checks"]}


def test_a_job_says_what_is_wanted_and_flags_win(
    account: GcpAccount, sandbox: Sandbox, called: Spotrun, store: str
) -> None:
    job = sandbox.folder / "examined.yaml"
    job.write_text(
        f"workdir: {JOBS}\ntrain: {{script: quick.py}}\ncheckpoint: {{uri: '{store}'}}\n"
        "resources: {cloud: gcp, accelerators: 'A100:1'}\ngcp: {regions: [us-central1, us-east1]}\n"
    )
    told = called.call("doctor", "gcp", job)
    assert "ok      zone us-central1-a: a2-highgpu-1g\n" in told
    assert "ok      network in us-east1: " in told
    told = called.call("doctor", "gcp", job, "--accelerators", "L4:1", "--region", "us-east1")
    assert "ok      zone us-east1-c: g2-standard-4, g2-standard-8\n" in told
    assert "us-central1-a" not in told


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("budget: {max_usd: 0.001}", "nothing could be launched: the rest of the budget does not pay for another"),
        ("report: {baseline: g2-standrad-4}", "gcp does not offer g2-standrad-4 in the job's regions"),
    ],
)
def test_a_job_that_would_rent_nothing_is_not_ready(
    account: GcpAccount, sandbox: Sandbox, called: Spotrun, store: str, key: str, why: str
) -> None:
    job = sandbox.folder / "examined.yaml"
    job.write_text(
        f"workdir: {JOBS}\ntrain: {{script: quick.py}}\ncheckpoint: {{uri: '{store}'}}\n"
        f"resources: {{cloud: gcp, accelerators: 'L4:1'}}\ngcp: {{regions: [us-central1]}}\n{key}\n"
    )
    told = called.call("doctor", "gcp", job, code=SpecInvalid.exit_code)
    assert f"FAILED  job: {why}" in " ".join(told.split(" "))
    assert "try: first, job: " in told


def test_a_project_that_carries_no_run_is_an_error(
    account: GcpAccount, sandbox: Sandbox, called: Spotrun, store: str
) -> None:
    account.allowed.remove("compute.instances.create")
    told = called.call("doctor", "gcp", "--store", store, code=AccessDenied.exit_code)
    assert "FAILED  project permissions: missing rights of the project: compute.instances.create\n" in told
    assert "error: checks failed: project permissions" in told
    assert "try: first, project permissions: grant the roles of infra/gcp" in told


def test_the_page_shows_what_was_printed(account: GcpAccount, sandbox: Sandbox, called: Spotrun, store: str) -> None:
    account.allowed.remove("compute.instances.setLabels")
    account.project.set_quota(ALL_GPUS, 0)
    account.methods.firewalls = [rule("default-allow-ssh")]
    account.iam.bucket |= {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    told = called.call("doctor", "gcp", "--accelerators", "L4:1", "--store", store, code=QuotaExceeded.exit_code)
    commands = (command for block in blocks(ROOT / "docs" / "gcp.md") for command in block.commands())
    (shown,) = (output for command, output in commands if command == "spotrun doctor gcp JOB.yaml" and output)
    assert prints(shown, told)


def test_a_folder_of_this_machine_is_no_store_for_instances_on_gcp(
    account: GcpAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    told = called.call("doctor", "gcp", code=StoreError.exit_code)
    assert "unknown bucket: no bucket is named" in told
    assert "gs://BUCKET/runs" in told
