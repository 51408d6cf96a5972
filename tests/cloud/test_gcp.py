"""The driver of Compute Engine beside a project that Google's own description checks. G1 to G14: see failures.md."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace

from spotrun.clouds.error_kinds import BadImage, BadSurroundings, CredentialsExpired, Unsupported
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.clouds.gcp.error_codes import StockedOut
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    LaunchTokenSpent,
    LoginNeeded,
    QuotaExceeded,
)
from spotrun.instance import EndedBy, InstanceState
from spotrun.offering import RENTED, CapacityType
from tests.support import gce_answers as answers
from tests.support.gce_calls import wished
from tests.support.gce_launches import CONFIG, REGION, RUN, offered, reach, request, running
from tests.support.gcp_project import RUNNER
from tests.support.google_cloud import Lost
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import AheadClock, ManualClock

A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
INSERT, DELETE, LIST = "compute.instances.insert", "compute.instances.delete", "compute.instances.aggregatedList"
OPERATIONS = "compute.globalOperations.aggregatedList"
L4 = "g2-standard-4"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def gce(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    with GoogleServer(clock) as server:
        reach(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def cloud(gce: GoogleServer, clock: ManualClock) -> GcpDriver:
    return GcpDriver(CONFIG, clock)


def foreign(gce: GoogleServer, names: Iterable[str], labels: Mapping[str, str]) -> None:
    """Instances that somebody else has made in the project."""
    for metric in ("INSTANCES", "CPUS", "DISKS_TOTAL_GB"):
        gce.project.set_quota(metric, 10**9, REGION)
    gce.project.set_quota("CPUS_ALL_REGIONS", 10**9)
    for name in names:
        plain = {"provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}
        gce.project.insert(A, wished(name, "e2-medium", plain, labels=dict(labels)), "somebody", None)


def alive(cloud: GcpDriver) -> list[str]:
    return [each.instance_id for each in cloud.instances() if each.alive]


# -- launching ---------------------------------------------------------------------------------------------------------


def test_g1_an_instance_that_its_launch_found_there_already_is_the_one_that_is_wanted_and_not_ended(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.project.timings.boot = timedelta()
    gce.fail(INSERT, answers.Failure("RESOURCE_ALREADY_EXISTS", "it is there", 409, keeps=True))
    launched = cloud.launch(request(offered(cloud)))
    clock.advance(120)
    assert alive(cloud) == [launched.instance_id]


@pytest.mark.parametrize("code", ["INTERNAL_ERROR", "QUOTA_EXCEEDED", "SERVICE_ACCOUNT_ACCESS_DENIED"])
def test_g1_p24_an_instance_that_starts_although_its_launch_failed_is_kept(
    code: str, gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.project.timings.boot = timedelta()
    gce.fail(INSERT, answers.Failure(code, "oops", 500, keeps=True))
    launched = cloud.launch(request(offered(cloud)))
    clock.advance(120)
    assert alive(cloud) == [launched.instance_id]


def test_g1_an_instance_whose_launch_fails_after_it_was_found_capacity_is_listed(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.fail(INSERT, answers.Failure("INTERNAL_ERROR", "oops", 500, keeps=True))
    launched = cloud.launch(request(offered(cloud)))
    clock.advance(120)
    assert alive(GcpDriver(CONFIG, clock)) == [launched.instance_id]


def test_g1_a_failed_launch_that_cannot_be_deleted_reports_its_own_failure(gce: GoogleServer, cloud: GcpDriver) -> None:
    gce.project.stock_out(A, L4, "SPOT")
    gce.fail(DELETE, answers.forbidden("compute.instances.delete", "projects/acme-training"), times=None)
    with pytest.raises(StockedOut, match=r"enough resources.*was not ended: .*compute\.instances\.delete"):
        cloud.launch(request(offered(cloud)))


def test_g2_p22_p23_a_stockout_comes_after_an_accepted_insert_and_is_no_success(
    gce: GoogleServer, cloud: GcpDriver
) -> None:
    gce.project.stock_out(A, L4, "SPOT")
    with pytest.raises(InsufficientCapacity) as raised:
        cloud.launch(request(offered(cloud)))
    assert "does not have enough resources" in raised.value.message
    assert not [each for each in cloud.instances() if each.alive]


def test_g6_after_a_stockout_the_driver_offers_the_zones_that_google_names(gce: GoogleServer, cloud: GcpDriver) -> None:
    for zone in (A, B):
        gce.project.stock_out(zone, L4, "SPOT")
    with pytest.raises(StockedOut) as raised:
        cloud.launch(request(offered(cloud)))
    assert raised.value.elsewhere == (C,)
    spot = {each.zone for each in cloud.offerings() if each.capacity_type is CapacityType.SPOT}
    assert spot == {C}
    assert {each.zone for each in cloud.offerings() if each.capacity_type is CapacityType.ON_DEMAND} == {A, B, C}


def test_a_stockout_that_names_no_zone_leaves_nothing_out(gce: GoogleServer, cloud: GcpDriver) -> None:
    for zone in (A, B, C):
        gce.project.stock_out(zone, L4, "SPOT")
    with pytest.raises(InsufficientCapacity):
        cloud.launch(request(offered(cloud)))
    assert {each.zone for each in cloud.offerings() if each.capacity_type is CapacityType.SPOT} == {A, B, C}


def test_g11_an_insert_whose_answer_was_lost_is_found_by_its_request(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.fail(INSERT, Lost, times=2)
    launched = cloud.launch(request(offered(cloud)))
    assert alive(cloud) == [launched.instance_id]
    assert len({each.query["requestId"] for each in gce.calls(INSERT)}) == 1


def test_a_launch_is_found_by_a_driver_that_never_saw_it(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    asked = request(offered(cloud))
    first = running(cloud, clock, asked)
    assert GcpDriver(CONFIG, clock).launch(asked).instance_id == first.instance_id
    assert len(gce.calls(INSERT)) == 1


def test_g8_the_name_of_an_ended_instance_is_not_used_again(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    asked = request(offered(cloud))
    ended = running(cloud, clock, asked)
    cloud.terminate(ended.instance_id)
    clock.advance(120)
    with pytest.raises(LaunchTokenSpent):
        GcpDriver(CONFIG, clock).launch(asked)
    assert gce.project.vms == {}


def test_g8_while_an_instance_stops_its_launch_is_that_instance(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    asked = request(offered(cloud))
    ended = running(cloud, clock, asked)
    cloud.terminate(ended.instance_id)
    clock.advance(2)
    again = cloud.launch(asked)
    assert (again.instance_id, again.state) == (ended.instance_id, InstanceState.STOPPING)
    assert len(gce.calls(INSERT)) == 1


def test_instance_name_used_by_another_is_not_taken_for_ours(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.fail(INSERT, answers.already_exists("projects/acme-training/zones/us-central1-a/instances/x"), times=None)
    with pytest.raises(CloudUnavailable, match="Google does not list the instance yet"):
        cloud.launch(request(offered(cloud)))


def test_g10_where_a_notice_of_two_minutes_is_refused_the_launch_does_without_and_remembers(
    gce: GoogleServer, cloud: GcpDriver
) -> None:
    refusal = answers.invalid("scheduling.preemptionNoticeDuration", "120s", "It is not available in this project.")
    gce.fail(INSERT, refusal)
    cloud.launch(request(offered(cloud)))
    cloud.launch(request(offered(cloud), launch=8))
    asked = [each.body["scheduling"].get("preemptionNoticeDuration") for each in gce.calls(INSERT)]
    assert asked == [{"seconds": "120"}, None, None]


def test_g13_a_launch_makes_nothing_but_its_instance(gce: GoogleServer, cloud: GcpDriver, clock: ManualClock) -> None:
    ended = running(cloud, clock)
    cloud.terminate(ended.instance_id)
    changes = {each.method for each in gce.asked if each.method.endswith((".insert", ".create", ".patch", ".delete"))}
    assert changes == {INSERT, DELETE}


def test_g14_every_instance_ends_at_its_limit_without_anybody(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    for number, capacity_type in enumerate(RENTED, 1):
        running(cloud, clock, request(offered(cloud, capacity_type), number, timedelta(hours=1)))
    clock.advance(3600 + 120)
    gce.project.settle()
    assert gce.project.vms == {}
    assert gce.project.disks == {}
    assert {each.ended_by for each in GcpDriver(CONFIG, clock).instances()} == {EndedBy.TIME_TO_LIVE}


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_g5_a_missing_permission_is_reported_with_the_role_that_grants_it(gce: GoogleServer, cloud: GcpDriver) -> None:
    asked = request(offered(cloud))
    gce.fail(INSERT, answers.forbidden("compute.instances.create", "projects/acme-training"), times=None)
    with pytest.raises(AccessDenied, match=r"compute\.instances\.create") as raised:
        cloud.launch(asked)
    assert "infra/gcp/README.md" in (raised.value.hint or "")
    assert len(gce.calls(INSERT)) == 1


def test_g7_a_full_quota_names_its_limit_and_is_retried_only_while_our_instance_may_hold_it(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.project.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, REGION)
    uses = running(cloud, clock)
    with pytest.raises(QuotaExceeded, match=r"limit 1"):
        cloud.launch(request(offered(cloud), launch=8))
    cloud.terminate(uses.instance_id)
    clock.advance(5)
    gce.fail(INSERT, answers.quota_exceeded("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, REGION))
    with pytest.raises(CloudUnavailable, match="just ended may still count"):
        cloud.launch(request(offered(cloud), launch=9))


def test_p25_the_most_permanent_of_several_faults_counts(gce: GoogleServer, cloud: GcpDriver) -> None:
    gce.fail(INSERT, answers.account_denied("run@p.iam.gserviceaccount.com"))
    with pytest.raises(IdentityUnknown):
        cloud.launch(request(offered(cloud)))


def test_a_type_that_a_zone_does_not_have_is_not_offered_there_for_a_while(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    asked = request(offered(cloud))
    path = "projects/acme-training/zones/us-central1-a/machineTypes/g2-standard-4"
    gce.fail(INSERT, answers.bad_request(f"Machine type with name '{L4}' does not exist in zone '{A}': {path}"))
    with pytest.raises(Unsupported):
        cloud.launch(asked)
    assert asked.offering.pool not in {each.pool for each in cloud.offerings()}
    clock.advance(601)
    assert asked.offering.pool in {each.pool for each in cloud.offerings()}


def test_deleted_image_is_looked_up_again(gce: GoogleServer, cloud: GcpDriver) -> None:
    asked = request(offered(cloud))
    gce.fail(INSERT, answers.invalid("disks[0].initializeParams.sourceImage", "x", "The referenced image is gone."))
    with pytest.raises(BadImage):
        cloud.launch(asked)
    before = len(gce.calls("compute.images.getFromFamily"))
    cloud.offerings()
    assert len(gce.calls("compute.images.getFromFamily")) == before + 1


def test_a_region_without_our_subnetwork_says_which_and_how_to_make_it(gce: GoogleServer, clock: ManualClock) -> None:
    driver = GcpDriver(replace(CONFIG, subnetwork="nodes"), clock)
    with pytest.raises(BadSurroundings, match="us-central1 has no subnetwork called nodes") as raised:
        driver.offerings()
    assert "infra/gcp" in (raised.value.hint or "")


def test_an_image_that_does_not_exist_says_so(gce: GoogleServer, clock: ManualClock) -> None:
    image = "projects/debian-cloud/global/images/family/nothing"
    with pytest.raises(BadImage, match="family/nothing"):
        GcpDriver(replace(CONFIG, image=image), clock).offerings()


def test_unknown_region_is_reported_as_such(gce: GoogleServer, clock: ManualClock) -> None:
    with pytest.raises(CloudError, match="us-centrall1") as raised:
        GcpDriver(replace(CONFIG, regions=("us-centrall1",)), clock).offerings()
    assert "us-central1" in (raised.value.hint or "")


# -- ends --------------------------------------------------------------------------------------------------------------


def test_g3_a_preempted_instance_leaves_nothing_and_a_new_driver_reports_it(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    taken = running(cloud, clock)
    gce.project.preempt(taken.instance_id)
    clock.advance(300)
    (gone,) = GcpDriver(CONFIG, clock).instances(RUN)
    assert (gone.instance_id, gone.ended_by, gone.alive) == (taken.instance_id, EndedBy.CLOUD, False)
    assert gone.offering.pool == taken.offering.pool
    assert gce.project.disks == {}


def test_g3_what_has_switched_itself_off_is_seen_as_stopped_until_it_is_ended(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    drained = running(cloud, clock)
    gce.project.power_off(drained.instance_id)
    clock.advance(60)
    (stopped,) = cloud.instances()
    assert (stopped.state, stopped.ended_at) == (InstanceState.STOPPED, None)
    assert stopped.prices[-1].usd_per_hour == 0
    cloud.terminate(stopped.instance_id)
    clock.advance(60)
    (gone,) = cloud.instances()
    assert gone.ended_by is EndedBy.ITSELF
    assert gce.project.disks == {}


def test_g3_an_instance_deleted_by_another_reports_since_when_it_was_off(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    drained = running(cloud, clock)
    gce.project.power_off(drained.instance_id)
    clock.advance(3600)
    (stopped,) = GcpDriver(CONFIG, clock).instances()
    GcpDriver(CONFIG, clock).terminate(stopped.instance_id)
    clock.advance(60)
    (gone,) = GcpDriver(CONFIG, clock).instances()
    assert gone.off_since == stopped.off_since
    assert gone.prices == stopped.prices


def test_g4_an_api_that_is_late_says_running_and_the_end_is_known_by_its_own_moment(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    gce.project.lag(timedelta(minutes=3))
    dead = running(cloud, clock)
    gce.project.preempt_at_once(dead.instance_id)
    died_at = clock.now()
    clock.advance(60)
    assert alive(cloud) == [dead.instance_id]
    clock.advance(240)
    (gone,) = cloud.instances()
    assert gone.ended_by is EndedBy.CLOUD
    assert gone.ended_at is not None
    assert gone.ended_at - died_at <= timedelta(minutes=4)


def test_a_host_that_fails_is_a_fault(gce: GoogleServer, cloud: GcpDriver, clock: ManualClock) -> None:
    broken = running(cloud, clock, request(offered(cloud, CapacityType.ON_DEMAND)))
    gce.project.host_error(broken.instance_id)
    clock.advance(120)
    (found,) = cloud.instances()
    assert found.state in (InstanceState.STOPPED, InstanceState.TERMINATED)


def test_g12_a_delete_that_was_answered_well_and_did_nothing_is_seen_and_repeated(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    gce.fail(DELETE, answers.NOTHING_DONE)
    cloud.terminate(running_one.instance_id)
    clock.advance(60)
    assert alive(cloud) == [running_one.instance_id]
    cloud.terminate(running_one.instance_id)
    clock.advance(60)
    assert alive(cloud) == []


# -- what cannot be seen -----------------------------------------------------------------------------------------------


def test_g9_an_expired_login_blinds_and_a_new_one_is_used(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    gce.logins.expired.update(gce.logins.tokens)
    gce.logins.refused.add(RUNNER)
    clock.advance(2)
    with pytest.raises(LoginNeeded) as raised:
        cloud.instances()
    assert isinstance(raised.value, CredentialsExpired)
    assert "gcloud auth application-default login" in (raised.value.hint or "")
    gce.logins.expired.clear()
    gce.logins.refused.clear()
    clock.advance(61)
    assert alive(cloud) == [running_one.instance_id]


def test_driver_without_a_login_says_what_to_type(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(AccessDenied, match="there is no login to Google Cloud") as raised:
        GcpDriver(CONFIG, clock).instances()
    assert "gcloud auth application-default login" in (raised.value.hint or "")


def test_missing_login_file_is_reported_with_its_path(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "junk.json").write_text("{}")
    for name, what in (("gone.json", "a missing file"), ("junk.json", "no login")):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / name))
        with pytest.raises(AccessDenied, match=f"GOOGLE_APPLICATION_CREDENTIALS names {what}: .*{name}") as raised:
            GcpDriver(CONFIG, clock).instances()
        assert raised.value.hint == "correct it, or unset GOOGLE_APPLICATION_CREDENTIALS"


def test_a_login_without_a_project_says_where_to_name_one(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    persons = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    login = tmp_path / "application_default_credentials.json"
    login.write_text(json.dumps(persons))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(login))
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(CloudError, match="no project is named") as raised:
        GcpDriver(CONFIG, clock).instances()
    assert raised.value.hint == "set gcp.project in the job, or GOOGLE_CLOUD_PROJECT"


def test_a_zone_that_does_not_answer_is_unknown_and_not_empty(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    gce.project.unreachable.add(A)
    clock.advance(2)
    with pytest.raises(CloudUnavailable, match=A):
        cloud.instances()
    assert cloud.instances(must_see=()) == []
    assert f"{A} is left out: Google does not answer for it" in cloud.remarks
    gce.project.unreachable.clear()
    clock.advance(2)
    assert alive(cloud) == [running_one.instance_id]


def test_instance_that_a_list_lacks_exists_until_google_does_not_find_it(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    with gce.project.lock:
        lacking = {key: vm for key, vm in gce.project._vms.items() if vm.name == running_one.instance_id}
        for key in lacking:
            del gce.project._vms[key]
    clock.advance(60)
    assert alive(cloud) == [running_one.instance_id]
    cloud.terminate(running_one.instance_id)
    assert alive(cloud) == []
    assert cloud.describe(running_one.instance_id) is None


def test_a_zone_of_a_region_that_no_job_uses_may_be_silent(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    gce.project.unreachable.add("europe-west4-a")
    clock.advance(2)
    assert alive(cloud) == [running_one.instance_id]
    assert cloud.remarks == ()


@pytest.mark.parametrize("ahead", [timedelta(minutes=-4), timedelta(minutes=4)])
def test_moments_are_googles_whatever_this_machines_clock_shows(
    gce: GoogleServer, clock: ManualClock, ahead: timedelta
) -> None:
    machines = AheadClock(clock, ahead)
    driver = GcpDriver(CONFIG, machines)
    driver.launch(request(offered(driver)))
    clock.advance(30)
    (found,) = driver.instances()
    assert abs(found.launched_at - clock.now()) < timedelta(minutes=1)
    assert abs(machines.now() - clock.now()) <= timedelta(seconds=2)
    assert any("and the run uses Google's clock" in remark for remark in driver.remarks)


def test_throttling_and_outages_are_waited_out(gce: GoogleServer, cloud: GcpDriver, clock: ManualClock) -> None:
    for fault in (answers.RATE_LIMIT, answers.BACKEND_ERROR, Lost):
        gce.fail(LIST, fault, times=2)
        clock.advance(2)
        assert cloud.instances() == []
    gce.fail(LIST, answers.RATE_LIMIT, times=None)
    clock.advance(2)
    with pytest.raises(CloudUnavailable):
        cloud.instances()


def test_listing_takes_two_calls_and_is_shared_for_a_second(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running(cloud, clock)
    clock.advance(2)
    before = len(gce.asked)
    for _ in range(5):
        cloud.instances(RUN)
    assert [each.method for each in gce.asked[before:]] == [LIST, OPERATIONS]


def test_listing_next_to_1200_other_instances_reads_none_of_them(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    foreign(gce, (f"web-{number}" for number in range(1200)), {"team": "web"})
    clock.advance(60)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/spotrun/clouds/" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        assert alive(cloud) == [running_one.instance_id]
    finally:
        sys.setprofile(None)
    assert 0 < max(calls.values()) < 100


@pytest.mark.parametrize("labels", [{}, {"spotrun-run": "ffffffffff"}], ids=["no labels", "of another run"])
def test_instance_whose_labels_are_changed_is_found_by_its_name(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock, labels: dict[str, str]
) -> None:
    asked = request(offered(cloud))
    name = running(cloud, clock, asked).instance_id
    gce.project.vm(name).labels = labels
    clock.advance(2)
    for driver in (cloud, GcpDriver(CONFIG, clock)):
        assert [each.instance_id for each in driver.instances(RUN)] == [name]
        assert driver.instances("ffffffffff") == []
        assert driver.launch(asked).instance_id == name
        assert any(remark.startswith(f"{name} has ") and "label" in remark for remark in driver.remarks)
    GcpDriver(CONFIG, clock).terminate(name)
    clock.advance(60)
    assert alive(cloud) == []
    assert cloud.remarks == ()


def test_foreign_instance_with_a_runs_labels_is_a_remark_and_no_instance(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    running_one = running(cloud, clock)
    labels = {"spotrun-run": RUN, "spotrun-launch": "9" * 30, "spotrun-nano-usd-per-hour": "nan"}
    foreign(gce, ["copied", "spotrun-copied"], labels)
    foreign(gce, ["spotrun-web"], {})
    clock.advance(60)
    for _ in range(2):
        assert alive(cloud) == [running_one.instance_id]
        assert [each.partition(" ")[0] for each in cloud.remarks] == ["copied", "spotrun-copied"]
        clock.advance(60)
    assert f"gcloud compute instances delete copied --zone {A} --project" in cloud.remarks[0]
    for name in ("copied", "spotrun-copied"):
        del gce.project.vms[A, name]
    clock.advance(60)
    assert alive(cloud) == [running_one.instance_id]
    assert cloud.remarks == ()


def test_the_bill_is_by_the_price_of_the_list_and_counts_from_when_it_ran(
    gce: GoogleServer, cloud: GcpDriver, clock: ManualClock
) -> None:
    found = running(cloud, clock)
    assert found.billed_from is not None
    assert found.billed_from > found.launched_at, "PROVISIONING and STAGING are free"
    assert [each.usd_per_hour for each in found.prices] == [found.offering.price_usd_per_hour]


def test_regions_stand_alone(gce: GoogleServer, clock: ManualClock) -> None:
    config = GcpConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__struct_fields__}, "regions": (REGION, "us-east1")})
    driver = GcpDriver(config, clock)
    gce.fail("compute.subnetworks.get", answers.BACKEND_ERROR, times=4)
    regions = {each.region for each in driver.offerings(must_see=("us-east1",))}
    assert regions == {"us-east1"}
    assert any(remark.startswith(f"{REGION} is left out") for remark in driver.remarks)
