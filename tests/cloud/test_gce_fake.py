"""
Software that is not ours uses the fake of Compute Engine: apache-libcloud, google-cloud-compute, which knows the type
of each field, and gcloud, where it is there.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.api_core.exceptions import Conflict, Forbidden, NotFound
from google.cloud import compute_v1
from google.oauth2.credentials import Credentials
from libcloud.common.google import GoogleBaseError, ResourceNotFoundError
from libcloud.compute.types import NodeState

from tests.support.gce_answers import RATE_LIMIT
from tests.support.gce_calls import IMAGE, ZONE, GceCalls
from tests.support.gce_files import FAKE
from tests.support.gce_libcloud import libcloud_on
from tests.support.gcloud_commands import GCLOUD, executed
from tests.support.google_login import TOKEN
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.checks(*FAKE)

needs_gcloud = pytest.mark.skipif(GCLOUD is None, reason="there is no gcloud on the PATH")
PREEMPTIBLE = {"ex_preemptible": True, "ex_on_host_maintenance": "TERMINATE", "ex_automatic_restart": False}
OWN = {"spotrun-run": "0123456789"}


@pytest.fixture
def clock(gce: GoogleServer) -> ManualClock:
    assert isinstance(gce.project.clock, ManualClock)
    return gce.project.clock


# -- apache-libcloud -------------------------------------------------------------------------------------------------


@pytest.fixture
def libcloud(gce: GoogleServer, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whenever it looks at an operation, a second has passed: it does not wait as the others do."""
    gce.hook = lambda method, _: clock.advance(1) if method == "compute.zoneOperations.get" else None
    return libcloud_on(gce, tmp_path, monkeypatch)


@pytest.fixture
def create(libcloud: Any) -> Callable[..., Any]:
    def create(name: str = "one", size: str = "n1-standard-1", **wishes: Any) -> Any:
        image = libcloud.ex_get_image_from_family("debian-13", ex_project_list=["debian-cloud"])
        wishes = {**PREEMPTIBLE, **wishes}
        return libcloud.create_node(name, size, image, ex_network="default", ex_subnetwork="default", **wishes)

    return create


def test_libcloud_finds_what_there_is(libcloud: Any) -> None:
    assert {each.name for each in libcloud.ex_list_zones()} >= {ZONE, "europe-west4-b"}
    assert {each.name for each in libcloud.ex_list_regions()} >= {"us-central1"}
    sizes = {each.name: each for each in libcloud.list_sizes(ZONE)}
    assert (sizes["g2-standard-8"].ram, sizes["g2-standard-8"].extra["guestCpus"]) == (32768, 8)
    assert "a3-highgpu-8g" not in {each.name for each in libcloud.list_sizes("us-east1-b")}
    assert {each.name for each in libcloud.ex_list_subnetworks("us-central1")} == {"default", "spotrun"}
    assert {each.name for each in libcloud.ex_list_networks()} == {"default", "spotrun"}
    assert libcloud.list_nodes("all") == []


def test_libcloud_creates_finds_and_destroys_a_preemptible_node(
    gce: GoogleServer, libcloud: Any, create: Callable[..., Any]
) -> None:
    made = create(ex_labels=OWN)
    assert (made.name, made.state, made.extra["status"]) == ("one", NodeState.RUNNING, "RUNNING")
    assert made.extra["scheduling"]["preemptible"]
    (listed,) = libcloud.list_nodes("all")
    assert (listed.id, listed.extra["labels"], listed.size) == (made.id, OWN, "n1-standard-1")
    assert listed.public_ips
    assert listed.private_ips
    assert [each.name for each in libcloud.list_volumes()] == ["one"]
    assert libcloud.destroy_node(listed, destroy_boot_disk=False)
    assert libcloud.list_nodes("all") == []
    with pytest.raises(ResourceNotFoundError):
        libcloud.ex_get_node("one")
    assert gce.project.disks == {}


def test_libcloud_sees_that_a_node_was_preempted(
    gce: GoogleServer, clock: ManualClock, libcloud: Any, create: Callable[..., Any]
) -> None:
    create()
    gce.project.preempt("one")
    clock.advance(30)
    assert [(each.name, each.state) for each in libcloud.list_nodes("all")] == [("one", NodeState.STOPPED)]


def test_libcloud_reports_a_stockout_and_a_name_in_use(
    gce: GoogleServer, libcloud: Any, create: Callable[..., Any]
) -> None:
    gce.project.stock_out(ZONE, "n1-standard-1")
    with pytest.raises(GoogleBaseError) as stockout:
        create()
    assert stockout.value.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert libcloud.list_nodes("all") == []
    gce.project.restock(ZONE, "n1-standard-1")
    create()
    with pytest.raises(GoogleBaseError, match="already exists"):
        create()


def test_libcloud_reads_refusals(gce: GoogleServer, libcloud: Any, create: Callable[..., Any]) -> None:
    gce.fail("compute.instances.aggregatedList", RATE_LIMIT)
    with pytest.raises(GoogleBaseError) as limited:
        libcloud.list_nodes("all")
    assert limited.value.value["reason"] == "rateLimitExceeded"


# -- google-cloud-compute --------------------------------------------------------------------------------------------


@pytest.fixture
def client(gce: GoogleServer) -> Callable[[Any], Any]:
    """Of a class of google-cloud-compute."""
    options = {"api_endpoint": gce.url}
    return lambda kind: kind(credentials=Credentials(TOKEN), client_options=options)


@pytest.fixture
def instances(client: Callable[[Any], Any]) -> compute_v1.InstancesClient:
    made: compute_v1.InstancesClient = client(compute_v1.InstancesClient)
    return made


@pytest.fixture
def done(gce: GoogleServer, client: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An operation, when it is over."""
    operations = client(compute_v1.ZoneOperationsClient)
    place = {"project": gce.project.name, "zone": ZONE}

    def done(operation: Any) -> Any:
        while operation.status != compute_v1.Operation.Status.DONE:
            operation = operations.wait(operation=operation.name, **place)
        return operation

    return done


def insert(gce: GoogleServer, name: str = "one", request_id: str | None = None) -> compute_v1.InsertInstanceRequest:
    disk = compute_v1.AttachedDiskInitializeParams(source_image=IMAGE, disk_size_gb=100, labels=OWN)
    limit = compute_v1.Duration(seconds=7200)
    instance = compute_v1.Instance(
        name=name,
        machine_type=f"zones/{ZONE}/machineTypes/g2-standard-4",
        labels=OWN,
        disks=[compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=disk)],
        network_interfaces=[compute_v1.NetworkInterface(subnetwork="regions/us-central1/subnetworks/spotrun")],
        scheduling=compute_v1.Scheduling(
            provisioning_model="SPOT",
            instance_termination_action="DELETE",
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
            max_run_duration=limit,
        ),
    )
    return compute_v1.InsertInstanceRequest(
        project=gce.project.name, zone=ZONE, instance_resource=instance, request_id=request_id or str(uuid4())
    )


def listed(gce: GoogleServer, instances: Any, text: str = "labels.spotrun-run:*") -> list[Any]:
    request = compute_v1.AggregatedListInstancesRequest(project=gce.project.name, filter=text, max_results=1)
    return [each for _, scope in instances.aggregated_list(request) for each in scope.instances]


def test_googles_client_makes_lists_and_deletes_an_instance(
    gce: GoogleServer, instances: Any, done: Callable[[Any], Any]
) -> None:
    operation = done(instances.insert_unary(insert(gce)))
    assert (operation.operation_type, operation.error.errors) == ("insert", [])
    found = instances.get(project=gce.project.name, zone=ZONE, instance="one")
    assert (found.status, found.scheduling.preemptible, dict(found.labels)) == ("RUNNING", True, OWN)
    assert found.scheduling.max_run_duration.seconds == 7200
    assert found.id == operation.target_id
    done(instances.insert_unary(insert(gce, "two")))
    assert [each.name for each in listed(gce, instances)] == ["one", "two"]
    assert [each.name for each in listed(gce, instances, "name=two")] == ["two"]
    done(instances.delete_unary(project=gce.project.name, zone=ZONE, instance="one"))
    with pytest.raises(NotFound):
        instances.get(project=gce.project.name, zone=ZONE, instance="one")


def test_googles_client_gets_the_same_operation_for_a_repeated_request(
    gce: GoogleServer, instances: Any, done: Callable[[Any], Any]
) -> None:
    request = insert(gce, request_id=str(uuid4()))
    first, again = instances.insert_unary(request), instances.insert_unary(request)
    assert first.name == again.name
    done(first)
    assert len(listed(gce, instances)) == 1
    with pytest.raises(Conflict):
        instances.insert_unary(insert(gce))


def test_googles_client_reads_the_errors_of_an_operation(
    gce: GoogleServer, instances: Any, done: Callable[[Any], Any]
) -> None:
    gce.project.stock_out(ZONE, "g2-standard-4")
    (stockout,) = done(instances.insert_unary(insert(gce))).error.errors
    assert stockout.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    told = [dict(each.error_info.metadatas) for each in stockout.error_details if each.error_info.reason]
    assert told[0]["zonesAvailable"] == "us-central1-b,us-central1-c"
    gce.project.restock(ZONE, "g2-standard-4")
    gce.project.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
    gce.project.set_quota("NVIDIA_L4_GPUS", 0)
    operation = done(instances.insert_unary(insert(gce)))
    (quota,) = operation.error.errors
    assert (quota.code, operation.http_error_status_code) == ("QUOTA_EXCEEDED", 403)
    info = quota.error_details[0].quota_info
    assert (info.limit, dict(info.dimensions)) == (0.0, {"region": "us-central1"})


def test_googles_client_sees_a_preemption_among_the_operations(
    gce: GoogleServer, instances: Any, client: Callable[[Any], Any], done: Callable[[Any], Any]
) -> None:
    done(instances.insert_unary(insert(gce)))
    gce.project.preempt_at_once("one")
    operations = client(compute_v1.GlobalOperationsClient)
    request = compute_v1.AggregatedListGlobalOperationsRequest(
        project=gce.project.name, filter='operationType="compute.instances.preempted"'
    )
    found = [each for _, scope in operations.aggregated_list(request) for each in scope.operations]
    assert [(each.user, each.status_message) for each in found] == [("system", "Instance was preempted.")]
    assert found[0].target_link.endswith("/instances/one")


def test_googles_client_reads_refusals_and_what_there_is(
    gce: GoogleServer, instances: Any, client: Callable[[Any], Any]
) -> None:
    gce.fail("compute.instances.aggregatedList", RATE_LIMIT)
    with pytest.raises(Forbidden, match="Rate Limit Exceeded"):
        listed(gce, instances)
    project = gce.project.name
    (region,) = [each for each in client(compute_v1.RegionsClient).list(project=project) if each.name == "us-east1"]
    assert {each.metric for each in region.quotas} >= {"NVIDIA_L4_GPUS", "CPUS"}
    image = client(compute_v1.ImagesClient).get_from_family(project="debian-cloud", family="debian-13")
    assert image.disk_size_gb == 10
    request = compute_v1.CapacityHistoryRequest(
        instance_properties=compute_v1.CapacityHistoryRequestInstanceProperties(machine_type="g2-standard-4"),
        types=["PRICE", "PREEMPTION"],
    )
    told = client(compute_v1.AdviceClient).capacity_history(
        project=project, region="us-central1", capacity_history_request_resource=request
    )
    assert told.price_history[0].list_price.nanos == 397_300_000


# -- gcloud ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gcloud(gce: GoogleServer, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    token = tmp_path / "token of gcloud"
    token.write_text(TOKEN)
    variables = {**gce.environment, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token)}
    return lambda *lines: executed([shlex.split(f"compute {line}") for line in lines], tmp_path, variables)


CREATE = f"""
    instances create one --zone={ZONE} --machine-type=g2-standard-4 --provisioning-model=SPOT
    --instance-termination-action=DELETE --max-run-duration=2h --maintenance-policy=TERMINATE --labels=spotrun-run=abc
    --image-family=common-cu129-ubuntu-2404-nvidia-580 --image-project=deeplearning-platform-release
    --boot-disk-size=100GB --boot-disk-type=pd-balanced --subnet=spotrun --no-service-account --no-scopes
    --format=json(name,status)"""


def told(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """What each command has printed."""
    assert done.returncode == 0, done.stdout + done.stderr
    found, at, reader = [], 0, json.JSONDecoder()
    while at < len(done.stdout.rstrip()):
        value, at = reader.raw_decode(done.stdout, at)
        found.append(value)
        at += len(done.stdout[at:]) - len(done.stdout[at:].lstrip())
    return found


@needs_gcloud
def test_gcloud_creates_lists_and_preempts_an_instance(
    gce: GoogleServer, clock: ManualClock, gcloud: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    running = {"name": "one", "status": "RUNNING"}
    assert told(
        gcloud(
            CREATE,
            "instances list '--filter=labels.spotrun-run:* AND status=RUNNING' '--format=json(name,status)'",
            "instances list --filter=labels.spotrun-run=another '--format=json(name,status)'",
            f"instances simulate-maintenance-event one --zone={ZONE} --format=none",
        )
    ) == [[running], [running], []]
    (body,) = [each.body for each in gce.calls("compute.instances.insert")]
    assert body["scheduling"]["provisioningModel"] == "SPOT"
    clock.advance(30)
    ended = "operations list --filter=operationType=compute.instances.preempted '--format=json(operationType,user)'"
    preempted = [{"operationType": "compute.instances.preempted", "user": "system"}]
    gone = ["instances list --format=json", "disks list --format=json"]
    delete = f"instances delete one --zone={ZONE}"
    assert told(gcloud(ended, *gone, CREATE, delete, *gone)) == [preempted, [], [], [running], [], []]


@needs_gcloud
def test_gcloud_reports_a_stockout(gce: GoogleServer, gcloud: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    gce.project.stock_out(ZONE, "g2-standard-4")
    failed = gcloud(CREATE)
    assert failed.returncode == 1
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in failed.stderr
    assert "zonesAvailable: us-central1-b,us-central1-c" in failed.stderr


# -- all of them -----------------------------------------------------------------------------------------------------


def test_instances_of_our_calls_are_visible_to_other_clients(gce: GoogleServer, libcloud: Any, instances: Any) -> None:
    GceCalls(gce).run("one")
    assert [each.name for each in libcloud.list_nodes("all")] == ["one"]
    assert [each.name for each in listed(gce, instances)] == ["one"]
