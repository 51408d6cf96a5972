"""Runs of real jobs on a real cluster of Slurm, beside those on the local cloud."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.eventually import eventually
from tests.support.sandbox import WITHIN_S, Sandbox
from tests.support.slurm_cluster import Cluster

PARTITIONS = (
    "cheap Nodes=n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=12",
    "fair Nodes=n2 PriorityTier=1 PreemptMode=CANCEL GraceTime=12",
    "sure Nodes=n3 PriorityTier=1 PreemptMode=OFF",
    "strong Nodes=n[1-2] PriorityTier=10 PreemptMode=OFF",
)
PRICES = {"cheap": Decimal("0.10"), "fair": Decimal("0.20"), "sure": Decimal("1.00")}
SECTION = """slurm:
  wait: 10s
  scratch: '{scratch}'
  partitions:
    - {{name: cheap, capacity: spot, usd_per_node_hour: 0.10}}
    - {{name: fair, capacity: spot, usd_per_node_hour: 0.20}}
    - {{name: sure, capacity: on_demand, usd_per_node_hour: 1.00}}
"""


class NodeTime(NamedTuple):
    """What a job has had, by Slurm's own record: the nodes that it had last, for so long."""

    partition: str
    seconds: int
    state: str
    nodes: int
    began_at: datetime


class SlurmSandbox(Sandbox):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        super().__init__(folder, monkeypatch)
        self.cluster = cluster
        self.machines = folder / "scratch"
        self.machines.mkdir()
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(folder / "logs"))

    def job_on_slurm(self, name: str, arguments: str, *, section: str = SECTION, extra: str = "") -> Path:
        rest = "resources: {cloud: slurm}\npolicy: {on_demand_after: 5s, return_to_spot: true, return_cooldown: 20s}\n"
        rest += section.format(scratch=self.machines) + extra
        return self.job_file(name, rest, arguments, envs=", OMP_NUM_THREADS: 1")

    def take(self, node: str) -> str:
        """Somebody's job of a stronger partition asks for a node. Returns the job."""
        words = (
            "--parsable",
            "--partition=strong",
            f"--nodelist={node}",
            "--exclusive",
            "--time=60",
            "--output=/dev/null",
        )
        return self.cluster.ask("sbatch", *words, "--chdir=/", "--wrap=sleep 3000").strip()

    def fill(self, partition: str, nodes: int) -> str:
        """Somebody's job waits for so many nodes of a partition, or has them. Returns the job."""
        words = (f"--partition={partition}", f"--nodes={nodes}", "--exclusive", "--time=60", "--output=/dev/null")
        return self.cluster.ask("sbatch", "--parsable", *words, "--chdir=/", "--wrap=sleep 3000").strip()

    def is_left(self, runner: subprocess.Popen[str], instance_id: str) -> None:
        """Until another instance than that trains, or none."""

        def elsewhere() -> bool:
            current = run.ledger.refresh().current
            return current is None or current.instance_id != instance_id

        run = self.run("stormy")
        eventually(lambda: elsewhere() or runner.poll() is not None, within_s=WITHIN_S)

    def steps_done(self) -> int:
        """Those that were done twice count twice."""
        return len(self.trace.read_text().splitlines())

    def node_times(self) -> list[NodeTime]:
        """Of all jobs of the run, by squeue with a format that is not the driver's."""
        fields = "Partition:|,State:|,StartTime:|,EndTime:|,NumNodes:|,Comment:500"
        environment = {"SLURM_TIME_FORMAT": "%s"}
        told = self.cluster.ask("env", *(f"{k}={v}" for k, v in environment.items()), "squeue", "--noheader", "--me",
                                "--states=all", f"--Format={fields}")  # fmt: skip
        rows = [[part.strip() for part in line.split("|")] for line in told.splitlines()]
        return [
            NodeTime(partition, int(ends) - int(began), state, int(nodes), datetime.fromtimestamp(int(began), UTC))
            for partition, state, began, ends, nodes, comment in rows
            if comment.startswith("spotrun:")
        ]


def dollars(times: list[NodeTime]) -> Fraction:
    prices = (Fraction(PRICES[each.partition]) * each.nodes * each.seconds / 3600 for each in times)
    return sum(prices, Fraction(0))
