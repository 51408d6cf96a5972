"""The CloudDriver for a Slurm cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from spotrun.clock import Clock
from spotrun.clouds.slurm.commands import Commands, Programs
from spotrun.clouds.slurm.config import CLOUD_NAME, Partition, SlurmConfig
from spotrun.clouds.slurm.faults import fault, require_answer
from spotrun.clouds.slurm.gang_jobs import GangJob
from spotrun.clouds.slurm.ids import job_of, step_name
from spotrun.clouds.slurm.member_files import MemberEnd, MemberFiles, Seat, read_seats
from spotrun.clouds.slurm.queue import LIST, STEPS, Job, Step, has_nodes, instance_of, of_token, read_queue, read_steps
from spotrun.clouds.slurm.submission import BOOTSTRAP, files_of, logs, submission
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import Offering
from spotrun.units import count_of

SNAPSHOT_FOR_S = 1.0
"""Seconds for which a listing of the queue is reused. Each new listing locks Slurm's controller for a moment."""

_ENDED_ALREADY = ("Job/step already completing or completed", "Invalid job id specified")


class SlurmDriver:
    """
    Requests nodes from the configured partitions. Each launch is a Slurm job. The job's name is the launch's token, and
    the job's comment names the run.

    While a job waits in the queue, its instance is pending. If no node becomes free in time, Slurm removes the job from
    the queue, and the launch fails for lack of capacity, at no cost. If Slurm fails to remove the job, a driver cancels
    it when it next lists jobs.

    A gang is one job, with a step for each member (spotrun.clouds.slurm.gang).
    """

    name = CLOUD_NAME
    rations_calls = True
    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        config: SlurmConfig,
        clock: Clock,
        commands: Commands | None = None,
        *,
        init: Sequence[str] = BOOTSTRAP,
    ) -> None:
        self._config = config
        self._clock = clock
        self._commands = commands or Programs()
        self._init = tuple(init)
        self._snapshot: tuple[float, list[tuple[Job, list[Instance]]]] | None = None
        self._seats: dict[str, tuple[Seat, ...]] = {}

    # -- CloudDriver -----------------------------------------------------------------------------------------

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return [partition.offering for partition in self._config.partitions]

    def launch(self, request: LaunchRequest) -> Instance:
        partition = self._partition(request.offering)
        found = self._of_token(request)
        if found is None:
            number = self._submit(request, partition)
            found = self._of_token(request)
            if found is None:
                raise CloudUnavailable(f"Slurm has accepted job {number}, but does not list it yet")
        return found

    def describe(self, instance_id: str) -> Instance | None:
        return next((each for each in self.instances() if each.instance_id == instance_id), None)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        seen = (each for _, instances in self._jobs() for each in instances)
        return [each for each in seen if run_uid in (None, each.run_uid)]

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return ()

    def terminate(self, instance_id: str) -> None:
        self._snapshot = None
        job, instances = next((each for each in self._jobs() if str(each[0].number) == job_of(instance_id)), (None, []))
        found = next((each for each in instances if each.instance_id == instance_id), None)
        if job is None or found is None or job.has_ended:
            return
        if job.tags.count is None:
            self._cancel(job)
        else:
            self._end_member(job, found)

    # -- launching -------------------------------------------------------------------------------------------

    def _partition(self, offering: Offering) -> Partition:
        partition = self._config.partition(offering.zone)
        if partition is None or partition.offering.pool != offering.pool:
            raise CloudError(f"no partition in slurm.partitions offers {offering}", hint="add one that does")
        return partition

    def _submit(self, request: LaunchRequest, partition: Partition) -> str:
        logs().mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            answer = self._commands.run(submission(request, self._config, partition, self._init))
        finally:
            self._snapshot = None
        if error := fault(answer, f"accept a job for {request.offering}", partition.name):
            raise error
        return answer.out.strip().partition(";")[0]

    def _of_token(self, request: LaunchRequest) -> Instance | None:
        """
        Return the instance with the request's token, or the first of a gang's members; None if there is no such job. If
        several jobs have the token, use the first one, and cancel the others.

        Raises:
            LaunchTokenSpent: the instance has ended, or all members have.
            InsufficientCapacity: no node was free in time.
            CloudError: the job differs from the request, or Slurm rejected it.
        """
        said = self._commands.run([*LIST, f"--name={request.token}"])
        jobs = of_token(require_answer(said, "list jobs"), request.token)
        for job in jobs[1:]:
            if not job.has_ended:
                self._cancel(job)
        return _launched(jobs[0], self._instances_of(jobs[0]), request) if jobs else None

    def _end_member(self, job: Job, member: Instance) -> None:
        """
        End one member of a gang by killing its step. The member's node stays with the job. If Slurm does not list the
        step yet, the job's batch script ends the member later. If no other member is left that should continue, cancel
        the whole job instead.
        """
        files = files_of(job.token)
        files.ask_to_end(member.member)
        if all(files.is_to_end(index) or files.ended(index) for index in range(job.tags.count or 0)):
            self._cancel(job)
            return
        step = next((each for each in self._steps(job) if each.name == step_name(member.member)), None)
        if step is not None and member.state is InstanceState.RUNNING:
            self._cancel(job, "--signal=KILL", what=step.step_id)
            files.end(member.member, MemberEnd(self._clock.now(), EndedBy.USER, "ended alone"))

    def _cancel(self, job: Job, *options: str, what: str = "") -> None:
        """Cancel the whole job, or only the step that `what` names."""
        try:
            answer = self._commands.run(["scancel", *options, what or str(job.number)])
        finally:
            self._snapshot = None
        error = fault(answer, f"end job {job.number}")
        if error is not None and not any(words in answer.err for words in _ENDED_ALREADY):
            raise error

    # -- listing jobs ----------------------------------------------------------------------------------------

    def _jobs(self) -> list[tuple[Job, list[Instance]]]:
        now_s = self._clock.monotonic()
        if self._snapshot is None or now_s - self._snapshot[0] >= SNAPSHOT_FOR_S * self._clock.scale:
            said = self._commands.run(LIST)
            jobs = read_queue(require_answer(said, "list jobs"))
            seen = [(job, self._instances_of(job)) for job in jobs]
            self._snapshot = (now_s, seen)
            self._cancel_overdue(jobs)
            return seen
        return self._snapshot[1]

    def _instances_of(self, job: Job) -> list[Instance]:
        """Return the job's instance, or all members of a gang."""
        if job.tags.count is None:
            return [instance_of(job)]
        files = files_of(job.token)
        if has_nodes(job.state) and job.nodes:
            self._look_at_members(job, files)
        gang = GangJob(job, files.seats(), [files.ended(member) for member in range(job.tags.count)])
        if gang.is_deserted:
            self._cancel(job)
        return gang.instances()

    def _look_at_members(self, job: Job, files: MemberFiles) -> None:
        """
        Record which nodes the job has, and which of these nodes are lost.

        Normally the job's batch script records the end of each member's step. The batch script runs on the job's first
        node, so it is lost with that node. In that case, this driver records the end of each member whose step no
        longer runs.
        """
        now, there = self._clock.now(), self._seats_of(job.nodes)
        seats = files.seats() or (files.take_seats(there) if len(there) == job.tags.count else ())
        if not seats or all(each in there for each in seats):
            return
        for member, seat in enumerate(seats):
            if seat not in there and files.ended(member) is None:
                files.end(member, MemberEnd(now, EndedBy.FAULT, f"its node {seat.node} is lost"))
        if seats[0] not in there:
            self._end_those_without_a_step(job, files, now)

    def _end_those_without_a_step(self, job: Job, files: MemberFiles, now: datetime) -> None:
        steps = {each.name for each in self._steps(job)}
        for member in range(job.tags.count or 0):
            if step_name(member) not in steps and files.ended(member) is None:
                files.end(member, MemberEnd(now, EndedBy.ITSELF, "its step has ended"))

    def _seats_of(self, nodes: str) -> tuple[Seat, ...]:
        if nodes not in self._seats:
            self._seats[nodes] = read_seats(self._commands, nodes)
        return self._seats[nodes]

    def _steps(self, job: Job) -> list[Step]:
        return read_steps(require_answer(self._commands.run(STEPS), "list steps"), job.number)

    def _cancel_overdue(self, jobs: list[Job]) -> None:
        """
        Cancel the jobs that are still in the queue after their maximum wait. A job that has begun meanwhile is kept.
        """
        now = self._clock.now()
        for job in jobs:
            if job.is_overdue(now):
                self._cancel(job, "--state=PENDING")


def _launched(job: Job, instances: list[Instance], request: LaunchRequest) -> Instance:
    found = instances[0]
    same = (found.offering.pool, found.run_uid, job.tags.count)
    if same != (request.offering.pool, request.run_uid, request.count):
        raise CloudError(f"the token of launch {request.launch} was already used for another request: {found.offering}")
    if job.never_ran and found.ended_by is EndedBy.CLOUD:
        nodes = "no node" if request.count is None else f"less than {count_of(request.count, 'node')}"
        free = "were" if request.count is not None else "was"
        raise InsufficientCapacity(f"{nodes} of {job.tags.offering.zone} {free} free in time ({found.end_reason})")
    if job.never_ran and found.ended_by is not EndedBy.USER:
        raise CloudError(
            f"Slurm has no node that fits job {job.number} ({found.end_reason})",
            hint="see `sinfo -o '%P %c %m %G'`, and correct slurm.partitions",
        )
    if not any(each.alive for each in instances):
        raise LaunchTokenSpent(f"{found.instance_id}, the instance of launch {request.launch}, has ended")
    return found
