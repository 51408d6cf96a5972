"""The fake of Compute Engine keeps the rules that Google's pages and its users tell of."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import google.auth
import pytest
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession

from spotrun.clock import ScaledClock
from tests.support.eventually import eventually
from tests.support.gce_answers import (
    API_DISABLED,
    BACKEND_ERROR,
    NOTHING_DONE,
    RATE_LIMIT,
    TAKEN_WHILE_MADE,
    Failure,
    Refusal,
)
from tests.support.gce_calls import ON_DEMAND, SPOT_FOR_TWO_HOURS, ZONE, GceCalls, wished
from tests.support.gce_charges import MONTH_H
from tests.support.gce_files import FAKE
from tests.support.gce_metadata import gce_metadata
from tests.support.gce_vm import Vm
from tests.support.gcp_project import RUNNER
from tests.support.google_api import Asked
from tests.support.google_cloud import ANY, Hang, Lost
from tests.support.google_login import TOKEN
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.checks(*FAKE)

PREEMPTED = "compute.instances.preempted"
INSERT, DELETE = "compute.instances.insert", "compute.instances.delete"


@pytest.fixture
def calls(gce: GoogleServer) -> GceCalls:
    return GceCalls(gce)


@pytest.fixture
def wait(gce: GoogleServer) -> Callable[..., None]:
    """Let so much time pass."""
    clock = gce.project.clock
    assert isinstance(clock, ManualClock)
    return lambda **length: clock.advance(timedelta(**length).total_seconds())


def kinds(calls: GceCalls, name: str = "one") -> list[str]:
    """The operations on an instance, in order."""
    found = [each for each in calls.operations() if each["targetLink"].endswith(f"/instances/{name}")]
    return [each["operationType"] for each in sorted(found, key=lambda each: (each["insertTime"], int(each["id"])))]


# -- making ----------------------------------------------------------------------------------------------------------


def test_an_insert_is_answered_before_anything_is_decided(calls: GceCalls, wait: Callable[..., None]) -> None:
    answered = calls.insert(wished("one"))
    assert (answered.status, answered.body["status"], answered.body["operationType"]) == (200, "PENDING", "insert")
    assert calls.get("one").body["status"] == "PROVISIONING"
    wait(seconds=2)
    assert calls.operations()[0]["status"] == "RUNNING"
    wait(seconds=3)
    assert calls.get("one").body["status"] == "STAGING"
    assert calls.waited(answered)["status"] == "DONE"
    running = calls.get("one").body
    assert (running["status"], running["scheduling"]["preemptible"]) == ("RUNNING", True)
    assert running["id"] == calls.operations()[0]["targetId"]
    assert running["lastStartTimestamp"][-6:] in ("-08:00", "-07:00")  # those of the Pacific coast
    assert datetime.fromisoformat(running["lastStartTimestamp"]) > datetime.fromisoformat(running["creationTimestamp"])


def test_waiting_for_an_operation_takes_two_minutes_at_most(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.timings.boot = timedelta(minutes=5)
    before = gce.project.now
    assert calls.waited(calls.insert(wished("one")))["status"] == "RUNNING"
    assert timedelta(minutes=2) <= gce.project.now - before < timedelta(minutes=2, seconds=5)


def test_a_wait_may_return_at_once(gce: GoogleServer, calls: GceCalls) -> None:
    gce.methods.waits = False
    before = gce.project.now
    assert calls.waited(calls.insert(wished("one")))["status"] == "PENDING"
    assert gce.project.now == before


def test_a_repeated_request_id_answers_the_same_operation_whatever_else_it_says(calls: GceCalls) -> None:
    request = str(uuid4())
    first = calls.insert(wished("one"), requestId=request)
    again = calls.insert(wished("two"), requestId=request)
    assert first.body["name"] == again.body["name"]
    assert calls.names() == ["one"]


def test_a_request_id_is_forgotten(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    request = str(uuid4())
    calls.insert(wished("one"), requestId=request)
    gce.project.operations.request_ids_count = timedelta(minutes=10)
    wait(minutes=11)
    assert calls.insert(wished("one"), requestId=request).reason == "alreadyExists"


@pytest.mark.parametrize("request_id", ["one", "00000000-0000-0000-0000-000000000000"])
def test_a_request_id_is_a_uuid_and_not_zero(calls: GceCalls, request_id: str) -> None:
    assert calls.insert(wished("one"), requestId=request_id).status == 400


def test_racing_inserts_of_one_name_make_one_instance(calls: GceCalls) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: calls.insert(wished("one")), range(8)))
    assert sorted(each.status for each in answers) == [200, *[409] * 7]


def test_a_living_name_is_in_use_a_stopping_one_is_not_ready_and_a_deleted_one_is_free(calls: GceCalls) -> None:
    first = calls.run("one")
    taken = calls.insert(wished("one"))
    assert (taken.status, taken.reason) == (409, "alreadyExists")
    deleting = calls.delete("one")
    assert calls.insert(wished("one")).reason == "resourceNotReady"
    calls.waited(deleting)
    assert calls.run("one")["id"] != first["id"]


def test_an_instance_that_is_deleted_while_it_is_made_is_a_conflict_of_its_operation(calls: GceCalls) -> None:
    making = calls.insert(wished("one"))
    deleting = calls.delete("one")
    assert calls.waited(making)["httpErrorStatusCode"] == 409
    assert "error" not in calls.waited(deleting)
    assert calls.get("one").status == 404


def test_a_disk_that_was_left_is_a_conflict_of_the_next_ones_operation(calls: GceCalls) -> None:
    body = wished("one")
    body["disks"][0]["autoDelete"] = False
    calls.waited(calls.insert(body))
    calls.waited(calls.delete("one"))
    assert calls.waited(calls.insert(body))["error"]["errors"][0]["code"] == "RESOURCE_ALREADY_EXISTS"
    assert calls.call("GET", f"zones/{ZONE}/disks/one").body.get("users") is None
    calls.waited(calls.call("DELETE", f"zones/{ZONE}/disks/one"))
    assert "error" not in calls.waited(calls.insert(body))


def with_scheduling(**fields: Any) -> dict[str, Any]:
    return wished("one", scheduling={**SPOT_FOR_TWO_HOURS, **fields})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (wished("one", kind="g3-huge"), "Machine type with name 'g3-huge' does not exist in zone 'us-central1-a'"),
        (wished("one", labels={"Owner": "a"}), "Label key"),
        (wished("one", labels={"price": "0.39"}), "Label value '0.39' violates format constraints"),
        (wished("one", labels={f"a{number}": "" for number in range(65)}), "At most 64 labels"),
        (wished("one", networkInterfaces=[]), "At least one network interface"),
        (wished("one", networkInterfaces=[{"subnetwork": "regions/us-east1/subnetworks/spotrun"}]), "cannot be"),
        (wished("one", disks=[{"boot": True}]), "Boot disk must have a source"),
        (wished("one", kind="g4-standard-48"), "[pd-balanced] features are not compatible"),
        (wished("one", metadata={"items": [{"key": "a", "value": "x" * 262_145}]}), "exceeds"),
        (with_scheduling(onHostMaintenance="MIGRATE"), "onHostMaintenance"),
        (with_scheduling(automaticRestart=True), "automaticRestart"),
        (with_scheduling(maxRunDuration={"seconds": "29"}), "maxRunDuration"),
        (with_scheduling(maxRunDuration={"seconds": str(120 * 86400 + 1)}), "maxRunDuration"),
        (with_scheduling(instanceTerminationAction=None), "instanceTerminationAction"),
        (with_scheduling(preemptionNoticeDuration={"seconds": "60"}), "preemptionNoticeDuration"),
        (with_scheduling(provisioningModel="STANDARD", onHostMaintenance="TERMINATE"), "preemptionNoticeDuration"),
        (wished("one", scheduling={"provisioningModel": "STANDARD"}), "do not support live migration"),
        (wished("one", scheduling={**ON_DEMAND, "instanceTerminationAction": "STOP"}), "instanceTerminationAction"),
        (wished("one", kind="e2-standard-4", scheduling=ON_DEMAND), "not supported for e2"),
    ],
)  # fmt: skip
def test_impossible_request_is_refused_at_once(calls: GceCalls, body: dict[str, Any], told: str) -> None:
    refused = calls.insert(body)
    assert refused.status == 400
    assert told in refused.body["error"]["message"]
    assert calls.names() == []


def test_an_image_that_is_not_there_is_not_found(calls: GceCalls) -> None:
    body = wished("one")
    body["disks"][0]["initializeParams"]["sourceImage"] = "projects/debian-cloud/global/images/family/debian-1"
    assert calls.insert(body).status == 404


# -- what operations end with ----------------------------------------------------------------------------------------


def error_of(operation: Any) -> Any:
    (error,) = operation["error"]["errors"]
    return error


def test_a_stockout_comes_in_the_operation_and_names_zones_that_have_some(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.stock_out("us-central1-a", "g2-standard-4", "SPOT")
    gce.project.stock_out("us-central1-b", "g2-standard-4")
    operation = calls.waited(calls.insert(wished("one")))
    assert (operation["status"], operation["httpErrorStatusCode"]) == ("DONE", 503)
    assert error_of(operation)["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    (info,) = [each["errorInfo"] for each in error_of(operation)["errorDetails"] if "errorInfo" in each]
    assert info["metadatas"]["zonesAvailable"] == "us-central1-c"
    assert calls.get("one").status == 404
    calls.run("two", scheduling=ON_DEMAND)
    gce.project.restock("us-central1-a", "g2-standard-4")
    calls.run("one")


def test_quotas_are_of_a_region_and_spot_takes_the_preemptible_one(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, "us-central1")
    gce.project.set_quota("NVIDIA_L4_GPUS", 1, "us-central1")
    calls.run("one")
    error = error_of(calls.waited(calls.insert(wished("two"))))
    assert error["code"] == "QUOTA_EXCEEDED"
    (info,) = [each["quotaInfo"] for each in error["errorDetails"]]
    assert (info["limit"], info["dimensions"]) == (1.0, {"region": "us-central1"})
    calls.run("three", scheduling=ON_DEMAND)
    quotas = {each["metric"]: each for each in calls.call("GET", "regions/us-central1").body["quotas"]}
    assert quotas["PREEMPTIBLE_NVIDIA_L4_GPUS"]["usage"] == quotas["NVIDIA_L4_GPUS"]["usage"] == 1.0
    assert "NVIDIA_H100_GPUS" not in quotas  # unknown is not zero


def test_spot_takes_the_standard_quota_where_no_preemptible_one_was_granted(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
    calls.run("one")
    gce.project.set_quota("NVIDIA_L4_GPUS", 1)
    assert error_of(calls.waited(calls.insert(wished("two"))))["code"] == "QUOTA_EXCEEDED"


def test_the_quota_of_all_regions_is_the_projects(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.set_quota("GPUS_ALL_REGIONS", 0)
    error = error_of(calls.waited(calls.insert(wished("one"))))
    assert "GPUS_ALL_REGIONS" in error["message"]
    assert "region" not in error["errorDetails"][0]["quotaInfo"]["dimensions"]
    quotas = {each["metric"]: each["limit"] for each in calls.call("GET", "").body["quotas"]}
    assert quotas["GPUS_ALL_REGIONS"] == 0


def test_missing_account_is_reported_in_the_operation(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.accounts = {"known@acme-training.iam.gserviceaccount.com"}
    body = wished("one", serviceAccounts=[{"email": "new@acme-training.iam.gserviceaccount.com", "scopes": []}])
    error = error_of(calls.waited(calls.insert(body)))
    assert error["code"] == "RESOURCE_NOT_FOUND"
    assert "new@acme-training.iam.gserviceaccount.com" in error["message"]


def test_operation_fails_as_set_and_may_leave_the_instance(gce: GoogleServer, calls: GceCalls) -> None:
    gce.fail(INSERT, TAKEN_WHILE_MADE)
    assert error_of(calls.waited(calls.insert(wished("one"))))["code"] == "UNSUPPORTED_OPERATION"
    assert calls.names() == []
    gce.fail(INSERT, Failure("INTERNAL_ERROR", status=500, keeps=True))
    assert error_of(calls.waited(calls.insert(wished("two"))))["code"] == "INTERNAL_ERROR"
    assert calls.get("two").body["status"] == "RUNNING"


# -- being taken, and other ends -------------------------------------------------------------------------------------


def test_a_preemption_is_noticed_then_signalled_then_done(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one")
    gce.project.preempt("one")
    wait(seconds=119)
    assert calls.get("one").body["status"] == "RUNNING"
    wait(seconds=2)
    assert calls.get("one").body["status"] == "STOPPING"
    wait(seconds=20)
    assert calls.get("one").status == 404
    assert calls.names() == []
    assert kinds(calls) == ["insert", PREEMPTED]
    (operation,) = calls.operations(filter=f'operationType="{PREEMPTED}"')
    assert (operation["user"], operation["statusMessage"]) == ("system", "Instance was preempted.")


def test_without_an_action_a_preempted_instance_stays_with_its_disk(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one", scheduling={"provisioningModel": "SPOT"})
    gce.project.preempt("one", notice=timedelta())
    wait(minutes=1)
    assert calls.get("one").body["status"] == "TERMINATED"
    assert calls.call("GET", f"zones/{ZONE}/disks/one").status == 200


def test_the_api_sees_a_guests_death_later(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    calls.run("one")
    gce.project.lag(timedelta(minutes=3))
    gce.project.preempt("one", notice=timedelta())
    wait(minutes=3)
    assert calls.get("one").body["status"] == "RUNNING"
    assert kinds(calls) == ["insert"]
    wait(seconds=30)
    assert calls.get("one").status == 404
    (operation,) = calls.operations(filter=f"operationType={PREEMPTED}")
    ended, now = datetime.fromisoformat(operation["endTime"]), gce.project.now
    assert now - ended >= timedelta(minutes=3)


def test_an_instance_that_is_dead_unseen_can_be_deleted_and_was_preempted_all_the_same(
    gce: GoogleServer, calls: GceCalls
) -> None:
    calls.run("one")
    gce.project.lag(timedelta(minutes=3))
    gce.project.preempt_at_once("one")
    calls.waited(calls.delete("one"))
    assert sorted(kinds(calls)) == [PREEMPTED, "delete", "insert"]
    (running,) = gce.project.charges.running
    assert running.was_preempted


def test_a_power_off_from_inside_leaves_instance_and_disk(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one")
    gce.project.power_off("one")
    assert calls.get("one").body["status"] == "TERMINATED"
    wait(hours=3)
    assert calls.get("one").body["status"] == "TERMINATED"
    assert kinds(calls) == ["insert", "compute.instances.guestTerminate"]
    calls.waited(calls.delete("one"))
    assert kinds(calls)[1:] == ["compute.instances.guestTerminate", "delete"]


def test_a_power_off_after_the_signal_is_the_preemptions_end(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one")
    gce.project.preempt("one")
    wait(seconds=121)
    gce.project.power_off("one")
    assert kinds(calls) == ["insert", PREEMPTED]
    assert calls.get("one").status == 404


def test_a_power_off_within_the_notice_is_the_guests_own(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one")
    gce.project.preempt("one")
    wait(seconds=60)
    gce.project.power_off("one")
    wait(minutes=5)
    assert kinds(calls) == ["insert", "compute.instances.guestTerminate"]
    assert calls.get("one").body["status"] == "TERMINATED"


@pytest.mark.parametrize(
    ("action", "operation", "status"),
    [("DELETE", "compute.instances.deferredDelete", 404), ("STOP", "compute.instances.deferredStop", 200)],
)
def test_a_time_limit_counts_from_running_and_is_a_little_late(
    calls: GceCalls, wait: Callable[..., None], action: str, operation: str, status: int
) -> None:
    calls.run("one", scheduling={**SPOT_FOR_TWO_HOURS, "instanceTerminationAction": action})
    wait(seconds=7199)
    assert calls.get("one").body["status"] == "RUNNING"
    wait(seconds=40)
    assert calls.get("one").status == status
    assert kinds(calls) == ["insert", operation]


def test_a_host_error_stops_what_is_not_to_be_restarted(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one", scheduling={**ON_DEMAND, "automaticRestart": False})
    gce.project.host_error("one")
    wait(minutes=1)
    assert calls.get("one").body["status"] == "TERMINATED"
    assert kinds(calls) == ["insert", "compute.instances.hostError"]


def test_simulated_maintenance_preempts_a_spot_vm(calls: GceCalls, wait: Callable[..., None]) -> None:
    calls.run("one")
    calls.waited(calls.call("POST", f"zones/{ZONE}/instances/one/simulateMaintenanceEvent"))
    wait(minutes=3)
    assert kinds(calls)[-1] == PREEMPTED


def test_a_delete_takes_its_time_and_a_second_one_ends_with_it(calls: GceCalls) -> None:
    calls.run("one")
    first, second = calls.delete("one"), calls.delete("one")
    assert calls.get("one").body["status"] == "STOPPING"
    assert calls.waited(first)["endTime"] == calls.waited(second)["endTime"]
    assert calls.delete("one").status == 404


def test_a_delete_can_be_answered_and_do_nothing(gce: GoogleServer, calls: GceCalls) -> None:
    calls.run("one")
    gce.fail(DELETE, NOTHING_DONE)
    assert "error" not in calls.waited(calls.delete("one"))
    assert calls.get("one").body["status"] == "RUNNING"
    gce.fail(DELETE, Failure("INTERNAL_ERROR", status=500))
    assert error_of(calls.waited(calls.delete("one")))["code"] == "INTERNAL_ERROR"
    assert calls.get("one").body["status"] == "RUNNING"


def test_a_stopped_instance_keeps_its_disk(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    calls.run("one")
    gce.project.stop(gce.project.vm("one"), RUNNER)
    wait(minutes=1)
    assert calls.get("one").body["status"] == "TERMINATED"
    assert calls.call("DELETE", f"zones/{ZONE}/disks/one").reason == "resourceInUseByAnotherResource"


def test_operations_are_kept_for_some_days(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    calls.run("one")
    calls.waited(calls.delete("one"))
    wait(days=13)
    assert kinds(calls) == ["insert", "delete"]
    wait(days=2)
    assert kinds(calls) == []


class Told:
    """What an executor of instances is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self, vm: Vm) -> None:
        self.events.append(f"started {vm.metadata['startup-script']}")

    def noticed(self, vm: Vm) -> None:
        self.events.append("noticed")

    def stopping(self, vm: Vm) -> None:
        self.events.append("stopping")

    def ended(self, vm: Vm) -> None:
        self.events.append("ended")


BRIEF = {**SPOT_FOR_TWO_HOURS, "maxRunDuration": {"seconds": "30"}}
SCRIPT = {"items": [{"key": "startup-script", "value": "true"}]}


def test_machine_runner_receives_each_event_of_its_instances(gce: GoogleServer, calls: GceCalls) -> None:
    gce.project.machines = told = Told()
    calls.run("one", metadata=SCRIPT)
    gce.project.preempt("one", notice=timedelta())
    calls.waited(calls.delete("one"))
    assert told.events == ["started true", "noticed", "stopping", "ended"]


def test_machine_runner_receives_events_by_the_clock_without_a_poll() -> None:
    told = Told()
    server = GoogleServer(ScaledClock(datetime.now(UTC), 200.0))
    server.project.machines = told
    with server as gce:
        GceCalls(gce).insert(wished("one", metadata=SCRIPT, scheduling=BRIEF))
        eventually(lambda: told.events == ["started true"])
        asked = len(gce.asked)
        eventually(lambda: told.events == ["started true", "stopping", "ended"])
        assert len(gce.asked) == asked == 1


# -- lists -----------------------------------------------------------------------------------------------------------


def test_lists_are_filtered_as_gcloud_and_others_ask(calls: GceCalls) -> None:
    calls.run("one")
    calls.run("two", labels={"spotrun-run": "abc", "b": "c"}, scheduling=ON_DEMAND)
    calls.run("foreign", labels={})
    for text, names in {
        "labels.spotrun-run:*": ["one", "two"],
        "labels.spotrun-run=abc": ["two"],
        "name:tw*": ["two"],
        "(labels.spotrun-run = abc) OR (name:on*)": ["one", "two"],
        "name=one OR name=foreign": ["foreign", "one"],
        'name eq "t.o"': ["two"],
        "name = t*": ["two"],
    }.items():
        assert calls.names(filter=text) == names, text


@pytest.mark.parametrize(
    "text",
    [
        "labelz.a:*",
        "name",
        "name = ",
        "(name = a",
        "name = a)",
        'name = "a',
        "a b c",
        "name:a",
        "NOT name=a",
        "name=a id=1",
    ],
)
def test_a_filter_that_is_none_is_refused(calls: GceCalls, text: str) -> None:
    assert calls.call("GET", "aggregated/instances", filter=text).status == 400


def test_lists_come_in_pages_and_nothing_is_missed_though_others_go(calls: GceCalls) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        calls.run(name, kind="e2-standard-4")
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = calls.call("GET", "aggregated/instances", maxResults=2, **token).body
        here = page["items"][f"zones/{ZONE}"]
        found += [each["name"] for each in here.get("instances", ())]
        if "nextPageToken" not in page:
            break
        token = {"pageToken": page["nextPageToken"]}
        calls.waited(calls.delete(found[-1]))
    assert found == names
    assert calls.call("GET", "aggregated/instances", pageToken="x").status == 400
    assert calls.call("GET", "aggregated/instances", maxResults=501).status == 400


def test_a_zone_that_does_not_answer_is_named_or_fails_the_list(gce: GoogleServer, calls: GceCalls) -> None:
    calls.run("one")
    gce.project.unreachable.add(ZONE)
    assert calls.call("GET", "aggregated/instances").status == 503
    partial = calls.call("GET", "aggregated/instances", returnPartialSuccess="true").body
    assert partial["unreachables"] == [f"zones/{ZONE}"]
    assert partial["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert partial["items"]["zones/us-east1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert calls.call("GET", f"zones/{ZONE}/disks").status == 503


def test_types_and_subnets_can_be_looked_up(calls: GceCalls) -> None:
    (kind,) = calls.call("GET", f"zones/{ZONE}/machineTypes", filter="name=a3-highgpu-8g").body["items"]
    assert kind["accelerators"] == [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": 8}]
    assert "items" not in calls.call("GET", "zones/us-east1-b/machineTypes", filter="name=a3-highgpu-8g").body
    subnets = calls.call("GET", "regions/us-east1/subnetworks").body["items"]
    assert {each["name"] for each in subnets} == {"default", "spotrun"}
    for path in ("zones", "regions", "global/networks", "global/networks/spotrun", "global/firewalls", f"zones/{ZONE}",
                 f"zones/{ZONE}/machineTypes/g2-standard-4", "regions/us-east1/subnetworks/default", "aggregated/disks",
                 f"zones/{ZONE}/disks", f"zones/{ZONE}/diskTypes/pd-ssd"):  # fmt: skip
        assert calls.call("GET", path).status == 200, path
    for path in ("zones/mars-1a/disks", "regions/mars", "global/networks/none"):
        assert calls.call("GET", path).status in (400, 404), path


# -- money -----------------------------------------------------------------------------------------------------------


def test_spot_prices_of_a_year_come_in_steps(gce: GoogleServer, calls: GceCalls) -> None:
    since = gce.project.now - timedelta(days=10)
    gce.project.price("g2-standard-4", "us-central1", Decimal("0.41"), since)
    asked = {"instanceProperties": {"machineType": "g2-standard-4"}, "types": ["PRICE", "PREEMPTION"]}
    told = calls.call("POST", "regions/us-central1/advice/capacityHistory", asked).body
    assert [each["listPrice"]["nanos"] for each in told["priceHistory"]] == [397_300_000, 410_000_000]
    assert len(told["preemptionHistory"]) == 30
    asked["instanceProperties"] = {"machineType": "n1-standard-1", "guestAccelerators": [{"acceleratorCount": 1}]}
    assert calls.call("POST", "regions/us-central1/advice/capacityHistory", asked).status == 400


@pytest.mark.parametrize(("lived_s", "billed_s"), [(30, 0), (59, 0), (60, 60), (90, 90)])
def test_a_spot_vm_that_is_preempted_in_its_first_minute_is_free(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None], lived_s: int, billed_s: int
) -> None:
    calls.run("one")
    (running,) = gce.project.charges.running
    wait(seconds=(running.since + timedelta(seconds=lived_s) - gce.project.now).total_seconds())
    gce.project.preempt_at_once("one")
    assert running.billed_s(gce.project.now) == billed_s


def test_any_other_is_billed_a_minute_at_least_and_by_the_second(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    calls.run("one")
    gce.project.power_off("one")
    (running,) = gce.project.charges.running
    assert running.billed_s(gce.project.now) == 60
    calls.run("two", scheduling=ON_DEMAND, networkInterfaces=[{"network": "global/networks/default"}])
    wait(hours=1)
    two = gce.project.charges.running[-1]
    now = two.since + timedelta(hours=1)
    assert gce.project.charges.instance_usd(two, now) == Decimal("0.706832")


def test_a_disk_is_billed_until_it_is_deleted(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    calls.run("one")
    gce.project.power_off("one")
    (disk,) = gce.project.charges.kept
    wait(hours=MONTH_H)
    assert disk.usd(disk.since + timedelta(hours=MONTH_H)) == Decimal(10)
    calls.waited(calls.delete("one"))
    assert disk.until is not None
    before = gce.project.charges.usd(gce.project.now)
    wait(days=1)
    assert gce.project.charges.usd(gce.project.now) == before


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RATE_LIMIT, BACKEND_ERROR, API_DISABLED])
def test_method_fails_the_set_number_of_times(gce: GoogleServer, calls: GceCalls, error: Refusal) -> None:
    gce.fail("compute.instances.get", error, times=2)
    found = [calls.get("one") for _ in range(3)]
    assert [each.status for each in found] == [error.status, error.status, 404]
    assert found[0].reason == error.reason


def test_all_methods_fail_until_a_moment_or_until_they_are_reset(
    gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]
) -> None:
    gce.fail(ANY, BACKEND_ERROR, until=gce.project.now + timedelta(seconds=30))
    assert {calls.call("GET", "zones").status for _ in range(3)} == {503}
    wait(seconds=31)
    assert calls.call("GET", "zones").status == 200
    gce.fail(ANY, BACKEND_ERROR, times=None)
    assert {calls.call("GET", "zones").status for _ in range(3)} == {503}
    gce.recover()
    assert calls.call("GET", "zones").status == 200


def test_a_hook_says_of_each_call_what_becomes_of_it(gce: GoogleServer, calls: GceCalls) -> None:
    gce.hook = lambda method, nth: RATE_LIMIT if (method, nth) == ("compute.zones.list", 2) else None
    assert [calls.call("GET", "zones").status for _ in range(3)] == [200, 403, 200]


def test_an_answer_that_is_lost_was_done(gce: GoogleServer, calls: GceCalls) -> None:
    gce.fail(INSERT, Lost)
    with pytest.raises(http.client.RemoteDisconnected):
        calls.insert(wished("one"))
    assert calls.names() == ["one"]


def test_hanging_call_is_released(gce: GoogleServer, calls: GceCalls) -> None:
    gce.fail("compute.instances.get", Hang)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            calls.get("one")
        except http.client.RemoteDisconnected as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not gce.calls("compute.instances.get"):
        assert calls.call("GET", "zones").status == 200
    assert asking.is_alive()
    gce.release()
    asking.join(20)
    assert len(failed) == 1


def test_call_with_a_missing_or_expired_token_gets_401(gce: GoogleServer, calls: GceCalls) -> None:
    assert GceCalls(gce, "another").get("one").status == 401
    gce.logins.tokens["another"] = "user:ada@example.com"
    assert GceCalls(gce, "another").get("one").status == 404
    assert [each.who for each in gce.calls("compute.instances.get")] == ["", "user:ada@example.com"]
    gce.logins.expired.add("another")
    assert GceCalls(gce, "another").get("one").status == 401


def test_google_auth_logs_in_and_is_refused_if_it_is_not_let_in(
    gce: GoogleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce.reach(monkeypatch, tmp_path)
    url = f"{gce.compute_url}projects/{gce.project.name}/zones"
    credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    assert project == gce.project.name
    assert AuthorizedSession(credentials).get(url).status_code == 200
    assert gce.asked[-1].who == RUNNER
    gce.logins.expired.add(TOKEN)
    gce.logins.refused.add(RUNNER)
    again, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    with pytest.raises(RefreshError, match="invalid_grant"):
        AuthorizedSession(again).get(url)


def test_the_token_of_the_metadata_server_is_known(gce: GoogleServer) -> None:
    with gce_metadata() as metadata:
        assert GceCalls(gce, metadata.token).call("GET", "zones").status == 200


def test_a_failure_is_of_the_call_that_was_meant_though_that_begins_nothing(gce: GoogleServer, calls: GceCalls) -> None:
    calls.run("one")
    gce.fail(INSERT, TAKEN_WHILE_MADE)
    assert calls.insert(wished("one")).status == 409
    calls.run("two")


def test_each_call_needs_its_permissions(gce: GoogleServer, calls: GceCalls) -> None:
    needed: list[tuple[str, str, str]] = []

    def permits(asked: Asked, permission: str) -> bool:
        needed.append((asked.who, permission, asked.resource))
        return permission != "compute.subnetworks.useExternalIp"

    gce.permits = permits
    refused = calls.insert(wished("one"))
    assert (refused.status, refused.reason) == (403, "forbidden")
    assert "compute.subnetworks.useExternalIp" in refused.body["error"]["message"]
    path = f"projects/acme-training/zones/{ZONE}/instances/one"
    assert (RUNNER, "compute.instances.create", path) in needed


def test_answers_are_dated_by_the_projects_clock(gce: GoogleServer, calls: GceCalls, wait: Callable[..., None]) -> None:
    wait(days=400)
    assert abs(parsedate_to_datetime(calls.call("GET", "zones").date) - gce.project.now) < timedelta(seconds=1)


# -- Google's description --------------------------------------------------------------------------------------------


def test_undocumented_request_is_refused_and_recorded_as_a_fault() -> None:
    with GoogleServer(ManualClock(datetime.now(UTC))) as gce:
        calls = GceCalls(gce)
        assert calls.insert(wished("one", lables={})).status == 400
        assert calls.call("GET", "zones", max_results=1).status == 400
        assert calls.call("GET", "global/networx").status == 404
        assert calls.names() == []
        assert len(gce.faults) == 3
        gce.handlers["compute.zones.list"] = lambda _: {"item": []}
        calls.call("GET", "zones")
        assert gce.faults.pop() == "compute.zones.list: answer: no field is called item"
        gce.faults.clear()
