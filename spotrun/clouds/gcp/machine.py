"""The parts of a Compute Engine machine that are billed separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MIB_PER_GIB = 1024
LOCAL_SSD_GIB = 375
"""
Size of a local SSD in GiB: https://cloud.google.com/compute/docs/disks/local-ssd. Series newer than c3 have other sizes
too.
"""
_FAMILIES_WITH_GPUS = frozenset(("a2", "a3", "g2", "g4"))
_FAMILIES_OF_SSDS = frozenset(("a2", "a3", "c3"))
_CPUS_PER_WHOLE_G4_GPU = 48


class Machine(NamedTuple):
    """A machine type. `accelerator` is Google's name for its GPU, such as `nvidia-l4`; `local_ssds` counts its SSDs."""

    name: str
    cpus: int
    memory_mib: int
    accelerator: str = ""
    accelerators: int = 0
    local_ssds: int = 0
    shares_cpu: bool = False

    @property
    def family(self) -> str:
        """The family of the type. For `g2-standard-4` it is `g2`."""
        return self.name.partition("-")[0]

    @property
    def is_told_whole(self) -> bool:
        """
        True if these parts are certain to be exactly what is billed. That is not certain for three kinds of types:
        - types with shared cores, of which only a part is billed
        - smaller g4 types, which have only a part of a GPU
        - a3, a2-ultragpu and -lssd types, if Google's list of types does not include their local SSDs
        """
        whole_gpu = self.family != "g4" or self.cpus >= _CPUS_PER_WHOLE_G4_GPU * self.accelerators
        gpus = bool(self.accelerators) == (self.family in _FAMILIES_WITH_GPUS)
        has_ssds = self.name.startswith(("a3-", "a2-ultragpu-")) or self.name.endswith("-lssd")
        ssds = bool(self.local_ssds) == has_ssds and (not has_ssds or self.family in _FAMILIES_OF_SSDS)
        return not self.shares_cpu and whole_gpu and gpus and ssds


def machine_of(told: Mapping[str, Any]) -> Machine:
    """Convert Google's description of a machine type to a Machine."""
    inside: Mapping[str, Any] = next(iter(told.get("accelerators", ())), {})
    return Machine(
        name=str(told["name"]),
        cpus=int(told["guestCpus"]),
        memory_mib=int(told["memoryMb"]),
        accelerator=str(inside.get("guestAcceleratorType", "")),
        accelerators=int(inside.get("guestAcceleratorCount", 0)),
        local_ssds=int(told.get("bundledLocalSsds", {}).get("partitionCount", 0)),
        shares_cpu=bool(told.get("isSharedCpu", False)),
    )
