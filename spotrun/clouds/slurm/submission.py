"""Builds the sbatch command for an instance. All jobs share one script and differ only in the script's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from math import ceil
from pathlib import Path

from spotrun.clouds.slurm.config import Partition, SlurmConfig
from spotrun.clouds.slurm.member_files import MemberFiles
from spotrun.clouds.slurm.tags import comment_of
from spotrun.instance import LaunchRequest

LOGS_VARIABLE = "SPOTRUN_SLURM_LOGS"
BOOTSTRAP = (sys.executable, "-P", "-m", "spotrun.agent.bootstrap")
"""The init process of an instance. The nodes must have the same Python as this machine."""
_MINUTE_S = 60


def logs() -> Path:
    """Return the folder of the jobs' logs. It is in the user's home folder, which the nodes share with this machine."""
    return Path(os.environ.get(LOGS_VARIABLE) or "~/.spotrun/slurm").expanduser()


def log_of(token: str) -> Path:
    return logs() / f"{token}.log"


def files_of(token: str) -> MemberFiles:
    return MemberFiles(str(logs() / token))


def submission(
    request: LaunchRequest, config: SlurmConfig, partition: Partition, init: Sequence[str] = BOOTSTRAP
) -> list[str]:
    """
    Return the command that submits a job for `request`.

    The command sets the job's deadline to the current time, plus the maximum wait, plus the time limit. So if the job
    has not begun after the maximum wait, it can no longer end by the deadline, and Slurm removes it from the queue,
    even if no runner is alive. But Slurm ignores the deadline of a job that cannot begin at all, for example in a
    partition that is down. The next driver that lists jobs cancels such a job.

    The option `singleton` keeps two jobs with the same token from running at the same time.
    https://slurm.schedmd.com/sbatch.html
    """
    life_s = ceil(request.time_to_live.total_seconds() / _MINUTE_S) * _MINUTE_S
    wait_s = int(config.wait.total_seconds())
    return [
        *("sbatch", "--parsable", *_nodes(request.count or 1), "--no-kill", "--no-requeue", "--export=ALL"),
        *_what(config, partition),
        f"--time={life_s // _MINUTE_S}",
        f"--deadline=now+{life_s + wait_s}",
        f"--job-name={request.token}",
        f"--comment={comment_of(request, config.wait)}",
        "--dependency=singleton",
        "--chdir=/",
        f"--output={str(log_of(request.token)).replace('%', '%%')}",
        str(Path(__file__).with_name("job.sh")),
        *(sys.executable, "-P", "-m", *_program(request)),
        *(request.run_uri, request.run_uid, str(request.launch)),
        *(_seconds(request.time_to_live), config.scratch),
        *init,
    ]


def trial(config: SlurmConfig, partition: Partition) -> list[str]:
    """Return a command that checks whether a job in this partition could ever run. It submits nothing."""
    limit = f"--time={int(partition.max_time.total_seconds()) // _MINUTE_S}"
    return ["sbatch", "--test-only", *_nodes(config.nodes), *_what(config, partition), limit, "--wrap=true"]


def _nodes(count: int) -> Iterator[str]:
    """
    Yield the arguments that request `count` nodes. Slurm begins the job only when all these nodes are available.
    """
    yield f"--nodes={count}"
    yield f"--ntasks={count}"
    if count > 1:
        yield "--ntasks-per-node=1"


def _program(request: LaunchRequest) -> Iterator[str]:
    """Yield the module that runs on the first node, followed by that module's extra argument, if any."""
    if request.count is None:
        yield "spotrun.clouds.slurm.start"
    else:
        yield "spotrun.clouds.slurm.gang"
        yield files_of(request.token).start


def _what(config: SlurmConfig, partition: Partition) -> Iterator[str]:
    yield f"--partition={partition.name}"
    yield from _share_of_a_node(partition)
    if config.account:
        yield f"--account={config.account}"
    if partition.qos:
        yield f"--qos={partition.qos}"


def _share_of_a_node(partition: Partition) -> Iterator[str]:
    if partition.is_whole:
        yield "--exclusive"
        yield "--mem=0"  # all memory of the node
    if partition.cpus:
        yield f"--cpus-per-task={partition.cpus}"
    if partition.memory_gb:
        yield f"--mem={partition.memory_gb}G"
    if partition.gres or partition.accelerators:
        yield f"--gres={partition.gres or 'gpu:' + partition.accelerators.rpartition(':')[2]}"


def _seconds(life: timedelta) -> str:
    return f"{life.total_seconds():.0f}"
