"""Defines the configuration of a Slurm cluster's driver, as plain values."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec

from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import PartitionSpec, SlurmSpec

CLOUD_NAME = "slurm"
MAX_TIME: timedelta = PartitionSpec.model_fields["max_time"].default
REGION = "cluster"
"""The only region. A cluster is one place; its partitions serve as zones."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """
    One partition as a job describes it. `accelerators` has the same form as in Offering. A field that the job leaves
    out is 0 or "".
    """

    name: str
    capacity_type: CapacityType
    usd_per_node_hour: Decimal
    accelerators: str = ""
    cpus: int = 0
    memory_gb: int = 0
    gres: str = ""
    qos: str = ""
    max_time: timedelta = MAX_TIME

    @property
    def offering(self) -> Offering:
        return Offering(
            cloud=CLOUD_NAME,
            region=REGION,
            zone=self.name,
            instance_type=self._type,
            capacity_type=self.capacity_type,
            price_usd_per_hour=self.usd_per_node_hour,
            accelerators=self.accelerators,
            cpus=self.cpus,
            memory_gib=self.memory_gb,
        )

    @property
    def is_whole(self) -> bool:
        """True if an instance takes a whole node."""
        return not (self.accelerators or self.cpus or self.memory_gb or self.gres)

    @property
    def _type(self) -> str:
        """
        The instance type: `node` for a whole node, otherwise a name like `node-V100x1-8c-64g`. Two partitions have the
        same type if the job describes their nodes in the same way. The name contains no "_", because
        spotrun.folder.market_record uses "_" to separate the parts of a key.
        """
        gpus = self.accelerators.replace(":", "x").replace("_", "-")
        cpus, memory = f"{self.cpus}c" if self.cpus else "", f"{self.memory_gb}g" if self.memory_gb else ""
        return "-".join(filter(None, ("node", gpus, cpus, memory)))


class SlurmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    The partitions from which nodes are requested, and the number of nodes. `wait` is the maximum time that a job waits
    in the queue. `scratch` is the folder on each node in which each instance makes its own folder. Without partitions,
    the driver can only list and end instances.
    """

    nodes: int = 1
    partitions: tuple[Partition, ...] = ()
    account: str = ""
    wait: timedelta = timedelta(minutes=5)
    scratch: str = SlurmSpec().scratch

    def partition(self, name: str) -> Partition | None:
        return next((each for each in self.partitions if each.name == name), None)


def config_of(slurm: SlurmSpec, nodes: int = 1) -> SlurmConfig:
    """Return the configuration for the section `slurm` of a job. `nodes` is the number of nodes that train together."""
    return SlurmConfig(
        nodes=nodes,
        partitions=tuple(map(_partition, slurm.partitions)),
        account=slurm.account or "",
        wait=slurm.wait,
        scratch=slurm.scratch,
    )


def _partition(spec: PartitionSpec) -> Partition:
    return Partition(
        name=spec.name,
        capacity_type=CapacityType(spec.capacity),
        usd_per_node_hour=spec.usd_per_node_hour,
        accelerators="" if spec.accelerators is None else str(spec.accelerators),
        cpus=spec.cpus or 0,
        memory_gb=spec.memory or 0,
        gres=spec.gres or "",
        qos=spec.qos or "",
        max_time=spec.max_time,
    )
