"""A Slurm cluster as a CloudDriver."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotrun.clock import Clock
from spotrun.clouds.driver import require_one
from spotrun.clouds.slurm.commands import Commands, Programs
from spotrun.clouds.slurm.config import CLOUD_NAME, Partition, SlurmConfig
from spotrun.clouds.slurm.faults import fault, require_answer
from spotrun.clouds.slurm.queue import LIST, Job, instance_of, of_token, read_queue
from spotrun.clouds.slurm.submission import BOOTSTRAP, logs, submission
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, LaunchRequest
from spotrun.offering import Offering

SNAPSHOT_FOR_S = 1.0
"""One look at the queue serves whoever asks within this time: each costs the controller the same lock."""

_ENDED_ALREADY = ("Job/step already completing or completed", "Invalid job id specified")


class SlurmDriver:
    """
    Asks the partitions of its configuration for nodes. See CloudDriver for what its five verbs promise.

    It holds no run state: a job's name is its token, and its comment says whose it is. A job in a queue is pending. One
    that Slurm does not begin in time has ended before its meter ran, taken by the cloud: a pool without capacity. Where
    Slurm lets it wait on, whoever lists jobs cancels it.
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
        self._snapshot: tuple[float, list[Job]] | None = None

    # -- CloudDriver -----------------------------------------------------------------------------------------

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return [partition.offering for partition in self._config.partitions]

    def launch(self, request: LaunchRequest) -> Instance:
        require_one(request, self.name)
        partition = self._partition(request.offering)
        found = self._of_token(request)
        if found is None:
            number = self._submit(request, partition)
            found = self._of_token(request)
            if found is None:
                raise CloudUnavailable(f"Slurm has accepted job {number}, and does not list it yet")
        return found

    def describe(self, instance_id: str) -> Instance | None:
        job = self._job(instance_id)
        return None if job is None else instance_of(job)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        return [instance_of(job) for job in self._jobs() if run_uid in (None, job.tags.run_uid)]

    def terminate(self, instance_id: str) -> None:
        self._snapshot = None
        job = self._job(instance_id)
        if job is not None and not job.has_ended:
            self._cancel(job)

    # -- launching -------------------------------------------------------------------------------------------

    def _partition(self, offering: Offering) -> Partition:
        partition = self._config.partition(offering.zone)
        if partition is None or partition.offering.pool != offering.pool:
            raise CloudError(f"{offering} is no partition of this job", hint="name it under slurm.partitions")
        return partition

    def _submit(self, request: LaunchRequest, partition: Partition) -> str:
        logs().mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            answer = self._commands.run(submission(request, self._config, partition, self._init))
        finally:
            self._snapshot = None
        if error := fault(answer, f"take a job for {request.offering}", partition.name):
            raise error
        return answer.out.strip().partition(";")[0]

    def _of_token(self, request: LaunchRequest) -> Instance | None:
        """
        The instance of a token, if there is one. Of several jobs the first counts, and the others are cancelled.

        Raises:
            LaunchTokenSpent: it has ended.
            InsufficientCapacity: no node was free in time.
            CloudError: it is not what is asked for, or Slurm found fault with it.
        """
        said = self._commands.run([*LIST, f"--name={request.token}"])
        jobs = of_token(require_answer(said, "list jobs"), request.token)
        for job in jobs[1:]:
            if not job.has_ended:
                self._cancel(job)
        return _launched(jobs[0], request) if jobs else None

    def _cancel(self, job: Job, *options: str) -> None:
        try:
            answer = self._commands.run(["scancel", *options, str(job.number)])
        finally:
            self._snapshot = None
        error = fault(answer, f"end job {job.number}")
        if error is not None and not any(words in answer.err for words in _ENDED_ALREADY):
            raise error

    # -- looking ---------------------------------------------------------------------------------------------

    def _job(self, instance_id: str) -> Job | None:
        return next((job for job in self._jobs() if job.instance_id == instance_id), None)

    def _jobs(self) -> list[Job]:
        now_s = self._clock.monotonic()
        if self._snapshot is None or now_s - self._snapshot[0] >= SNAPSHOT_FOR_S * self._clock.scale:
            said = self._commands.run(LIST)
            jobs = read_queue(require_answer(said, "list jobs"))
            self._snapshot = (now_s, jobs)
            self._cancel_overdue(jobs)
            return jobs
        return self._snapshot[1]

    def _cancel_overdue(self, jobs: list[Job]) -> None:
        """One that begins at this moment goes on."""
        now = self._clock.now()
        for job in jobs:
            if job.is_overdue(now):
                self._cancel(job, "--state=PENDING")


def _launched(job: Job, request: LaunchRequest) -> Instance:
    found = instance_of(job)
    if found.offering.pool != request.offering.pool or found.run_uid != request.run_uid:
        raise CloudError(f"the token of launch {request.launch} was used before, for {found.offering}")
    if found.never_ran and found.ended_by is EndedBy.CLOUD:
        raise InsufficientCapacity(f"no node of {job.tags.offering.zone} was free in time ({found.end_reason})")
    if found.never_ran and found.ended_by is not EndedBy.USER:
        raise CloudError(
            f"Slurm has no node for what job {job.number} asks for ({found.end_reason})",
            hint="see `sinfo -o '%P %c %m %G'`, and mend slurm.partitions",
        )
    if not found.alive:
        raise LaunchTokenSpent(f"{found.instance_id}, the instance of launch {request.launch}, has ended")
    return found
