"""
The one process of a job that Slurm signals before it takes the node. It runs as a step and writes down the deadline.

Slurm sends the same SIGTERM when somebody cancels the job, when its time is over, and when its script has ended. Only a
job that goes on running, and that Slurm calls preempted, has a notice.
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
from spotrun.errors import CloudError

TRIES = 3
PAUSE_S = 1.0
LEFT_UNTOLD = timedelta(seconds=10)
"""What is counted on if the controller does not say when the job ends: less than most clusters give."""
_FACT = re.compile(r"(?:^| )(JobState|EndTime|PreemptTime|NodeList)=(\S+)")


class Told(NamedTuple):
    """What the controller says of a job: whether it still runs, when Slurm ends it, if it takes its node, and where."""

    runs: bool
    deadline: datetime | None
    nodes: str = ""


def main(file: Path, job: str, commands: Commands) -> None:
    """
    Until the job ends. `file` is gone when its script is about to end.

    A job may be taken before this step is there to be signalled, so the controller is asked at the beginning too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    told = asked(job, commands) or Told(True, None)
    while told.runs and told.deadline is None and file.parent.exists():
        write(file, None)
        if not _hears(file):
            return
        told = after_signal(job, commands)
    if told.deadline is not None:
        write(file, told.deadline)
        _until_it_is_over(file, job, told.deadline, commands)


def _until_it_is_over(file: Path, job: str, deadline: datetime, commands: Commands) -> None:
    """A controller may signal a job once more within the time that it has left to it, which stays the training's."""
    over = False
    while not over:
        signal.sigwait({signal.SIGTERM})
        told = asked(job, commands) if file.exists() else Told(False, None)
        over = datetime.now(UTC) >= deadline if told is None else not told.runs


def after_signal(job: str, commands: Commands) -> Told:
    """A controller that does not answer leaves `LEFT_UNTOLD`."""
    heard_at = datetime.now(UTC)
    return asked(job, commands) or Told(True, heard_at + LEFT_UNTOLD)


def asked(job: str, commands: Commands) -> Told | None:
    """What is known of a job at this moment; None if the controller does not say."""
    for _ in range(TRIES):
        try:
            answer = commands.run(["scontrol", "--oneliner", "show", "job", job])
        except CloudError:
            return None
        if answer.code == 0:
            return read_job(answer.out)
        time.sleep(PAUSE_S)
    return None


def read_job(told: str) -> Told:
    """Of what scontrol tells about a job: its EndTime, where it still runs and has a PreemptTime."""
    facts = dict(_FACT.findall(told))
    ends, preempted = facts.get("EndTime", ""), facts.get("PreemptTime", "")
    runs = facts.get("JobState") == "RUNNING"
    taken = runs and preempted.isdecimal() and ends.isdecimal()
    return Told(runs, datetime.fromtimestamp(int(ends), UTC) if taken else None, facts.get("NodeList", ""))


def _hears(file: Path) -> bool:
    """Whether the signal came; False when `file` is gone first. Until then it is touched again and again."""
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
