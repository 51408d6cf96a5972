"""Bare calls of Compute Engine's API, for tests of the fake itself: what is sent, and what comes back, as they are."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from tests.support.google_cloud import COMPUTE
from tests.support.google_login import TOKEN
from tests.support.google_server import GoogleServer

ZONE, REGION = "us-central1-a", "us-central1"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
SPOT_FOR_TWO_HOURS: Mapping[str, Any] = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "7200"},
    "preemptionNoticeDuration": {"seconds": "120"},
}
ON_DEMAND: Mapping[str, Any] = {"provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE"}


class Answered(NamedTuple):
    status: int
    body: Any
    date: str

    @property
    def reason(self) -> str:
        """Of an error."""
        return str(self.body["error"]["errors"][0]["reason"])


def wished(
    name: str, kind: str = "g2-standard-4", scheduling: Mapping[str, Any] = SPOT_FOR_TWO_HOURS, **fields: Any
) -> dict[str, Any]:
    """The body of an insert; `fields` are put over it."""
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/{kind}",
        "labels": {"spotrun-run": "0123456789"},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": IMAGE,
                    "diskSizeGb": "100",
                    "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
                },
            }
        ],
        "networkInterfaces": [
            {
                "subnetwork": f"regions/{REGION}/subnetworks/spotrun",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "scheduling": dict(scheduling),
        **fields,
    }


class GceCalls:
    """Paths are those from the project or the zone on."""

    def __init__(self, gce: GoogleServer, token: str = TOKEN) -> None:
        self._gce = gce
        self._token = token

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> Answered:
        """
        Raises:
            ConnectionError, http.client.RemoteDisconnected: there was no answer.
        """
        connection = http.client.HTTPConnection(urlsplit(self._gce.url).netloc, timeout=20)
        target = f"{COMPUTE}projects/{self._gce.project.name}/{path}".rstrip("/")
        text = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self._token}"}
        connection.request(verb, f"{target}?{urlencode(query, quote_via=quote)}" if query else target, text, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read() or "null")
        connection.close()
        return Answered(answer.status, found, answer.headers["Date"])

    def insert(self, body: Any, zone: str = ZONE, **query: Any) -> Answered:
        return self.call("POST", f"zones/{zone}/instances", body, **query)

    def delete(self, name: str, **query: Any) -> Answered:
        return self.call("DELETE", f"zones/{ZONE}/instances/{name}", **query)

    def get(self, name: str) -> Answered:
        return self.call("GET", f"zones/{ZONE}/instances/{name}")

    def waited(self, answered: Answered, zone: str = ZONE) -> Mapping[str, Any]:
        """The operation of an answer, when it is over."""
        assert answered.status == 200, answered.body
        path = f"zones/{zone}/operations/{answered.body['name']}/wait"
        found: Mapping[str, Any] = self.call("POST", path).body
        return found

    def run(self, name: str, zone: str = ZONE, **wishes: Any) -> Mapping[str, Any]:
        """An instance that is RUNNING."""
        operation = self.waited(self.insert(wished(name, **wishes), zone), zone)
        assert "error" not in operation, operation
        found: Mapping[str, Any] = self.get(name).body
        return found

    def operations(self, **query: Any) -> list[Mapping[str, Any]]:
        """Of all zones."""
        found = self.call("GET", "aggregated/operations", **query).body["items"].values()
        return [each for scope in found for each in scope.get("operations", ())]

    def names(self, **query: Any) -> list[str]:
        """Of the instances of all zones, on one page."""
        found = self.call("GET", "aggregated/instances", **query).body["items"].values()
        return [each["name"] for scope in found for each in scope.get("instances", ())]
