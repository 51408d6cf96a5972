"""
Receives the signal that Slurm sends to a job before taking the job's node, and records the time at which Slurm will
take it. This process runs as a separate step of the job.

Slurm sends the same SIGTERM when a user cancels the job, when the job reaches its time limit, and when its script has
ended. So the signal counts as a notice only if the job still runs and Slurm reports it as preempted.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from spotrun.clouds.slurm.commands import Commands, Programs
from spotrun.clouds.slurm.notices import BEAT_S, write
from spotrun.clouds.slurm.queue import has_nodes
from spotrun.errors import CloudError

TRIES = 3
PAUSE_S = 1.0
LEFT_UNTOLD = timedelta(seconds=10)
"""
The time that an instance is assumed to have left after a notice if the controller does not report when the job ends.
Most clusters give more time.
"""
_FACT = re.compile(r"(?:^| )(JobState|EndTime|PreemptTime|NodeList)=(\S+)")


class JobStatus(NamedTuple):
    """
    The controller's report about a job: whether it runs, its nodes, and the deadline at which Slurm will end it. The
    deadline is None if the job is not preempted.
    """

    runs: bool
    deadline: datetime | None
    nodes: str = ""


def main(file: Path, job: str, commands: Commands) -> None:
    """
    Wait for a notice, write it to `file`, and wait until the job ends. Return early if another process deletes `file`,
    which means that the job's script is about to end.

    Slurm may have sent the signal before this step could receive signals. So this function first asks the controller
    whether the job is already preempted.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    told = asked(job, commands) or JobStatus(True, None)
    while told.runs and told.deadline is None and file.parent.exists():
        write(file, None)
        if not _hears(file):
            return
        told = after_signal(job, commands)
    if told.deadline is not None:
        write(file, told.deadline)
        _until_it_is_over(file, job, told.deadline, commands)


def _until_it_is_over(file: Path, job: str, deadline: datetime, commands: Commands) -> None:
    """
    Wait until the job is over. A second signal does not mean that the job is over: Slurm may send it before the
    deadline, and the training may still need the remaining time. So ask the controller after each signal.
    """
    over = False
    while not over:
        signal.sigwait({signal.SIGTERM})
        told = asked(job, commands) if file.exists() else JobStatus(False, None)
        over = datetime.now(UTC) >= deadline if told is None else not told.runs


def after_signal(job: str, commands: Commands) -> JobStatus:
    """
    Return the state of a job after a signal. If the controller does not answer, assume that the job will end
    LEFT_UNTOLD from now.
    """
    heard_at = datetime.now(UTC)
    return asked(job, commands) or JobStatus(True, heard_at + LEFT_UNTOLD)


def asked(job: str, commands: Commands) -> JobStatus | None:
    """Ask the controller about a job; return None if it does not answer."""
    for _ in range(TRIES):
        try:
            answer = commands.run(["scontrol", "--oneliner", "show", "job", job])
        except CloudError:
            return None
        if answer.code == 0:
            return read_job(answer.out)
        time.sleep(PAUSE_S)
    return None


def read_job(told: str) -> JobStatus:
    """Convert scontrol's output about a job. If the job runs and has a PreemptTime, its EndTime is the deadline."""
    facts = dict(_FACT.findall(told))
    ends, preempted = facts.get("EndTime", ""), facts.get("PreemptTime", "")
    runs = has_nodes(facts.get("JobState", ""))
    taken = runs and preempted.isdecimal() and ends.isdecimal()
    return JobStatus(runs, datetime.fromtimestamp(int(ends), UTC) if taken else None, facts.get("NodeList", ""))


def _hears(file: Path) -> bool:
    """
    Wait for the signal, and update the modification time of `file` every BEAT_S, to show that this process is alive.
    Return False if `file` is gone.
    """
    while _touched(file):
        if signal.sigtimedwait({signal.SIGTERM}, BEAT_S) is not None:
            return file.exists()
    return False


def _touched(file: Path) -> bool:
    try:
        os.utime(file)
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["SLURM_JOB_ID"], Programs())
