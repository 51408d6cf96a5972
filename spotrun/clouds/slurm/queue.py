"""Reads the jobs and steps that squeue lists, and represents jobs as instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spotrun.clouds.slurm.ids import instance_id_of
from spotrun.clouds.slurm.tags import Tags, tags_of
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment

_FIELDS = "%i|%T|%P|%V|%S|%e|%r|%N|%j|%k"
"""
Job, state, partition, submitted, began, ends, reason, nodes, name, comment: https://slurm.schedmd.com/squeue.html. Name
and comment come last, because in the jobs of other programs they may contain `|`, which separates the fields. In
spotrun's jobs they never do.
"""
LIST = ("squeue", "--noheader", "--me", "--states=all", f"--format={_FIELDS}")
"""The command that lists jobs. Slurm lists ended jobs for the cluster's MinJobAge, usually five minutes."""
STEPS = ("squeue", "--noheader", "--me", "--steps", "--format=%i|%j|%N")
"""The command that lists running steps: id, name, nodes. Slurm lists no ended steps."""
_UNSET = ("N/A", "Unknown", "")
_WAITING = ("PENDING", "CONFIGURING")
LEFT_TO_SLURM = timedelta(seconds=30)
"""
Time that Slurm has to remove a job from the queue once the job's maximum wait is over. After that the driver cancels
the job. The time also allows for a wrong clock of the controller.
"""
_NODE_LOST = "JobLaunchFailure"
"""
The reason that Slurm reports for the end of a job whose node stopped answering, if the controller gave up the job
before it marked the node as down.
"""
_ENDS = {
    "PREEMPTED": EndedBy.CLOUD,
    "DEADLINE": EndedBy.CLOUD,
    "CANCELLED": EndedBy.USER,
    "COMPLETED": EndedBy.ITSELF,
    "FAILED": EndedBy.ITSELF,
    "TIMEOUT": EndedBy.TIME_TO_LIVE,
    "NODE_FAIL": EndedBy.FAULT,
    "BOOT_FAIL": EndedBy.FAULT,
    "OUT_OF_MEMORY": EndedBy.FAULT,
    "REVOKED": EndedBy.FAULT,
}
"""
The party that ended a job, keyed by the job's state: https://slurm.schedmd.com/job_state_codes.html. A job in any other
state has not ended.
"""
_COMPLETING = "COMPLETING"


def has_nodes(state: str) -> bool:
    """
    Return True if a job in this state runs on its nodes. For a running job, Slurm may show a flag in place of RUNNING:
    SIGNALING while Slurm sends the warning of a preemption, or RESIZING after the job has lost a node.
    """
    return bool(state) and state not in (*_ENDS, *_WAITING, _COMPLETING)


class Job(NamedTuple):
    """One of spotrun's jobs. `nodes` is "" if the job is still waiting, never ran, or has lost its node."""

    number: int
    state: str
    submitted_at: datetime
    began_at: datetime | None
    ends_at: datetime | None
    reason: str
    nodes: str
    token: str
    tags: Tags

    @property
    def instance_id(self) -> str:
        return instance_id_of(self.number)

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    @property
    def never_ran(self) -> bool:
        """
        True if the job ended while it waited in the queue. For such a job, Slurm reports no start time, or a start time
        equal to the end time.
        """
        return self.has_ended and not self.nodes and self.began_at in (None, self.ends_at)

    @property
    def waited_in_vain(self) -> bool:
        """True if the job never had a node, and Slurm removed it from the queue after its maximum wait."""
        if self.state != "CANCELLED" or not self.never_ran or self.ends_at is None:
            return False
        return self.ends_at - self.submitted_at >= self.tags.wait

    def is_overdue(self, now: datetime) -> bool:
        """
        Return whether the job is still in the queue after its maximum wait, although Slurm should have removed it.
        """
        return self.state == "PENDING" and now - self.submitted_at >= self.tags.wait + LEFT_TO_SLURM


def read_queue(text: str) -> list[Job]:
    """Return spotrun's jobs, oldest first. If several jobs have the same token, only the oldest of them is included."""
    found: dict[str, Job] = {}
    for job in sorted(_ours(text.splitlines()), key=lambda each: each.number):
        found.setdefault(job.token, job)
    return list(found.values())


def of_token(text: str, token: str) -> list[Job]:
    """
    Return all jobs that have `token`, oldest first. There may be several, because Slurm allows two jobs with the same
    name. Only the oldest counts as the launch's instance.
    """
    return sorted((job for job in _ours(text.splitlines()) if job.token == token), key=lambda each: each.number)


class Step(NamedTuple):
    """A running step. `step_id` looks like `17.3`."""

    step_id: str
    name: str


def read_steps(text: str, job: int) -> list[Step]:
    rows = (line.strip().split("|") for line in text.splitlines())
    return [Step(row[0], row[1]) for row in rows if len(row) == 3 and row[0].startswith(f"{job}.")]


def _ours(lines: Iterable[str]) -> Iterator[Job]:
    for line in lines:
        parts = line.strip().split("|")
        if len(parts) != len(_FIELDS.split("|")):
            continue
        number, state, partition, submitted, began, ends, reason, nodes, token, comment = parts
        tags, submitted_at = tags_of(comment, partition), _moment(submitted)
        if tags is not None and submitted_at is not None and number.isdecimal():
            waits = state in _WAITING
            began_at = None if waits else _moment(began)
            yield Job(int(number), state, submitted_at, began_at, _moment(ends), reason, nodes, token, tags)


def _moment(text: str) -> datetime | None:
    return None if text in _UNSET else datetime.fromtimestamp(int(text), UTC)


def instance_of(job: Job) -> Instance:
    billed_from = None if job.never_ran else job.began_at
    price = job.tags.offering.price_usd_per_hour
    return Instance(
        instance_id=job.instance_id,
        token=job.token,
        run_uid=job.tags.run_uid,
        launch=job.tags.launch,
        offering=job.tags.offering,
        state=_state(job),
        launched_at=job.submitted_at,
        billed_from=billed_from,
        ended_at=(job.ends_at or job.submitted_at) if job.has_ended else None,
        ended_by=_ended_by(job) if job.has_ended else None,
        prices=() if billed_from is None else (PriceSegment(since=billed_from, usd_per_hour=price),),
        end_reason=_words(job) if job.has_ended else "",
    )


def _state(job: Job) -> InstanceState:
    if job.has_ended:
        return InstanceState.TERMINATED
    if job.state in _WAITING:
        return InstanceState.PENDING
    return InstanceState.STOPPING if job.state == _COMPLETING else InstanceState.RUNNING


def _ended_by(job: Job) -> EndedBy:
    """
    Return who or what ended a job. A job that has run for its whole time-to-live usually ends itself, a few seconds
    before Slurm would end it. This counts as TIME_TO_LIVE, not as ITSELF.
    """
    if job.waited_in_vain:
        return EndedBy.CLOUD
    by = EndedBy.FAULT if job.reason == _NODE_LOST else _ENDS[job.state]
    if by is EndedBy.ITSELF and job.began_at is not None and job.ends_at is not None:
        return EndedBy.TIME_TO_LIVE if job.ends_at - job.began_at >= job.tags.time_to_live else by
    return by


def _words(job: Job) -> str:
    reason = "" if job.reason in ("None", "") else f", {job.reason}"
    return f"{job.state}{reason}"
