"""The check of calls to Google Cloud finds what Google would refuse, and nothing in what is right."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from tests.data.google_slices import METHODS, sliced
from tests.support.gcp_permissions import ALWAYS
from tests.support.google_api import Called, GoogleApi, Unknown

API = GoogleApi()
ZONE = "/compute/v1/projects/acme/zones/us-central1-a"
INSERT = f"{ZONE}/instances?requestId=5a9b0c5e-8b1f-5c5d-9d3e-0c9b1f5c5d9d"
BODY: dict[str, Any] = {
    "name": "spotrun-0123456789-1-a-s-g2-standard-4",
    "machineType": "zones/us-central1-a/machineTypes/g2-standard-4",
    "labels": {"spotrun-run": "0123456789"},
    "tags": None,
    "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"diskSizeGb": "100"}}],
    "networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/nodes"}],
    "scheduling": {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": "7200"},
        "preemptionNoticeDuration": {"seconds": 120},
    },
}


def called(verb: str, target: str) -> Called:
    found = API.called(verb, target)
    assert found.faults == ()
    return found


def with_field(body: Any, path: str, value: Any) -> Any:
    """A copy with this in it."""
    changed = place = copy.deepcopy(body)
    *names, last = path.split(".")
    for name in names:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return changed


# -- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "target", "method", "arguments"),
    [
        ("POST", INSERT, "compute.instances.insert", {"project": "acme", "zone": "us-central1-a"}),
        ("GET", f"{ZONE}/instances/a", "compute.instances.get", {"instance": "a"}),
        ("GET", f"{ZONE}/instances/12345", "compute.instances.get", {"instance": "12345"}),
        ("GET", "/compute/v1/projects/example.com:acme", "compute.projects.get", {"project": "example.com:acme"}),
        ("GET", "/compute/v1/projects/acme/global/images/family/f", "compute.images.getFromFamily", {"family": "f"}),
        ("POST", f"{ZONE}/operations/operation-1/wait", "compute.zoneOperations.wait", {"operation": "operation-1"}),
        ("GET", "/storage/v1/b/runs/o/r-1%2Fjob.yaml?alt=media", "storage.objects.get", {"object": "r-1/job.yaml"}),
        ("POST", "/upload/storage/v1/b/runs/o?uploadType=media&name=a", "storage.objects.insert", {"bucket": "runs"}),
        ("PUT", "/storage/v1/b/runs/managedFolders/r-1%2F/iam", "storage.managedFolders.setIamPolicy",
         {"managedFolder": "r-1/"}),
        ("POST", "/v1/projects/acme/serviceAccounts", "iam.projects.serviceAccounts.create", {"name": "projects/acme"}),
        ("POST", "/v1/projects/-/serviceAccounts/a@b.c:getIamPolicy", "iam.projects.serviceAccounts.getIamPolicy",
         {"resource": "projects/-/serviceAccounts/a@b.c"}),
        ("POST", "/v3/projects/acme:testIamPermissions", "cloudresourcemanager.projects.testIamPermissions",
         {"resource": "projects/acme"}),
        ("GET", "/v1/services/6F81-5844-456A/skus", "cloudbilling.services.skus.list",
         {"parent": "services/6F81-5844-456A"}),
        ("GET", "/v1/projects/acme/services?filter=state:ENABLED", "serviceusage.services.list",
         {"parent": "projects/acme"}),
        ("GET", "/v1/projects/acme/services:batchGet?names=a&names=b", "serviceusage.services.batchGet",
         {"parent": "projects/acme"}),
    ],
)  # fmt: skip
def test_a_url_calls_the_method_that_google_calls_so(
    verb: str, target: str, method: str, arguments: dict[str, str]
) -> None:
    found = called(verb, target)
    assert found.method.id == method
    assert arguments.items() <= found.arguments.items()


@pytest.mark.parametrize(
    ("verb", "target"),
    [
        ("PUT", INSERT),
        ("GET", f"{ZONE}/instance/a"),
        ("GET", "/compute/v1/projects/acme/zones"[:-1]),
        ("GET", "/compute/beta/projects/acme/zones"),
        ("POST", "/v1/projects/acme/serviceAccounts/a@b.c:setIamPolicy"),
        ("GET", "/v3/organizations/1"),
    ],
)
def test_undocumented_method_is_unknown(verb: str, target: str) -> None:
    with pytest.raises(Unknown):
        API.called(verb, target)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (f"{ZONE}/disks?request_id=a", "query: no parameter is called request_id"),
        (f"{ZONE}/disks?zone=a", "query: no parameter is called zone"),
        (f"{ZONE}/disks?maxResults=all", "query maxResults: 'all' is no integer"),
        (f"{ZONE}/disks?maxResults=-1", "query maxResults: -1 is not between 0 and 4294967295"),
        (f"{ZONE}/disks?returnPartialSuccess=1", "query returnPartialSuccess: '1' is no boolean"),
        (f"{ZONE}/disks?filter=a&filter=b", "query filter: given twice"),
        (f"{ZONE}/disks?alt=xml", "query alt: 'xml' is none of json, media, proto"),
        (f"{ZONE}/instances/a/serialPort?port=5", "query port: 5 is not between 1 and 4"),
        (f"{ZONE}/instances/a/serialPort?start=x", "query start: 'x' is no int64 as text"),
        ("/storage/v1/b/runs/iam/testPermissions", "query: permissions is missing"),
        ("/compute/v1/projects/acme/zones/US/disks", "path zone: 'US' does not match"),
        (f"{ZONE}/instances/under_scored", "path instance: 'under_scored' does not match"),
    ],
)
def test_fault_in_a_url_is_found(target: str, fault: str) -> None:
    (found,) = API.called("GET", target).faults
    assert found.startswith(fault)


def test_undocumented_parameters_of_gcloud_are_no_fault() -> None:
    called("GET", "/compute/v1/projects/acme/aggregated/instances?returnPartialSuccess=true&filter=labels.a%3A%2A")
    called("GET", "/compute/v1/projects/acme/aggregated/instances?returnPartialSuccess=True&includeAllScopes=True")


# -- bodies ----------------------------------------------------------------------------------------------------------


def test_a_right_body_has_no_fault() -> None:
    assert API.request_faults(called("POST", INSERT), BODY) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("scheduling.provisoningModel", "SPOT", "body.scheduling: no field is called provisoningModel"),
        ("scheduling.provisioningModel", "CHEAP", "body.scheduling.provisioningModel: 'CHEAP' is none of"),
        ("scheduling.automaticRestart", "false", "body.scheduling.automaticRestart: 'false' is no boolean"),
        ("scheduling.maxRunDuration", "7200s", "body.scheduling.maxRunDuration: '7200s' is no object"),
        ("scheduling.maxRunDuration", {"seconds": "2 h"}, "body.scheduling.maxRunDuration.seconds: '2 h' is no int64"),
        ("scheduling.maxRunDuration", {"seconds": 7200.5}, "body.scheduling.maxRunDuration.seconds: 7200.5 is no int"),
        ("scheduling.maxRunDuration", {"seconds": True}, "body.scheduling.maxRunDuration.seconds: True is no integer"),
        ("scheduling.maxRunDuration", {"nanos": 2**31}, "body.scheduling.maxRunDuration.nanos: 2147483648 is not with"),
        ("name", "Spotrun", "body.name: 'Spotrun' does not match"),
        ("name", "a" * 64, f"body.name: '{'a' * 64}' does not match"),
        ("name", None, "body: name is missing"),
        ("labels", {"a": 1}, "body.labels.a: 1 is no text"),
        ("labels", ["a"], "body.labels: ['a'] is no object"),
        ("disks", {"boot": True}, "body.disks: {'boot': True} is no list"),
        ("disks.0.initializeParams.diskSizeGB", "9", "body.disks[0].initializeParams: no field is called diskSizeGB"),
        ("labelFingerprint", "#not base64#", "body.labelFingerprint: '#not base64#' is no byte"),
    ],
)
def test_fault_in_a_body_is_found(path: str, value: Any, fault: str) -> None:
    (found,) = API.request_faults(called("POST", INSERT), with_field(BODY, path, value))
    assert found.startswith(fault)


def test_a_body_that_is_not_there_misses_what_it_must_have() -> None:
    assert API.request_faults(called("POST", INSERT), None) == ["body: name is missing"]


def test_a_method_without_a_body_takes_none() -> None:
    stop = called("POST", f"{ZONE}/operations/operation-1/wait")
    assert API.request_faults(stop, {"timeout": 5}) == ["compute.zoneOperations.wait takes no body"]
    assert API.request_faults(stop, None) == API.request_faults(stop, {}) == []


# -- answers ---------------------------------------------------------------------------------------------------------

OPERATION = {
    "id": "1234567890123456789",
    "name": "operation-1",
    "status": "DONE",
    "targetId": "9",
    "progress": 100,
    "error": {"errors": [{"code": "QUOTA_EXCEEDED", "errorDetails": [{"quotaInfo": {"limit": 1.0}}]}]},
}


def test_a_right_answer_has_no_fault() -> None:
    assert API.answer_faults(called("POST", INSERT), OPERATION) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("id", 1234, "answer.id: 1234 is no uint64 as text"),
        ("targetId", "-1", "answer.targetId: -1 is not within uint64"),
        ("status", "OVER", "answer.status: 'OVER' is none of"),
        ("progress", "100", "answer.progress: '100' is no integer"),
        ("error.errors.0.reason", "x", "answer.error.errors[0]: no field is called reason"),
        (
            "error.errors.0.errorDetails.0.quotaInfo.limit",
            "1",
            "answer.error.errors[0].errorDetails[0].quotaInfo.limit",
        ),
        ("endtime", "2026", "answer: no field is called endtime"),
    ],
)
def test_fault_in_an_answer_is_found(path: str, value: Any, fault: str) -> None:
    (found,) = API.answer_faults(called("POST", INSERT), with_field(OPERATION, path, value))
    assert found.startswith(fault)


def test_forms_of_text_are_looked_at() -> None:
    policy = called("GET", "/storage/v1/b/runs/iam")
    assert API.answer_faults(policy, {"etag": "CAE="}) == []
    assert API.answer_faults(policy, {"etag": "C"}) == ["answer.etag: 'C' is no byte"]
    bucket = called("GET", "/storage/v1/b/runs")
    assert API.answer_faults(bucket, {"timeCreated": "2026-01-02T03:04:05.678Z"}) == []
    assert len(API.answer_faults(bucket, {"timeCreated": "2026-01-02"})) == 1


# -- the slices ------------------------------------------------------------------------------------------------------


def test_all_that_spotrun_may_call_is_described() -> None:
    assert set(ALWAYS) <= API.methods


def test_a_slice_has_what_its_methods_are_made_of_and_no_more() -> None:
    document = {
        "revision": "7",
        "servicePath": "",
        "parameters": {},
        "resources": {
            "things": {
                "methods": {
                    "get": {"httpMethod": "GET", "path": "t", "parameters": {}, "response": {"$ref": "Thing"}},
                    "set": {"httpMethod": "PUT", "path": "t", "parameters": {}, "request": {"$ref": "Other"}},
                }
            }
        },
        "schemas": {
            "Thing": {
                "type": "object",
                "description": "words",
                "properties": {"description": {"type": "array", "items": {"$ref": "Part", "description": "words"}}},
            },
            "Part": {"type": "object", "properties": {"whole": {"$ref": "Thing"}}},
            "Other": {"type": "object"},
        },
    }
    found = sliced(document, "wheel", "things.get")
    assert set(found["methods"]) == {"things.get"}
    assert set(found["schemas"]) == {"Part", "Thing"}
    assert found["schemas"]["Thing"]["properties"] == {"description": {"type": "array", "items": {"$ref": "Part"}}}
    assert "words" not in json.dumps(found)
    with pytest.raises(KeyError):
        sliced(document, "wheel", "things.make")


def test_the_slices_are_those_that_their_script_writes() -> None:
    named = {f"{api.partition('.')[0]}.{name}" for api, names in METHODS.items() for name in names.split()}
    assert named == API.methods


def test_a_request_is_checked_within_a_millisecond() -> None:
    def spent_s() -> float:
        before = time.perf_counter()
        for _ in range(20):
            API.request_faults(called("POST", INSERT), BODY)
        return (time.perf_counter() - before) / 20

    assert min(spent_s() for _ in range(10)) < 0.001
