"""
The ids of instances, made from Slurm's job numbers. An instance's first process imports this module, so keep it small.
"""

from __future__ import annotations

PREFIX = "job-"


def instance_id_of(job: int | str, member: int | None = None) -> str:
    """Return `job-17`, or `job-17.0` for a member of a gang."""
    return f"{PREFIX}{job}" if member is None else f"{PREFIX}{job}.{member}"


def job_of(instance_id: str) -> str:
    return instance_id.removeprefix(PREFIX).partition(".")[0]


def step_name(member: int) -> str:
    return f"member-{member}"
