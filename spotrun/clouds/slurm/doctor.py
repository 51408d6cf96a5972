"""
The checks of `spotrun doctor slurm`: Slurm's programs, the partitions, and whether the nodes share this machine's
folders.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from spotrun import address
from spotrun.clouds.slurm.commands import Commands, require_submitting
from spotrun.clouds.slurm.config import MAX_TIME, Partition, SlurmConfig
from spotrun.clouds.slurm.faults import fault
from spotrun.clouds.slurm.partitions import BY_QOS, Cluster, ClusterPartition, misfits, read_cluster
from spotrun.clouds.slurm.shared_folders import file_system_of, is_of_one_machine
from spotrun.clouds.slurm.submission import trial
from spotrun.doctor.finding import Finding, Step, failed, findings_of_steps, ok, warned
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, QuotaExceeded, SpecInvalid
from spotrun.offering import CapacityType
from spotrun.spec.problems import dotted
from spotrun.units import Unreadable, count_of, format_duration


class SlurmDoctor:
    """Checks a cluster and, if there is a job, the job's partitions. `store` is the store of the runs."""

    def __init__(self, config: SlurmConfig, store: str | None, commands: Commands) -> None:
        self._config = config
        self._store = store
        self._commands = commands

    def findings(self) -> Iterator[Finding]:
        return findings_of_steps([Step("slurm", self._cluster), Step("shared folders", self._folders)])

    def _cluster(self) -> Iterator[Finding]:
        cluster = read_cluster(self._commands)
        require_submitting(self._commands)
        yield ok(
            "slurm", f"{cluster.version}, cluster {cluster.name}, {count_of(len(cluster.partitions), 'partition')}"
        )
        if cluster.preempt_type == BY_QOS:
            yield warned(
                "preemption",
                "a QOS decides whose jobs are preempted, and spotrun cannot read the QOS's GraceTime",
                "sacctmgr show qos format=Name,Preempt,PreemptMode,GraceTime, and slurm.partitions: [{qos: NAME, …}]",
            )
        for problem in misfits(self._config, cluster):
            yield failed(dotted(problem.at), SpecInvalid(problem.message, hint=problem.suggestion))
        yield from self._well(cluster) if self._config.partitions else _to_write(cluster)

    def _well(self, cluster: Cluster) -> Iterator[Finding]:
        """
        Check the job's partitions on the cluster, except those that the job describes wrongly, which `misfits` reports.
        """
        wrong = {problem.at[2] for problem in misfits(self._config, cluster)}
        for index, partition in enumerate(self._config.partitions):
            known = cluster.partitions.get(partition.name)
            if index in wrong or known is None:
                continue
            if known.state != "UP":
                yield warned(f"partition {known.name}", f"it is {known.state}", "it is treated as full until it is UP")
            elif error := fault(
                self._commands.run(trial(self._config, partition)),
                f"have a node for {partition.offering}",
                partition.name,
            ):
                yield _refused(known, error)
            else:
                yield ok(f"partition {known.name}", _facts(known))

    def _folders(self) -> Iterator[Finding]:
        places = {"spotrun's Python": sys.executable, "your home folder": str(Path.home())}
        store = None if self._store is None else address.parse(self._store)
        if isinstance(store, str):
            places["the store"] = store
        for what, place in places.items():
            kind = file_system_of(Path(place))
            if is_of_one_machine(kind):
                yield warned(
                    "shared folders",
                    f"{what}, {place}, is on {kind}, which only {socket.gethostname()} may be able to read",
                    f"see `srun ls -d {shlex.quote(place)}`; a store may be an s3:// or gs:// address",
                )
            else:
                yield ok("shared folders", f"{what} is on {kind}")


def _refused(known: ClusterPartition, error: CloudError) -> Finding:
    """
    Report that Slurm would refuse a job in this partition. This is a warning if the reason is temporary, and otherwise
    a failure.
    """
    if isinstance(error, InsufficientCapacity | QuotaExceeded | CloudUnavailable):
        return warned(f"partition {known.name}", error.message, error.hint or "it is treated as full until this passes")
    return failed(f"partition {known.name}", error)


def _to_write(cluster: Cluster) -> Iterator[Finding]:
    """
    List the cluster's partitions for a user who has no job yet. For each usable partition, show the line that the user
    can copy into a job.
    """
    for known in cluster.partitions.values():
        kind = CapacityType.SPOT if cluster.takes_from(known) else CapacityType.ON_DEMAND
        if wrong := _wrong_as(kind, known, cluster):
            yield warned(f"partition {known.name}", f"{_facts(known)}; {wrong.message}", wrong.suggestion or "")
        else:
            yield ok(f"partition {known.name}", f"{_facts(known)}; slurm.partitions: [{_line(kind, known)}]")
    if not any(cluster.takes_from(known) for known in cluster.partitions.values()):
        yield warned(
            "preemption",
            f"nobody takes nodes from anybody here, as far as partitions say (PreemptType={cluster.preempt_type})",
            "all partitions are capacity: on_demand",
        )


def _wrong_as(kind: CapacityType, known: ClusterPartition, cluster: Cluster) -> Unreadable | None:
    """
    Return the reason why spotrun would refuse a job that names this partition with this capacity type; None if there is
    none.
    """
    partition = Partition(
        name=known.name, capacity_type=kind, usd_per_node_hour=Decimal(0), max_time=known.max_time or timedelta()
    )
    return next(misfits(SlurmConfig(partitions=(partition,)), cluster), None)


def _line(kind: CapacityType, known: ClusterPartition) -> str:
    """
    Return the line that names the partition in a job file. The line states the partition's time limit only if it is
    shorter than spotrun's default (MAX_TIME).
    """
    shorter = known.max_time is not None and known.max_time < MAX_TIME
    limit = f", max_time: {format_duration(known.max_time)}" if known.max_time is not None and shorter else ""
    return f"{{name: {known.name}, capacity: {kind}, usd_per_node_hour: 0{limit}}}"


def _facts(known: ClusterPartition) -> str:
    limit = "no MaxTime" if known.max_time is None else f"MaxTime {known.max_time}"
    most = "" if known.nodes_max is None else f", {count_of(known.nodes_max, 'node')} at most in a job"
    grace = f"GraceTime={known.grace.total_seconds():.0f} s"
    return f"{known.state}, PreemptMode={known.preempt_mode}, {grace}, {limit}{most}"
