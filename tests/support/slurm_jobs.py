"""Two partitions of the same nodes, as jobs of many tests name them."""

from __future__ import annotations

from decimal import Decimal

from spotrun.clouds.slurm.config import Partition
from spotrun.offering import CapacityType

CHEAP = Partition(name="cheap", capacity_type=CapacityType.SPOT, usd_per_node_hour=Decimal("0.10"))
SURE = Partition(name="sure", capacity_type=CapacityType.ON_DEMAND, usd_per_node_hour=Decimal("0.40"))
PARTITIONS = (CHEAP, SURE)
