"""A kind of machine that a cloud rents out, whatever its price and place."""

from __future__ import annotations

from typing import NamedTuple


class InstanceType(NamedTuple):
    """`accelerators` is `NAME:COUNT`, or "" for a machine without any."""

    name: str
    accelerators: str
    cpus: int
    memory_gib: int
