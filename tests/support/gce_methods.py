"""
The methods of Compute Engine that a project answers: https://cloud.google.com/compute/docs/reference/rest/v1.

Each handler takes what was asked and gives the answer, or raises the Refusal that Google would send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from tests.support.gce_advice import capacity_history
from tests.support.gce_answers import Json, Refusal, not_found
from tests.support.gce_catalog import (
    NETWORKS,
    PROJECT_NUMBER,
    REGIONS,
    ZONES,
)
from tests.support.gce_insert import check_request_id
from tests.support.gce_lists import Listed, Lists
from tests.support.gce_operations import Operation
from tests.support.gce_project import GceProject
from tests.support.gce_resources import Resources
from tests.support.gce_vm import Disk, Vm
from tests.support.google_api import Asked

WAIT = timedelta(minutes=2)
"""https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations/wait"""
_ZONE_SCOPES = tuple(f"zones/{zone}" for zone in ZONES)
_REGION_SCOPES = tuple(f"regions/{region}" for region in REGIONS)


class GceMethods:
    """
    `waits`: whether zoneOperations.wait takes its time, as it need not. `firewalls` are rules of the project, and
    `reservations` what it has reserved.
    """

    def __init__(self, project: GceProject) -> None:
        self.project = project
        self.waits = True
        self.firewalls: list[dict[str, Any]] = []
        self.reservations: list[Listed] = []
        self._resources = Resources(project.name, project.supply)

    @property
    def handlers(self) -> Mapping[str, Callable[[Asked], Json]]:
        return {f"compute.{name}": handler for name, handler in {**self._of_instances, **self._of_the_catalog}.items()}

    @property
    def _of_instances(self) -> Mapping[str, Callable[[Asked], Json]]:
        return {
            "disks.aggregatedList": lambda asked: self._aggregated("Disk", "disks", asked, self._disks()),
            "disks.delete": self._delete_disk,
            "disks.get": lambda asked: self._disk(asked).json,
            "disks.list": lambda asked: self._of_zone("Disk", asked, self._disks()),
            "globalOperations.aggregatedList": self._all_operations,
            "instances.aggregatedList": lambda asked: self._aggregated("Instance", "instances", asked, self._vms()),
            "instances.delete": self._delete,
            "instances.get": lambda asked: self._vm(asked).json,
            "instances.insert": self._insert,
            "instances.simulateMaintenanceEvent": self._simulate_maintenance,
            "zoneOperations.get": lambda asked: self._operation(asked).json,
        }

    @property
    def _of_the_catalog(self) -> Mapping[str, Callable[[Asked], Json]]:
        there, project = self._resources, self.project
        return {
            "advice.capacityHistory": lambda asked: capacity_history(project, self._region(asked), asked.body),
            "diskTypes.get": lambda asked: there.disk_type(self._zone(asked), asked.arguments["diskType"]),
            "firewalls.list": lambda asked: self._global("Firewall", asked, self.firewalls),
            "images.get": lambda asked: there.image(asked.arguments["project"], asked.arguments["image"]),
            "images.getFromFamily": lambda asked: there.newest_image(
                asked.arguments["project"], asked.arguments["family"]
            ),
            "machineTypes.get": lambda asked: there.machine_type(self._zone(asked), asked.arguments["machineType"]),
            "machineTypes.list": lambda asked: self._of_zone("MachineType", asked, there.machine_types()),
            "networks.get": lambda asked: there.network(self._own(asked)["network"]),
            "networks.list": lambda asked: self._global("Network", asked, map(there.network, NETWORKS)),
            "projects.get": self._whole_project,
            "regions.get": lambda asked: there.region(self._region(asked)),
            "regions.list": lambda asked: self._global("Region", asked, map(there.region, REGIONS)),
            "reservations.aggregatedList": lambda asked: self._aggregated(
                "Reservation", "reservations", asked, self.reservations
            ),
            "subnetworks.get": lambda asked: there.subnetwork(self._region(asked), asked.arguments["subnetwork"]),
            "subnetworks.list": self._region_subnetworks,
            "zones.get": lambda asked: there.zone(self._zone(asked)),
            "zones.list": lambda asked: self._global("Zone", asked, map(there.zone, ZONES)),
        }

    def wait(self, asked: Asked) -> Json:
        """Until the operation is over, for 2 min at most. What the clock shows passes, for all who go by it."""
        until = asked.at + WAIT
        while True:
            with self.project.lock:
                self.project.settle()
                operation = self._operation(asked)
                if not self.waits or operation.status == "DONE" or self.project.now >= until:
                    return operation.json
            self.project.clock.sleep(1.0)

    # -- instances -----------------------------------------------------------------------------------------------

    def _insert(self, asked: Asked) -> Json:
        zone = self._zone(asked)
        return self._once(asked, lambda: self.project.insert(zone, asked.body, asked.who, _request_id(asked)))

    def _delete(self, asked: Asked) -> Json:
        return self._once(asked, lambda: self.project.delete(self._vm(asked), asked.who, _request_id(asked)))

    def _simulate_maintenance(self, asked: Asked) -> Json:
        def act() -> Operation:
            return self.project.simulate_maintenance(self._vm(asked), asked.who, _request_id(asked))

        return self._once(asked, act)

    def _once(self, asked: Asked, act: Callable[[], Operation]) -> Json:
        """A repeated requestId does nothing: https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert."""
        check_request_id(_request_id(asked))
        first = self.project.operations.repeated(_request_id(asked), self.project.now)
        return (first or act()).json

    def _vm(self, asked: Asked) -> Vm:
        zone, name = self._zone(asked), asked.arguments["instance"]
        for vm in self.project.vms.values():
            if vm.zone == zone and name in (vm.name, str(vm.id)):
                return vm
        raise not_found(f"projects/{self.project.name}/zones/{zone}/instances/{name}")

    def _vms(self) -> list[Listed]:
        return [Listed(f"zones/{vm.zone}", vm.json) for vm in self.project.vms.values()]

    # -- disks ---------------------------------------------------------------------------------------------------

    def _disk(self, asked: Asked) -> Disk:
        zone, name = self._zone(asked), asked.arguments["disk"]
        for disk in self.project.disks.values():
            if disk.zone == zone and name in (disk.name, str(disk.id)):
                return disk
        raise not_found(f"projects/{self.project.name}/zones/{zone}/disks/{name}")

    def _disks(self) -> list[Listed]:
        return [Listed(f"zones/{disk.zone}", disk.json) for disk in self.project.disks.values()]

    def _delete_disk(self, asked: Asked) -> Json:
        disk = self._disk(asked)
        if disk.user is not None:
            message = f"The disk resource '{disk.path}' is already being used by '{disk.user}'"
            raise Refusal(400, "resourceInUseByAnotherResource", message)
        return self._once(asked, lambda: self.project.delete_disk(disk, asked.who, _request_id(asked)))

    # -- operations ----------------------------------------------------------------------------------------------

    def _operation(self, asked: Asked) -> Operation:
        zone, name = self._zone(asked), asked.arguments["operation"]
        for each in self.project.operations.known(self.project.now):
            if each.zone == zone and name in (each.name, str(each.id)):
                return each
        raise not_found(f"projects/{self.project.name}/zones/{zone}/operations/{name}")

    def _operations(self) -> list[Listed]:
        return [Listed(f"zones/{each.zone}", each.json) for each in self.project.operations.known(self.project.now)]

    def _all_operations(self, asked: Asked) -> Json:
        scopes = ("global", *_REGION_SCOPES, *_ZONE_SCOPES)
        return self._aggregated("Operation", "operations", asked, self._operations(), scopes)

    # -- places --------------------------------------------------------------------------------------------------

    def _own(self, asked: Asked) -> Mapping[str, str]:
        """The arguments of a call that is for this project."""
        if asked.arguments["project"] not in (self.project.name, PROJECT_NUMBER):
            raise not_found(f"projects/{asked.arguments['project']}")
        return asked.arguments

    def _zone(self, asked: Asked) -> str:
        zone = self._own(asked)["zone"]
        if zone not in ZONES:
            raise Refusal(400, "invalid", f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        return zone

    def _region(self, asked: Asked) -> str:
        region = self._own(asked)["region"]
        if region not in REGIONS:
            raise Refusal(400, "invalid", f"Invalid value for field 'region': '{region}'. Unknown region.")
        return region

    @property
    def _lists(self) -> Lists:
        scopes = frozenset(f"zones/{zone}" for zone in self.project.unreachable)
        return Lists(self.project.name, scopes)

    def _whole_project(self, asked: Asked) -> Json:
        self._own(asked)
        return self._resources.project()

    def _region_subnetworks(self, asked: Asked) -> Json:
        scope = f"regions/{self._region(asked)}"
        here = [each.resource for each in self._resources.subnetworks() if each.scope == scope]
        return self._lists.plain("Subnetwork", asked.query, here, scope)

    def _global(self, schema: str, asked: Asked, resources: Iterable[Json]) -> Json:
        self._own(asked)
        return self._lists.plain(schema, asked.query, resources, "global")

    def _of_zone(self, schema: str, asked: Asked, listed: list[Listed]) -> Json:
        scope = f"zones/{self._zone(asked)}"
        here = [each.resource for each in listed if each.scope == scope]
        return self._lists.plain(schema, asked.query, here, scope)

    def _aggregated(
        self, schema: str, field: str, asked: Asked, listed: list[Listed], scopes: tuple[str, ...] = _ZONE_SCOPES
    ) -> Json:
        self._own(asked)
        return self._lists.aggregated(schema, field, asked.query, listed, scopes)


def _request_id(asked: Asked) -> str | None:
    return asked.query.get("requestId")
