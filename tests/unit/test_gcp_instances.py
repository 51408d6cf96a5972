"""Instances of Compute Engine as its lists and operations tell of them; G1 to G14 are rows of the failure catalogue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clouds.error_kinds import BadSurroundings, NotThere
from spotrun.clouds.gcp.calls import Call
from spotrun.clouds.gcp.config import GcpConfig, account_address, config_of
from spotrun.clouds.gcp.delete_ids import delete_id, off_since
from spotrun.clouds.gcp.description import Record, instance_of, odd_labels
from spotrun.clouds.gcp.error_codes import ProjectMissing
from spotrun.clouds.gcp.names import NAME_MAX, Name, name_for, read_name
from spotrun.clouds.gcp.operations import read_operations
from spotrun.clouds.gcp.request import insert_body, request_id
from spotrun.clouds.gcp.surroundings import find_image, find_subnetwork
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import RENTED, CapacityType, Offering
from spotrun.spec.model import GcpSpec, ResourcesSpec
from tests.support.launch_requests import requested

RUN, PROJECT, ZONE = "0123456789", "acme-training", "us-central1-a"
BEGAN = datetime(2026, 11, 24, 10, 0, tzinfo=UTC)
SPOT_PRICE = Decimal("0.3973")


def offering(capacity_type: CapacityType = CapacityType.SPOT, instance_type: str = "g2-standard-4") -> Offering:
    return Offering(
        cloud="gcp",
        region="us-central1",
        zone=ZONE,
        instance_type=instance_type,
        capacity_type=capacity_type,
        price_usd_per_hour=SPOT_PRICE,
        accelerators="L4:1" if instance_type.startswith("g2") else "",
        cpus=4,
        memory_gib=16,
        image="projects/deeplearning-platform-release/global/images/common-1",
        subnet=f"projects/{PROJECT}/regions/us-central1/subnetworks/spotrun",
    )


def request(what: Offering | None = None, token: str = f"{RUN}-7", time_to_live_s: int = 7200) -> LaunchRequest:
    more = {"run_uri": "gs://bucket/runs/job-0123456789", "time_to_live": timedelta(seconds=time_to_live_s)}
    return requested(what or offering(), 7, RUN, token=token, **more)


NAME = str(name_for(request()))
CONFIG = GcpConfig(regions=("us-central1",), project=PROJECT)


def at(minutes: float) -> datetime:
    return BEGAN + timedelta(minutes=minutes)


def stamp(moment: datetime) -> str:
    """As Google writes it: by the clock of its coast."""
    coast = moment.astimezone(UTC) - timedelta(hours=8)
    return coast.strftime("%Y-%m-%dT%H:%M:%S.") + f"{coast.microsecond // 1000:03d}-08:00"


def row(status: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    body = insert_body(request(), CONFIG, PROJECT)
    return {
        "name": NAME,
        "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}",
        "machineType": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/machineTypes/g2-standard-4",
        "status": status,
        "creationTimestamp": stamp(at(0)),
        "lastStartTimestamp": stamp(at(0.5)),
        "labels": body["labels"],
        "scheduling": body["scheduling"],
        **changes,
    }


def operation(kind: str, begin: float, end: float | None = None, of: str = "1", **more: Any) -> dict[str, Any]:
    link = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{NAME}"
    times = {"insertTime": stamp(at(begin)), "startTime": stamp(at(begin))}
    done = {"status": "RUNNING"} if end is None else {"status": "DONE", "endTime": stamp(at(end))}
    return {"operationType": kind, "targetLink": link, "targetId": of, **times, **done, **more}


def told(*operations: dict[str, Any], listed: dict[str, Any] | None = None, seen: Instance | None = None) -> Any:
    record = Record(NAME, listed, read_operations(operations))
    return instance_of(record, lambda *_: (PriceSegment(since=at(-600), usd_per_hour=SPOT_PRICE),), seen)


MADE = operation("insert", 0, 0.5)
PREEMPTED = "compute.instances.preempted"


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_name_says_whose_an_instance_is_and_what() -> None:
    name = name_for(request())
    assert str(name) == "spotrun-0123456789-7-" + name.token_crc + "-s-g2-standard-4"
    assert read_name(str(name)) == name
    assert name.token == f"{RUN}-7"


@pytest.mark.exhaustive
@given(
    st.from_regex(r"[0-9a-f]{10}", fullmatch=True),
    st.integers(1, 99_999),
    st.sampled_from(RENTED),
    st.from_regex(r"[a-z][0-9a-z]{1,3}-[a-z]{3,9}-[0-9]{1,3}(-lssd)?", fullmatch=True),
)
def test_each_name_is_read_back_and_is_one_that_google_takes(
    run_uid: str, launch: int, kind: CapacityType, instance_type: str
) -> None:
    name = Name(run_uid, launch, "0123abcd", kind, instance_type)
    assert read_name(str(name)) == name
    assert len(str(name)) <= NAME_MAX


@pytest.mark.parametrize("other", ["spotrun-", "web-1", "spotrun-0123456789-7-xyz-s-g2", f"{NAME}-", "../../etc", ""])
def test_a_name_that_spotrun_has_not_made_tells_nothing(other: str) -> None:
    assert read_name(other) is None


def test_another_token_is_another_name_and_a_token_that_is_not_the_runners_is_not_guessed() -> None:
    other = name_for(request(token="mine"))
    assert other.token_crc != name_for(request()).token_crc
    assert other.token == ""


# -- the request -------------------------------------------------------------------------------------------------------


def test_g3_g14_a_spot_instance_has_a_limit_and_is_deleted_not_stopped() -> None:
    scheduling = insert_body(request(), CONFIG, PROJECT)["scheduling"]
    assert scheduling == {
        "provisioningModel": "SPOT",
        "preemptible": True,
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": "7200"},
        "preemptionNoticeDuration": {"seconds": "120"},
    }


def test_g10_a_notice_of_two_minutes_is_requested_where_possible() -> None:
    without = insert_body(request(), CONFIG, PROJECT, timedelta())
    assert "preemptionNoticeDuration" not in without["scheduling"]
    assert "SPOTRUN_NOTICE_S=0\n" in without["metadata"]["items"][0]["value"]
    asked = insert_body(request(), CONFIG, PROJECT)
    assert "SPOTRUN_NOTICE_S=120\n" in asked["metadata"]["items"][0]["value"]
    assert request_id(request(), timedelta()) != request_id(request(), timedelta(seconds=120))


@pytest.mark.parametrize(("instance_type", "then"), [("g2-standard-4", "TERMINATE"), ("e2-standard-4", "MIGRATE")])
def test_an_instance_on_demand_moves_when_its_host_is_mended_unless_it_cannot(instance_type: str, then: str) -> None:
    what = offering(CapacityType.ON_DEMAND, instance_type)
    scheduling = insert_body(request(what), CONFIG, PROJECT)["scheduling"]
    assert scheduling["onHostMaintenance"] == then
    assert scheduling["provisioningModel"] == "STANDARD"
    assert scheduling["maxRunDuration"] == {"seconds": "7200"}
    assert "preemptible" not in scheduling


def test_the_disk_goes_with_its_instance_and_is_of_a_kind_that_the_type_takes() -> None:
    for kind, disk in (("g2-standard-4", "pd-balanced"), ("g4-standard-48", "hyperdisk-balanced")):
        (boot,) = insert_body(request(offering(instance_type=kind)), CONFIG, PROJECT)["disks"]
        assert boot["autoDelete"]
        assert boot["initializeParams"]["diskType"] == f"zones/{ZONE}/diskTypes/{disk}"
        assert boot["initializeParams"]["labels"]["spotrun-run"] == RUN


def test_a_hyperdisk_has_no_more_speed_than_what_its_price_includes() -> None:
    """Without a word Google provisions more for a larger disk, and bills it beside the disk."""

    def asked(kind: str) -> set[str]:
        (boot,) = insert_body(request(offering(instance_type=kind)), CONFIG, PROJECT)["disks"]
        return {f"{key}={value}" for key, value in boot["initializeParams"].items() if key.startswith("provisioned")}

    assert asked("g4-standard-48") == {"provisionedIops=3000", "provisionedThroughput=140"}
    assert asked("g2-standard-4") == set()


def test_an_instance_is_as_the_policies_of_an_organization_ask() -> None:
    usual = insert_body(request(), CONFIG, PROJECT)
    strict = GcpConfig(regions=("us-central1",), external_address=False, secure_boot=True, reservation="nights")
    spot, sure = (
        insert_body(request(offering(capacity_type=kind)), strict, PROJECT)
        for kind in (CapacityType.SPOT, CapacityType.ON_DEMAND)
    )
    assert usual["networkInterfaces"][0]["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert "enableSecureBoot" not in usual["shieldedInstanceConfig"]
    assert spot["networkInterfaces"] == [{"subnetwork": usual["networkInterfaces"][0]["subnetwork"]}]
    assert spot["shieldedInstanceConfig"] == {**usual["shieldedInstanceConfig"], "enableSecureBoot": True}
    assert "reservationAffinity" not in {*usual, *spot}, "spot instances use no reservation"
    assert sure["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["nights"],
    }


class Asked:
    """Google, which has every subnetwork that it is asked for, except those of Asia."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def ask(self, action: str, call: Call) -> dict[str, Any]:
        self.paths.append(call.path)
        if "/asia" in call.path:
            raise NotThere(f"Google refused to {action}")
        return {}


def test_a_subnetwork_may_be_of_another_project() -> None:
    google: Any = Asked()
    host = "projects/host-1/regions/us-east1/subnetworks/shared"
    assert find_subnetwork(google, PROJECT, "us-east1", "own") == f"projects/{PROJECT}/regions/us-east1/subnetworks/own"
    assert find_subnetwork(google, PROJECT, "us-east1", host) == host
    assert find_subnetwork(google, PROJECT, "us-west4", host) == host.replace("us-east1", "us-west4")
    with pytest.raises(BadSurroundings, match="asia-east1 has no subnetwork called shared in projects/host-1"):
        find_subnetwork(google, PROJECT, "asia-east1", host)


def test_path_in_a_missing_project_is_named_as_the_fault() -> None:
    google: Any = NoProject()
    for find, key in (
        (
            lambda: find_subnetwork(google, PROJECT, "us-east1", "projects/h/regions/us-east1/subnetworks/x"),
            "subnetwork",
        ),
        (lambda: find_image(google, "projects/h/global/images/x"), "image"),
        (lambda: find_subnetwork(google, PROJECT, "us-east1", "own"), "project"),
    ):
        with pytest.raises(ProjectMissing, match="to find") as raised:
            find()
        assert f"gcp.{key}" in str(raised.value.hint)


class NoProject:
    """Google, which has no project that it is asked for."""

    def ask(self, action: str, call: Call) -> dict[str, Any]:
        raise ProjectMissing(f"Google refused to {action}", hint="name the project in gcp.project")


def test_an_instance_has_the_account_of_its_run_or_the_one_that_the_job_names() -> None:
    def account(config: GcpConfig) -> str:
        return str(insert_body(request(), config, PROJECT)["serviceAccounts"][0]["email"])

    assert account(CONFIG) == f"spotrun-{RUN}@{PROJECT}.iam.gserviceaccount.com"
    own = GcpConfig(regions=("us-central1",), service_account="all@acme-training.iam.gserviceaccount.com")
    assert account(own) == "all@acme-training.iam.gserviceaccount.com"
    assert account_address(RUN, "example.com:acme").endswith("@acme.example.com.iam.gserviceaccount.com")


def test_labels_are_ones_that_google_takes_and_have_the_price_to_the_nano_dollar() -> None:
    labels = insert_body(request(), CONFIG, PROJECT)["labels"]
    assert labels["spotrun-nano-usd-per-hour"] == "397300000"
    assert all(
        set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") and len(text) <= 63 for text in labels.values()
    )


def test_a_zone_names_its_region() -> None:
    resources = ResourcesSpec(cloud="gcp", zone="europe-west4-a")
    assert config_of(resources, GcpSpec()).regions == ("europe-west4",)


# -- what is listed ----------------------------------------------------------------------------------------------------


def test_a_running_instance_is_what_was_asked_for_and_its_moments_are_in_utc() -> None:
    found = told(MADE, listed=row())
    assert (found.run_uid, found.launch, found.token) == (RUN, 7, f"{RUN}-7")
    assert found.offering.pool == offering().pool
    assert (found.offering.accelerators, found.offering.cpus, found.offering.memory_gib) == ("L4:1", 4, 16)
    assert (found.state, found.launched_at, found.billed_from) == (InstanceState.RUNNING, at(0), at(0.5))
    assert found.prices == (PriceSegment(since=at(0.5), usd_per_hour=SPOT_PRICE),)
    assert found.launched_at.utcoffset() == timedelta()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PROVISIONING", InstanceState.PENDING),
        ("STAGING", InstanceState.PENDING),
        ("RUNNING", InstanceState.RUNNING),
        ("REPAIRING", InstanceState.RUNNING),
        ("PENDING_STOP", InstanceState.STOPPING),
        ("STOPPING", InstanceState.STOPPING),
        ("SUSPENDED", InstanceState.STOPPED),
        ("TERMINATED", InstanceState.STOPPED),
        ("A_WORD_OF_NEXT_YEAR", InstanceState.RUNNING),
    ],
)
def test_g3_g8_each_status_is_alive_and_terminated_means_switched_off(status: str, state: InstanceState) -> None:
    found = told(MADE, listed=row(status))
    assert found.state is state
    assert found.alive


def test_instance_that_switched_itself_off_costs_only_its_disk() -> None:
    found = told(MADE, listed=row("TERMINATED", lastStopTimestamp=stamp(at(30))))
    assert [(each.since, each.usd_per_hour) for each in found.prices] == [(at(0.5), SPOT_PRICE), (at(30), Decimal(0))]
    assert found.ended_at is None


def test_a_delete_tells_when_the_machine_had_been_switched_off_where_all_else_is_forgotten() -> None:
    """A week passed before anybody looked, and whoever deleted it is another program."""
    gone = told(MADE, operation("delete", 9000, 9001, clientOperationId=delete_id(at(30))))
    assert [(each.since, each.usd_per_hour) for each in gone.prices] == [(at(0.5), SPOT_PRICE), (at(30), Decimal(0))]
    assert (gone.off_since, gone.ended_at) == (at(30), at(9001))
    assert told(MADE, operation("delete", 20, 21, clientOperationId=delete_id())).off_since is None
    assert told(operation("delete", 9000, 9001, clientOperationId=delete_id(at(30)))).off_since == at(30)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_the_id_of_a_delete_has_the_moment_and_is_another_one_each_time(moment: datetime) -> None:
    to_the_millisecond = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert off_since(delete_id(moment)) == to_the_millisecond
    assert delete_id(moment) != delete_id(moment)


@pytest.mark.parametrize("other", [None, "", "x", str(UUID(int=1 << 100)), str(UUID(int=8 << 76 | 2 << 62))])
def test_another_id_tells_nothing(other: str | None) -> None:
    assert off_since(other) is None
    assert off_since(delete_id()) is None


@pytest.mark.parametrize("labels", [{}, {"spotrun-run": "ffffffffff", "spotrun-launch": "9", "spotrun-token": "x-9"}])
def test_name_says_whose_an_instance_is_whatever_its_labels_say(labels: dict[str, str]) -> None:
    found = told(MADE, listed=row(labels=labels))
    assert (found.run_uid, found.launch, found.token) == (RUN, 7, f"{RUN}-7")
    assert found.offering.pool == offering().pool


def test_labels_that_are_gone_or_of_another_run_are_named() -> None:
    assert odd_labels(row(labels={})) == "no label spotrun-run, spotrun-launch, spotrun-nano-usd-per-hour"
    changed = row(labels={**row()["labels"], "spotrun-run": "ffffffffff"})
    assert odd_labels(changed) == "the label of another run: spotrun-run='ffffffffff'"


def test_row_of_another_name_without_our_label_is_of_no_run() -> None:
    other = row(name="spotrun-web", labels={})
    assert instance_of(Record("spotrun-web", other, ()), lambda *_: (), None) is None


def test_odd_labels_of_anybody_are_named_and_end_nothing() -> None:
    odd = row(labels={"spotrun-run": RUN, "spotrun-launch": "9" * 30, "spotrun-nano-usd-per-hour": "nan"})
    found = told(MADE, listed=odd)
    assert (found.launch, found.offering.price_usd_per_hour) == (7, Decimal(0))
    assert odd_labels(odd) == (
        "labels that nobody can read: spotrun-nano-usd-per-hour='nan', spotrun-launch='99999999999999999999'"
    )
    assert odd_labels(row()) == ""


# -- what is remembered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ended_by"),
    [
        (PREEMPTED, EndedBy.CLOUD),
        ("compute.instances.deferredDelete", EndedBy.TIME_TO_LIVE),
        ("compute.instances.guestTerminate", EndedBy.ITSELF),
        ("compute.instances.hostError", EndedBy.FAULT),
        ("compute.instances.terminateOnHostMaintenance", EndedBy.FAULT),
        ("delete", EndedBy.USER),
    ],
)
def test_g4_a_gone_instance_is_described_from_its_operations(kind: str, ended_by: EndedBy) -> None:
    gone = told(MADE, operation(kind, 20, 21))
    assert (gone.state, gone.ended_by, gone.ended_at) == (InstanceState.TERMINATED, ended_by, at(21))
    assert (gone.run_uid, gone.launch, gone.token) == (RUN, 7, f"{RUN}-7")
    assert gone.offering.pool == offering().pool
    assert gone.billed_from == at(0.5)
    assert kind in gone.end_reason


def test_seen_facts_stay_where_google_has_forgotten_them() -> None:
    seen = told(MADE, listed=row(lastStartTimestamp=stamp(at(0.7))))
    gone = told(MADE, operation("delete", 20, 21), seen=seen)
    assert (gone.billed_from, gone.launched_at) == (at(0.7), at(0))
    assert gone.offering == seen.offering


def test_the_first_end_says_who_ended_it_and_the_last_one_when_its_disk_went() -> None:
    gone = told(MADE, operation("compute.instances.guestTerminate", 20, 20.5), operation("delete", 50, 51))
    assert (gone.ended_by, gone.ended_at) == (EndedBy.ITSELF, at(51))
    assert [(each.since, each.usd_per_hour) for each in gone.prices] == [(at(0.5), SPOT_PRICE), (at(20.5), Decimal(0))]


def test_unseen_machine_of_unknown_price_tells_when_it_was_off() -> None:
    """The ledger knows the price of its launch. Without a first price there is none that ends with 0."""
    ends = operation("stop", 20, 21.5), operation("delete", 3000, 3001)
    gone = instance_of(Record(NAME, None, read_operations((MADE, *ends))), lambda *_: (), None)
    assert gone is not None
    assert (gone.prices, gone.off_since, gone.ended_at) == ((), at(21.5), at(3001))
    assert told(MADE, operation(PREEMPTED, 20, 21)).off_since is None


def test_machine_that_was_started_again_is_billed_until_it_ends_for_good() -> None:
    ends = operation("stop", 20, 21), operation("start", 30, 30.5), operation(PREEMPTED, 60, 61)
    gone = told(MADE, *ends, operation("delete", 90, 91))
    assert (gone.ended_by, gone.off_since, gone.ended_at) == (EndedBy.CLOUD, at(61), at(91))


def test_an_end_that_failed_is_none() -> None:
    refused = operation("delete", 20, 21, httpErrorStatusCode=503, error={"errors": [{"code": "INTERNAL"}]})
    assert told(MADE, refused).alive
    assert told(MADE, refused, operation(PREEMPTED, 30, 31)).ended_by is EndedBy.CLOUD


def test_g2_a_launch_that_failed_afterwards_never_ran() -> None:
    stockout = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "The zone does not have enough."}]}
    quota = {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0"}]}
    for error, ended_by in ((stockout, EndedBy.CLOUD), (quota, EndedBy.QUOTA)):
        gone = told(operation("insert", 0, 0.2, error=error, httpErrorStatusCode=503))
        assert (gone.state, gone.ended_by, gone.billed_from) == (InstanceState.TERMINATED, ended_by, None)
        assert error["errors"][0]["message"] in gone.end_reason


def test_a_launch_that_no_list_shows_is_pending_until_an_operation_ends_it() -> None:
    """Google's list may lack it for a while; taken for gone, it would be launched again."""
    assert told(operation("insert", 0)).state is InstanceState.PENDING
    assert told(MADE).state is InstanceState.PENDING
    running = told(MADE, listed=row())
    assert told(MADE, seen=running) == running
    assert told() is None


def test_g1_an_instance_whose_launch_reports_an_error_is_alive_while_it_is_listed() -> None:
    error = {"errors": [{"code": "INTERNAL_ERROR", "message": "x"}]}
    assert told(operation("insert", 0, 0.2, error=error, httpErrorStatusCode=500), listed=row()).alive


def test_a_name_that_was_used_again_is_that_of_the_newer_instance() -> None:
    older = (operation("insert", 0, 0.5, of="1"), operation("delete", 10, 11, of="1"))
    newer = (operation("insert", 20, 20.5, of="2"), operation(PREEMPTED, 40, 41, of="2"))
    gone = told(*older, *newer)
    assert (gone.launched_at, gone.ended_by, gone.ended_at) == (at(20), EndedBy.CLOUD, at(41))


def test_operations_of_something_else_say_nothing_of_an_instance() -> None:
    disk = {**operation("insert", 0, 1), "targetLink": f"https://x/projects/p/zones/{ZONE}/disks/{NAME}"}
    assert read_operations([disk, {}, {"operationType": "insert", "targetLink": "x/zones/z/instances/y"}]) == []
