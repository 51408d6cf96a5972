"""An instance's id: what Slurm calls its job. The first process of an instance imports this: it stays light."""

from __future__ import annotations

PREFIX = "job-"


def instance_id_of(job: int | str, member: int | None = None) -> str:
    """`job-17`; of a member of a gang, `job-17.0`."""
    return f"{PREFIX}{job}" if member is None else f"{PREFIX}{job}.{member}"


def job_of(instance_id: str) -> str:
    return instance_id.removeprefix(PREFIX).partition(".")[0]


def step_name(member: int) -> str:
    """What Slurm calls the step in which a member lives."""
    return f"member-{member}"
