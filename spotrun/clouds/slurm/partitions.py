"""Reads a cluster's partitions, and compares them with the partitions that a job describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches

import msgspec
from msgspec.structs import replace

from spotrun.clouds.slurm.commands import Commands
from spotrun.clouds.slurm.config import SlurmConfig
from spotrun.clouds.slurm.faults import require_answer
from spotrun.offering import CapacityType
from spotrun.spec.model import MAX_TIME_LEAST
from spotrun.units import Unreadable, count_of, format_duration

BY_PARTITION, BY_QOS = "preempt/partition_prio", "preempt/qos"
_ENDING = {"CANCEL", "REQUEUE"}
"""
The values of PreemptMode for which Slurm ends spotrun's preempted jobs. REQUEUE puts other jobs back into the queue,
but ends spotrun's jobs, because they are submitted with `--no-requeue`:
https://slurm.schedmd.com/slurm.conf.html#OPT_PreemptMode
"""


class ClusterPartition(msgspec.Struct, frozen=True, kw_only=True):
    """
    One partition as the cluster reports it. `max_time` and `nodes_max` limit a job; None means no limit. `hosts` are
    the names of the nodes; none if Slurm was not asked, because no partition has priority over another.
    """

    name: str
    preempt_mode: str
    grace: timedelta
    priority_tier: int
    max_time: timedelta | None
    state: str
    nodes: str
    nodes_max: int | None = None
    hosts: frozenset[str] = frozenset()


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """
    A cluster and its partitions. `preempt_type` is Slurm's PreemptType. It decides which jobs may take nodes from other
    jobs: jobs in a partition of higher priority, jobs with a higher QOS, or none.
    """

    name: str
    version: str
    preempt_type: str
    partitions: Mapping[str, ClusterPartition]
    min_job_age: str = ""

    def takes_from(self, known: ClusterPartition) -> list[str]:
        """
        Return the partitions whose jobs can preempt jobs in `known`: they have priority, and share nodes with `known`.
        """
        if self.preempt_type != BY_PARTITION or known.preempt_mode == "OFF":
            return []
        higher = (each for each in self.partitions.values() if each.priority_tier > known.priority_tier)
        return sorted(each.name for each in higher if each.hosts & known.hosts)


def read_cluster(commands: Commands) -> Cluster:
    """Read the cluster's configuration from the controller. For the errors, see `require_answer` and `Commands.run`."""
    listed = require_answer(commands.run(["scontrol", "--oneliner", "--all", "show", "partition"]), "show partitions")
    settings = _settings(require_answer(commands.run(["scontrol", "show", "config"]), "show its configuration"))
    found = [_known(line) for line in listed.splitlines() if line.startswith("PartitionName=")]
    preempt_type = settings.get("PreemptType", "")
    if preempt_type == BY_PARTITION and len({each.priority_tier for each in found}) > 1:
        found = _with_hosts(found, commands)
    return Cluster(
        name=settings.get("ClusterName", ""),
        version=settings.get("SLURM_VERSION", ""),
        preempt_type=preempt_type,
        partitions={each.name: each for each in found},
        min_job_age=settings.get("MinJobAge", ""),
    )


def _with_hosts(found: Sequence[ClusterPartition], commands: Commands) -> list[ClusterPartition]:
    """Ask Slurm for the names of each partition's nodes, which it shows as texts like `gpu[01-16],big`."""
    names: dict[str, frozenset[str]] = {"": frozenset(), "(null)": frozenset()}
    for each in found:
        if each.nodes not in names:
            answer = commands.run(["scontrol", "show", "hostnames", each.nodes])
            names[each.nodes] = frozenset(require_answer(answer, "show the nodes of its partitions").split())
    return [replace(each, hosts=names[each.nodes]) for each in found]


def misfits(config: SlurmConfig, cluster: Cluster) -> Iterator[Unreadable]:
    """
    Yield an error for each key under the job's `slurm.partitions` whose value is wrong on this cluster. The error's
    `at` is the path of that key in the job.
    """
    for index, partition in enumerate(config.partitions):
        known = cluster.partitions.get(partition.name)
        at: tuple[str | int, ...] = ("slurm", "partitions", index)
        if known is None:
            yield Unreadable(
                f"the cluster {cluster.name} has no partition {partition.name}",
                _meant(partition.name, cluster.partitions),
                at=(*at, "name"),
            )
            continue
        if partition.capacity_type is CapacityType.SPOT:
            yield from _unlike_spot(known, cluster, at)
        elif takers := cluster.takes_from(known):
            unlike = next(_unlike_spot(known, cluster, at), None)
            yield Unreadable(
                f"jobs of {' and '.join(takers)} take nodes of {known.name}, so it is not on demand"
                + ("" if unlike is None else f"; {unlike.message}"),
                "write capacity: spot" if unlike is None else unlike.suggestion,
                at=(*at, "capacity"),
            )
        if known.nodes_max is not None and config.nodes > known.nodes_max:
            most = count_of(known.nodes_max, "node")
            advice = f"write num_nodes: {known.nodes_max}, or " if known.nodes_max else ""
            yield Unreadable(
                f"a job in {known.name} has at most {most}, but num_nodes is {config.nodes}",
                f"{advice}name another partition",
                at=(*at, "name"),
            )
        if known.max_time is not None and known.max_time < MAX_TIME_LEAST:
            least = f"an instance lives for at least {format_duration(MAX_TIME_LEAST)}"
            yield Unreadable(
                f"jobs in {known.name} can run for at most {format_duration(known.max_time)}, but {least}",
                "name another partition",
                at=(*at, "name"),
            )
        elif known.max_time is not None and partition.max_time > known.max_time:
            yield Unreadable(
                f"jobs in {known.name} can run for at most {format_duration(known.max_time)}",
                f"write max_time: {format_duration(known.max_time)}",
                at=(*at, "max_time"),
            )


def _unlike_spot(known: ClusterPartition, cluster: Cluster, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    if cluster.preempt_type == BY_QOS:
        return  # a QOS's mode and grace time are only in Slurm's accounting
    if cluster.preempt_type != BY_PARTITION or known.preempt_mode == "OFF":
        off = f"PreemptMode={known.preempt_mode}, PreemptType={cluster.preempt_type}"
        yield Unreadable(
            f"no job loses nodes in {known.name} ({off})", "write capacity: on_demand", at=(*at, "capacity")
        )
    elif not _ENDING & {*known.preempt_mode.split(",")}:
        yield Unreadable(
            f"{known.name} has PreemptMode={known.preempt_mode}: it suspends jobs, so training stands still",
            "name a partition with PreemptMode=CANCEL or REQUEUE",
            at=(*at, "name"),
        )
    elif not known.grace:
        yield Unreadable(
            f"{known.name} has GraceTime=0: Slurm ends its jobs without a notice",
            f"ask the cluster's administrators for: PartitionName={known.name} GraceTime=120",
            at=(*at, "name"),
        )


def _meant(name: str, known: Mapping[str, ClusterPartition]) -> str:
    close = get_close_matches(name, sorted(known), 1)
    return f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known))}"


def _known(line: str) -> ClusterPartition:
    facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
    return ClusterPartition(
        name=facts["PartitionName"],
        preempt_mode=facts.get("PreemptMode", "OFF"),
        grace=timedelta(seconds=int(facts.get("GraceTime", "0"))),
        priority_tier=int(facts.get("PriorityTier", "1")),
        max_time=_limit(facts.get("MaxTime", "UNLIMITED")),
        state=facts.get("State", ""),
        nodes=facts.get("Nodes", ""),
        nodes_max=_least(facts.get("TotalNodes", ""), facts.get("MaxNodes", "")),
    )


def _least(*limits: str) -> int | None:
    return min((int(each) for each in limits if each.isdecimal()), default=None)


def _limit(text: str) -> timedelta | None:
    """Parse a time limit such as `1-12:00:00` or `12:00:00`; return None for `UNLIMITED`."""
    days, _, clock = text.rpartition("-")
    parts: Sequence[str] = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")):
        return None
    seconds = sum(int(part) * 60**place for place, part in enumerate(reversed(parts)))
    return timedelta(days=int(days or 0), seconds=seconds)


def _settings(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}
