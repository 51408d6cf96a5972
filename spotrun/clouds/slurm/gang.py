"""
The batch script of a gang's Slurm job. It runs on the first node, and starts a Slurm step on each node.

    python -P -m spotrun.clouds.slurm.gang FILES RUN UID LAUNCH SECONDS SCRATCH COMMAND…

If a step is killed or its node fails, only that step ends. FILES is the common prefix of the files that record when and
why each member ended (spotrun.clouds.slurm.member_files). The other arguments are passed on to each step
(spotrun.clouds.slurm.start).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from spotrun.clouds.slurm.commands import Commands, Programs
from spotrun.clouds.slurm.ids import step_name
from spotrun.clouds.slurm.listener import asked
from spotrun.clouds.slurm.member_files import MemberEnd, MemberFiles, Seat, read_seats
from spotrun.clouds.slurm.start import OVER, UNENDED
from spotrun.errors import CloudError
from spotrun.instance import EndedBy

LOOK_S = 0.2
"""Seconds of system time between two checks of the steps."""
TRIES = 5
PAUSE_S = 2.0
BY_A_SIGNAL = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of a member that a signal from another process has ended."""


def main(files: MemberFiles, arguments: Sequence[str], environment: Mapping[str, str], commands: Commands) -> int:
    """Start all members, wait until they have ended, and return the job's exit code."""
    job = environment["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, lambda *_: None)  # Slurm's signal ends the steps; this process ends after them
    seats = files.take_seats(_seats(commands, environment["SLURM_JOB_NODELIST"]))
    steps: dict[int, subprocess.Popen[bytes]] = {}
    for member, seat in enumerate(seats):
        if files.is_to_end(member):
            files.end(member, MemberEnd(datetime.now(UTC), EndedBy.USER, "before it began"))
        else:
            steps[member] = subprocess.Popen(
                step(files, member, seat, arguments, environment), stdin=subprocess.DEVNULL, start_new_session=True
            )
    while steps:
        for member, each in list(steps.items()):
            if each.poll() is not None:
                del steps[member]
                _write_down(files, member, seats[member], each.returncode, job, commands)
            elif files.is_to_end(member):
                each.terminate()
        time.sleep(LOOK_S)
    return 0


def step(
    files: MemberFiles, member: int, seat: Seat, arguments: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """
    Return the command that starts a member's step. The step gets all resources that the job has on the member's node.
    The command requests GPUs explicitly, because otherwise a step on a whole node gets no GPUs.
    """
    gpus = environment.get("SLURM_GPUS_ON_NODE")
    return [
        *(
            "srun",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={seat.node}",
        ),
        *("--mem=0", "--cpu-bind=none", "--input=none", f"--job-name={step_name(member)}"),
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        f"--output={str(files.log(member)).replace('%', '%%')}",
        *UNENDED,
        *(sys.executable, "-P", "-m", "spotrun.clouds.slurm.member", str(member), seat.address),
        *arguments,
    ]


def _seats(commands: Commands, nodes: str) -> tuple[Seat, ...]:
    """
    Return the names and addresses of the job's nodes. If Slurm's controller does not answer, retry, because the members
    cannot start without these names and addresses.
    """
    for _ in range(TRIES - 1):
        try:
            return read_seats(commands, nodes)
        except CloudError as error:
            print(f"spotrun: {error}", file=sys.stderr, flush=True)
            time.sleep(PAUSE_S)
    return read_seats(commands, nodes)


def _has(seat: Seat, nodes: str, commands: Commands) -> bool:
    """
    Return True if the node of `seat` is still among the job's `nodes`, or if Slurm's controller does not answer.
    """
    try:
        return seat in read_seats(commands, nodes)
    except CloudError as error:
        print(f"spotrun: {error}", file=sys.stderr, flush=True)
        return True


def _write_down(files: MemberFiles, member: int, seat: Seat, code: int, job: str, commands: Commands) -> None:
    """
    Record when and why a member ended, in its file. If the whole job is over, record nothing, because the member's end
    was then only a consequence of the job's end. If Slurm's controller does not answer, assume that the job continues.
    """
    at = datetime.now(UTC)
    told = asked(job, commands)
    if told is not None and not told.runs:
        return
    if code == OVER:
        ended = MemberEnd(at, EndedBy.TIME_TO_LIVE, "its time-to-live was over")
    elif told is not None and not _has(seat, told.nodes, commands):
        ended = MemberEnd(at, EndedBy.FAULT, f"its node {seat.node} is lost")
    elif code in BY_A_SIGNAL and told is not None and told.deadline is not None:
        ended = MemberEnd(at, EndedBy.CLOUD, f"the job is preempted (exit code {code})")
    else:
        ended = MemberEnd(at, EndedBy.ITSELF, f"exit code {code}")
    files.end(member, ended)


if __name__ == "__main__":
    sys.exit(main(MemberFiles(sys.argv[1]), sys.argv[2:], os.environ, Programs()))
