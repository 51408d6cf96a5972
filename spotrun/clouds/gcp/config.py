"""The configuration of the Compute Engine driver, as plain values."""

from __future__ import annotations

import msgspec

from spotrun.instance import VOLUME_GIB
from spotrun.spec.model import GcpSpec, ResourcesSpec

OWN_ACCOUNT = "spotrun-"
"""Prefix of the id of a run's service account. The run's uid follows it."""
HYPERDISK_ONLY = ("a4", "a4x", "c4", "c4a", "c4d", "g4", "n4", "n4d", "h4d", "x4")
"""Families that do not support Persistent Disk: https://cloud.google.com/compute/docs/disks/hyperdisks"""


class GcpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    The regions to rent in, and the machine image, disk, network and service account of each instance.

    If `project` is None, the login determines the project. Only the types in `instance_types` are offered. If it is
    empty, `accelerators` names the offered accelerators or types. If both are empty, every x86_64 type is offered.
    `image` is the path of a machine image or of an image family. `subnetwork` is a name, or the path of a subnetwork in
    another project; it has the same name in each region. On-demand instances use the `reservation`, if it is given. All
    runs share the account with the address `service_account`; if it is None, each run has its own.
    """

    regions: tuple[str, ...]
    project: str | None = None
    instance_types: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    image: str = ""
    subnetwork: str = "spotrun"
    external_address: bool = True
    secure_boot: bool = False
    reservation: str | None = None
    service_account: str | None = None
    volume_gib: int = VOLUME_GIB

    def wants(self, accelerators: str, instance_type: str) -> bool:
        """Return True if `self.accelerators` names this type or its accelerators."""
        names = {each.casefold() for each in self.accelerators}
        return not names.isdisjoint({accelerators.casefold(), instance_type.casefold()})

    def account_of(self, run_uid: str, project: str) -> str:
        return self.service_account or account_address(run_uid, project)


def account_address(run_uid: str, project: str) -> str:
    """
    Return the address of the account that spotrun creates for a run. If the project's id includes a domain, as in
    `example.com:project`, the two are in reverse order in the address:
    https://cloud.google.com/iam/docs/service-account-types
    """
    domain, _, name = project.rpartition(":")
    return f"{OWN_ACCOUNT}{run_uid}@{name}{'.' * bool(domain)}{domain}.iam.gserviceaccount.com"


def config_of(resources: ResourcesSpec, gcp: GcpSpec) -> GcpConfig:
    """
    Return the configuration that a job describes. A region, zone or type that `resources` names takes precedence over
    the lists in `gcp`.
    """
    region = resources.region or (resources.zone and region_of(resources.zone))
    kind = resources.instance_type
    return GcpConfig(
        project=gcp.project,
        regions=_in_small_letters(gcp.regions if region is None else (region,)),
        instance_types=_in_small_letters(gcp.instance_types if kind is None else (kind,)),
        accelerators=tuple(map(str, resources.kinds)),
        image=gcp.image,
        subnetwork=gcp.subnetwork,
        external_address=gcp.external_address,
        secure_boot=gcp.secure_boot,
        reservation=gcp.reservation,
        service_account=gcp.service_account,
        volume_gib=gcp.volume_gb,
    )


def region_of(zone: str) -> str:
    """Return the region of a zone: `us-central1-a` is in `us-central1`."""
    return zone.rpartition("-")[0] or zone


def _in_small_letters(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)
