"""What Compute Engine tells of its catalog: zones, regions with quotas, machine types, images, networks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.gce_answers import URL, Json, fingerprint, not_found
from tests.support.gce_catalog import (
    DISK_PRICES,
    IMAGES,
    KINDS,
    NETWORKS,
    PROJECT_NUMBER,
    REGIONS,
    SUBNETS,
    ZONES,
    ImageKind,
    MachineKind,
    SubnetKind,
    region_of,
)
from tests.support.gce_lists import Listed
from tests.support.gce_supply import Supply
from tests.support.google_api import slices

_MADE = "2013-03-25T00:00:00.000-07:00"
_METRICS = set(slices()["compute.v1"]["schemas"]["Quota"]["properties"]["metric"]["enum"])


class Resources:
    def __init__(self, project: str, supply: Supply) -> None:
        self._project = project
        self._base = f"{URL}projects/{project}"
        self._supply = supply

    def project(self) -> Json:
        used = {"GPUS_ALL_REGIONS": self._supply.gpus_in_use()}
        quotas = [
            {"metric": metric, "limit": float(limit), "usage": float(used.get(metric, 0))}
            for metric, limit in self._supply.global_quotas.items()
        ]
        return {
            "kind": "compute#project",
            "id": PROJECT_NUMBER,
            "name": self._project,
            "creationTimestamp": _MADE,
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint([])},
            "defaultServiceAccount": f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com",
            "quotas": quotas,
            "selfLink": self._base,
        }

    def zone(self, zone: str) -> Json:
        return {
            "kind": "compute#zone",
            "id": str(2000 + ZONES.index(zone)),
            "name": zone,
            "creationTimestamp": _MADE,
            "description": zone,
            "status": "UP",
            "region": f"{self._base}/regions/{region_of(zone)}",
            "selfLink": f"{self._base}/zones/{zone}",
        }

    def region(self, region: str) -> Json:
        return {
            "kind": "compute#region",
            "id": str(1000 + list(REGIONS).index(region)),
            "name": region,
            "creationTimestamp": _MADE,
            "description": region,
            "status": "UP",
            "zones": [f"{self._base}/zones/{zone}" for zone in REGIONS[region]],
            "quotas": list(self._quotas(region)),
            "selfLink": f"{self._base}/regions/{region}",
        }

    def _quotas(self, region: str) -> Iterator[Json]:
        """Those of newer GPUs are not told: https://cloud.google.com/compute/resource-usage."""
        for (metric, where), limit in self._supply.quotas.items():
            if where == region and metric in _METRICS:
                usage = self._supply.usage(metric, region)
                yield {"metric": metric, "limit": float(limit), "usage": float(usage)}

    def machine_types(self) -> list[Listed]:
        return [Listed(f"zones/{zone}", self._kind(kind, zone)) for kind in KINDS.values() for zone in kind.zones]

    def machine_type(self, zone: str, name: str) -> Json:
        kind = KINDS.get(name)
        if kind is None or zone not in kind.zones:
            raise not_found(f"projects/{self._project}/zones/{zone}/machineTypes/{name}")
        return self._kind(kind, zone)

    def _kind(self, kind: MachineKind, zone: str) -> Json:
        found = {
            "kind": "compute#machineType",
            "id": str(100_000 + list(KINDS).index(kind.name)),
            "name": kind.name,
            "creationTimestamp": _MADE,
            "description": f"{kind.cpus} vCPUs, {kind.memory_mb // 1024} GB RAM",
            "guestCpus": kind.cpus,
            "memoryMb": kind.memory_mb,
            "architecture": "X86_64",
            "isSharedCpu": kind.name == "e2-medium",
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "zone": zone,
            "selfLink": f"{self._base}/zones/{zone}/machineTypes/{kind.name}",
        }
        if (gpu := kind.gpu) is not None:
            found["accelerators"] = [{"guestAcceleratorType": gpu.name, "guestAcceleratorCount": gpu.number}]
        return found

    def disk_type(self, zone: str, name: str) -> Json:
        if name not in DISK_PRICES:
            raise not_found(f"projects/{self._project}/zones/{zone}/diskTypes/{name}")
        return {
            "kind": "compute#diskType",
            "id": str(6000 + list(DISK_PRICES).index(name)),
            "name": name,
            "creationTimestamp": _MADE,
            "description": name,
            "defaultDiskSizeGb": "100",
            "validDiskSize": "10GB-65536GB",
            "zone": f"{self._base}/zones/{zone}",
            "selfLink": f"{self._base}/zones/{zone}/diskTypes/{name}",
        }

    def image(self, project: str, name: str) -> Json:
        for image in IMAGES:
            if (image.project, image.name) == (project, name):
                return _image(image)
        raise not_found(f"projects/{project}/global/images/{name}")

    def newest_image(self, project: str, family: str) -> Json:
        for image in IMAGES:
            if (image.project, image.family) == (project, family):
                return _image(image)
        raise not_found(f"projects/{project}/global/images/family/{family}")

    def subnetworks(self) -> list[Listed]:
        return [Listed(f"regions/{each.region}", self._subnetwork(each)) for each in SUBNETS]

    def subnetwork(self, region: str, name: str) -> Json:
        for each in SUBNETS:
            if (each.region, each.name) == (region, name):
                return self._subnetwork(each)
        raise not_found(f"projects/{self._project}/regions/{region}/subnetworks/{name}")

    def _subnetwork(self, subnet: SubnetKind) -> Json:
        return {
            "kind": "compute#subnetwork",
            "id": str(3000 + SUBNETS.index(subnet)),
            "name": subnet.name,
            "creationTimestamp": _MADE,
            "network": f"{self._base}/global/networks/{subnet.network}",
            "region": f"{self._base}/regions/{subnet.region}",
            "ipCidrRange": subnet.cidr,
            "gatewayAddress": subnet.cidr.replace(".0.0/20", ".0.1"),
            "privateIpGoogleAccess": True,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "selfLink": f"{self._base}/regions/{subnet.region}/subnetworks/{subnet.name}",
        }

    def network(self, name: str) -> Json:
        if name not in NETWORKS:
            raise not_found(f"projects/{self._project}/global/networks/{name}")
        here = [each for each in SUBNETS if each.network == name]
        return {
            "kind": "compute#network",
            "id": str(4000 + NETWORKS.index(name)),
            "name": name,
            "creationTimestamp": _MADE,
            "autoCreateSubnetworks": name == "default",
            "subnetworks": [f"{self._base}/regions/{each.region}/subnetworks/{each.name}" for each in here],
            "selfLink": f"{self._base}/global/networks/{name}",
        }


def _image(image: ImageKind) -> Json:
    return {
        "kind": "compute#image",
        "id": str(5000 + IMAGES.index(image)),
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "creationTimestamp": "2026-11-01T00:00:00.000-07:00",
        "diskSizeGb": str(image.size_gb),
        "archiveSizeBytes": "1073741824",
        "architecture": "X86_64",
        "sourceType": "RAW",
        "selfLink": f"{URL}projects/{image.project}/global/images/{image.name}",
    }
