"""
What there is to rent and to see in a project of Google Cloud: a small choice of what Google has, as facts.

Machine types: https://cloud.google.com/compute/docs/accelerator-optimized-machines and /general-purpose-machines.
Prices are those of us-central1 in August 2026, by the hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

PROJECT, PROJECT_NUMBER = "acme-training", "123456789012"
REGIONS: Mapping[str, tuple[str, ...]] = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c"),
    "us-east1": ("us-east1-b", "us-east1-c"),
    "europe-west4": ("europe-west4-a", "europe-west4-b"),
}
ZONES = tuple(zone for zones in REGIONS.values() for zone in zones)


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


class Gpu(NamedTuple):
    """`metric` is that of its quota."""

    name: str
    number: int
    metric: str


class MachineKind(NamedTuple):
    """
    A machine type. Prices are in USD an hour; `preempted` is the share of its spot VMs that a day takes.

    `disks` are the types of boot disk that it takes. https://cloud.google.com/compute/docs/disks/hyperdisks
    """

    name: str
    cpus: int
    memory_mb: int
    on_demand: Decimal
    spot: Decimal
    gpu: Gpu | None = None
    zones: tuple[str, ...] = ZONES
    disks: tuple[str, ...] = ("pd-balanced", "pd-ssd", "pd-standard")
    preempted: float = 0.05

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


_L4, _A100 = Gpu("nvidia-l4", 1, "NVIDIA_L4_GPUS"), Gpu("nvidia-tesla-a100", 1, "NVIDIA_A100_GPUS")
_L4S = Gpu("nvidia-l4", 2, "NVIDIA_L4_GPUS")
_H100 = Gpu("nvidia-h100-80gb", 8, "NVIDIA_H100_GPUS")
_RTX = Gpu("nvidia-rtx-pro-6000", 1, "NVIDIA_RTX_PRO_6000_GPUS")
_HYPERDISK = ("hyperdisk-balanced",)
_SOME = ("us-central1-a", "us-central1-b", "us-east1-b", "europe-west4-a")
KINDS: Mapping[str, MachineKind] = {
    kind.name: kind
    for kind in (
        MachineKind("a2-highgpu-1g", 12, 87040, Decimal("3.6734"), Decimal("1.9280"), _A100, _SOME),
        MachineKind("a3-highgpu-8g", 208, 1916928, Decimal("88.490"), Decimal("50.610"), _H100, ("us-central1-a",)),
        MachineKind("e2-medium", 2, 4096, Decimal("0.0335"), Decimal("0.0134")),
        MachineKind("e2-standard-4", 4, 16384, Decimal("0.1340"), Decimal("0.0536")),
        MachineKind("g2-standard-4", 4, 16384, Decimal("0.706832"), Decimal("0.3973"), _L4),
        MachineKind("g2-standard-8", 8, 32768, Decimal("0.8536"), Decimal("0.4799"), _L4),
        MachineKind("g2-standard-24", 24, 98304, Decimal("1.9982"), Decimal("1.1233"), _L4S),
        MachineKind("g4-standard-48", 48, 184320, Decimal("4.4999"), Decimal("1.7998"), _RTX, _SOME, _HYPERDISK),
        MachineKind("n1-standard-1", 1, 3840, Decimal("0.0475"), Decimal("0.0100")),
        MachineKind("n2-standard-4", 4, 16384, Decimal("0.1942"), Decimal("0.0470")),
    )
}
DISK_PRICES: Mapping[str, Decimal] = {
    "hyperdisk-balanced": Decimal("0.080"),
    "pd-balanced": Decimal("0.100"),
    "pd-ssd": Decimal("0.170"),
    "pd-standard": Decimal("0.040"),
}
"""USD for a GiB and a month."""


class ImageKind(NamedTuple):
    project: str
    name: str
    family: str
    size_gb: int


IMAGES = (
    ImageKind(
        "deeplearning-platform-release",
        "common-cu129-ubuntu-2404-nvidia-580-v20261101",
        "common-cu129-ubuntu-2404-nvidia-580",
        50,
    ),
    ImageKind("debian-cloud", "debian-13-trixie-v20261014", "debian-13", 10),
)


class SubnetKind(NamedTuple):
    name: str
    network: str
    region: str
    cidr: str


SUBNETS = tuple(
    SubnetKind(name, network, region, f"10.{first + number}.0.0/20")
    for number, region in enumerate(REGIONS)
    for name, network, first in (("spotrun", "spotrun", 10), ("default", "default", 128))
)
NETWORKS = ("default", "spotrun")
QUOTAS: Mapping[str, float] = {
    "CPUS": 500,
    "DISKS_TOTAL_GB": 40960,
    "INSTANCES": 200,
    "NVIDIA_A100_GPUS": 8,
    "NVIDIA_H100_GPUS": 8,
    "NVIDIA_L4_GPUS": 8,
    "NVIDIA_RTX_PRO_6000_GPUS": 8,
    "PREEMPTIBLE_CPUS": 0,
    "PREEMPTIBLE_NVIDIA_A100_GPUS": 8,
    "PREEMPTIBLE_NVIDIA_H100_GPUS": 8,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 8,
    "PREEMPTIBLE_NVIDIA_RTX_PRO_6000_GPUS": 8,
}
"""Of each region. The API shows those that its description knows, and nothing of the others."""
GLOBAL_QUOTAS: Mapping[str, float] = {"GPUS_ALL_REGIONS": 16, "CPUS_ALL_REGIONS": 1000}
