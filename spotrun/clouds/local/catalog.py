"""
The catalog of the local cloud: zones, and instance types whose prices resemble a real cloud's list prices. They are
never charged.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    region: str
    name: str


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of instance. `accelerators` has the same form as in Offering."""

    name: str
    accelerators: str
    cpus: int
    memory_gib: int
    on_demand_usd_per_hour: Decimal


ZONES = (
    Zone(region="us-east-1", name="us-east-1a"),
    Zone(region="us-east-1", name="us-east-1b"),
    Zone(region="us-east-1", name="us-east-1c"),
    Zone(region="us-west-2", name="us-west-2a"),
    Zone(region="us-west-2", name="us-west-2b"),
    Zone(region="us-west-2", name="us-west-2c"),
)

INSTANCE_TYPES = (
    InstanceType(
        name="p3.2xlarge",
        accelerators="V100:1",
        cpus=8,
        memory_gib=61,
        on_demand_usd_per_hour=Decimal("3.06"),
    ),
    InstanceType(
        name="a2-highgpu-1g",
        accelerators="A100:1",
        cpus=12,
        memory_gib=85,
        on_demand_usd_per_hour=Decimal("3.6734"),
    ),
    InstanceType(
        name="a2-highgpu-2g",
        accelerators="A100:2",
        cpus=24,
        memory_gib=170,
        on_demand_usd_per_hour=Decimal("7.3468"),
    ),
    InstanceType(
        name="g5.xlarge",
        accelerators="A10G:1",
        cpus=4,
        memory_gib=16,
        on_demand_usd_per_hour=Decimal("1.006"),
    ),
    InstanceType(
        name="g4dn.xlarge",
        accelerators="T4:1",
        cpus=4,
        memory_gib=16,
        on_demand_usd_per_hour=Decimal("0.526"),
    ),
    InstanceType(
        name="c5.xlarge",
        accelerators="",
        cpus=4,
        memory_gib=8,
        on_demand_usd_per_hour=Decimal("0.17"),
    ),
)
"""
USD per hour, on-demand, Linux, without tax.

    p3.2xlarge, g5.xlarge, g4dn.xlarge, c5.xlarge   EC2 on-demand list price, us-east-1
                                                    https://aws.amazon.com/ec2/pricing/on-demand/
    a2-highgpu-1g, a2-highgpu-2g                    Compute Engine list price, us-central1 (EC2 has no machine
                                                    with one A100 or two) https://cloud.google.com/compute/all-pricing

The prices were written from memory in November 2026, not fetched; that of g5.xlarge was checked against a public
summary of June 2026. They only make simulated bills look real: do not plan real spending with them.
"""
