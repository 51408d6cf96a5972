"""An instance's id: what Slurm calls its job. The first process of an instance imports this: it stays light."""

from __future__ import annotations

PREFIX = "job-"


def instance_id_of(job: int | str) -> str:
    return f"{PREFIX}{job}"


def job_of(instance_id: str) -> str:
    return instance_id.removeprefix(PREFIX)
