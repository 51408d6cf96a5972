"""An instance and its disks, as a project has them and as Compute Engine tells of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.support.gce_answers import URL, Json, fingerprint, moment
from tests.support.gce_catalog import MachineKind, region_of
from tests.support.gce_operations import Operation


@dataclass(eq=False)
class Disk:
    """`kind` is its type; `user` the name of the instance that has it."""

    id: int
    name: str
    project: str
    zone: str
    kind: str
    size_gb: int
    image: str | None
    labels: dict[str, str]
    created: datetime
    auto_delete: bool
    user: str | None

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/disks/{self.name}"

    @property
    def json(self) -> Json:
        base = f"{URL}projects/{self.project}/zones/{self.zone}"
        users = {"users": [f"{base}/instances/{self.user}"]} if self.user is not None else {}
        source = {"sourceImage": self.image} if self.image is not None else {}
        return {
            "kind": "compute#disk",
            "id": str(self.id),
            "name": self.name,
            "zone": base,
            "status": "READY",
            "type": f"{base}/diskTypes/{self.kind}",
            "sizeGb": str(self.size_gb),
            "labels": self.labels,
            "labelFingerprint": fingerprint(self.labels),
            "creationTimestamp": moment(self.created),
            "physicalBlockSizeBytes": "4096",
            "selfLink": f"{URL}{self.path}",
            **users,
            **source,
        }


@dataclass(eq=False)
class Vm:
    """
    `asked` is the body of its insert, and `scheduling` that with what Google adds. `going` is the kind of operation
    that is taking it away, `signalled` when its ACPI signal came. `starts` counts how often it came to run.
    """

    id: int
    project: str
    zone: str
    asked: Json
    kind: MachineKind
    scheduling: Json
    created: datetime
    address: str
    external: str | None
    disks: list[Disk]
    labels: dict[str, str]
    making: Operation | None = None
    status: str = "PROVISIONING"
    started: datetime | None = None
    stopped: datetime | None = None
    off: datetime | None = None
    going: str | None = None
    signalled: datetime | None = None
    starts: int = 0
    ending: list[Operation] = field(default_factory=list)
    """The calls to delete it that wait for its end."""

    @property
    def name(self) -> str:
        return str(self.asked["name"])

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def is_spot(self) -> bool:
        """Also what was asked for as `preemptible`, the older kind."""
        return self.scheduling["provisioningModel"] == "SPOT" or bool(self.scheduling["preemptible"])

    @property
    def is_deleted_at_its_end(self) -> bool:
        """By preemption or time limit. Spot's default is to stop: https://cloud.google.com/compute/docs/instances/spot"""
        return str(self.scheduling.get("instanceTerminationAction")) == "DELETE"

    @property
    def limit(self) -> timedelta | None:
        limit = self.scheduling.get("maxRunDuration")
        return None if limit is None else timedelta(seconds=int(limit["seconds"]))

    @property
    def notice(self) -> timedelta:
        """How long before the ACPI signal its metadata says that it is preempted."""
        return timedelta(seconds=int(self.scheduling.get("preemptionNoticeDuration", {}).get("seconds", 0)))

    @property
    def account(self) -> str | None:
        accounts = self.asked.get("serviceAccounts") or [{}]
        email: str | None = accounts[0].get("email")
        return email

    @property
    def region(self) -> str:
        return region_of(self.zone)

    @property
    def metadata(self) -> dict[str, str]:
        return {each["key"]: each["value"] for each in (self.asked.get("metadata") or {}).get("items") or ()}

    @property
    def json(self) -> Json:
        base = f"{URL}projects/{self.project}/zones/{self.zone}"
        items = (self.asked.get("metadata") or {}).get("items") or []
        tags = (self.asked.get("tags") or {}).get("items") or []
        moments = {
            "creationTimestamp": self.created,
            "lastStartTimestamp": self.started,
            "lastStopTimestamp": self.stopped,
        }
        return {
            "kind": "compute#instance",
            "id": str(self.id),
            "name": self.name,
            "zone": base,
            "machineType": f"{base}/machineTypes/{self.kind.name}",
            "status": self.status,
            "scheduling": self.scheduling,
            "labels": self.labels,
            "labelFingerprint": fingerprint(self.labels),
            "tags": {"items": tags, "fingerprint": fingerprint(tags)} if tags else {"fingerprint": fingerprint(tags)},
            "metadata": {"kind": "compute#metadata", "items": items, "fingerprint": fingerprint(items)},
            "disks": [self._attached(number, disk) for number, disk in enumerate(self.disks)],
            "networkInterfaces": [self._interface],
            "serviceAccounts": self.asked.get("serviceAccounts") or [],
            "guestAccelerators": self._accelerators,
            "cpuPlatform": "Intel Cascade Lake" if self.starts else "Unknown CPU Platform",
            "fingerprint": fingerprint([self.id, self.status]),
            "startRestricted": False,
            "deletionProtection": False,
            "shieldedInstanceConfig": self.asked.get("shieldedInstanceConfig") or {},
            "selfLink": f"{URL}{self.path}",
            **{name: moment(at) for name, at in moments.items() if at is not None},
        }

    def _attached(self, number: int, disk: Disk) -> Json:
        return {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "source": f"{URL}{disk.path}",
            "deviceName": f"persistent-disk-{number}",
            "index": number,
            "boot": number == 0,
            "autoDelete": disk.auto_delete,
            "interface": "SCSI",
            "diskSizeGb": str(disk.size_gb),
        }

    @property
    def _interface(self) -> Json:
        asked = (self.asked.get("networkInterfaces") or [{}])[0]
        base = f"{URL}projects/{self.project}"
        subnet = str(asked.get("subnetwork") or "default").rpartition("/")[2]
        network = str(asked.get("network") or "spotrun" if subnet != "default" else "default").rpartition("/")[2]
        found: dict[str, Any] = {
            "kind": "compute#networkInterface",
            "name": "nic0",
            "network": f"{base}/global/networks/{network}",
            "subnetwork": f"{base}/regions/{self.region}/subnetworks/{subnet}",
            "networkIP": self.address,
            "fingerprint": fingerprint(self.address),
        }
        if self.external is not None:
            access: dict[str, Any] = {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "External NAT"}
            if self.status in ("RUNNING", "STOPPING"):
                access["natIP"] = self.external
            found["accessConfigs"] = [access]
        return found

    @property
    def _accelerators(self) -> list[Json]:
        gpu = self.kind.gpu
        if gpu is None:
            return []
        link = f"{URL}projects/{self.project}/zones/{self.zone}/acceleratorTypes/{gpu.name}"
        return [{"acceleratorType": link, "acceleratorCount": gpu.number}]
