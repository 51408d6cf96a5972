"""
The program that Slurm starts for each member of a gang. It receives Slurm's notice, and runs the member's agent and
training in a separate session.

    python -P -m spotrun.clouds.slurm.member MEMBER ADDRESS RUN UID LAUNCH SECONDS SCRATCH COMMAND…

In Slurm's terms, this program is the task of a step. Slurm sends SIGTERM as its notice. Depending on the cluster's
ProctrackType, the signal goes to the task alone, to the task's process group, or to all descendants of slurmstepd, the
step's daemon. The signal must not reach the agent and the training, because it would end them. So they run as orphans
in a separate session. They hold the end of a pipe from the task: when the task ends, the pipe closes, and they end too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spotrun.clouds.local import processes
from spotrun.clouds.slurm import listener
from spotrun.clouds.slurm.commands import Programs
from spotrun.clouds.slurm.notices import FILE
from spotrun.clouds.slurm.start import Assignment, live, prepared

KILLED = 128 + signal.SIGKILL


class Pipes(NamedTuple):
    """
    Two pipes between the task and the member's process. The pipe `life` is closed when the task ends. Through the pipe
    `end`, the member's process sends its exit code before it ends.
    """

    life_read: int
    life_write: int
    end_read: int
    end_write: int


def main(assignment: Assignment) -> int:
    """Run the member until it ends. Return the exit code of its command, or OVER at the end of its time-to-live."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    lock = prepared(assignment)
    pipes = Pipes(*os.pipe(), *os.pipe())
    _detach(assignment, pipes)
    os.close(pipes.life_read)
    os.close(pipes.end_write)
    codes: list[int] = []
    file = assignment.folder / FILE
    ends = threading.Thread(target=_await_end, args=(pipes.end_read, file, codes))
    ends.start()
    listener.main(file, assignment.job, Programs())
    os.close(pipes.life_write)  # at this point the job is ending, or the member has ended
    ends.join()
    processes.kill_all(partial(processes.carrying, "SPOTRUN_INSTANCE_DIR", str(assignment.folder)))
    shutil.rmtree(assignment.folder, ignore_errors=True)
    os.close(lock)
    return codes[0]


def _await_end(end: int, file: Path, codes: list[int]) -> None:
    said = b"".join(iter(partial(os.read, end, 16), b""))
    codes.append(int(said) if said else KILLED)
    file.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGTERM)  # wakes the listener, which then finds its file gone


def _detach(assignment: Assignment, pipes: Pipes) -> None:
    """
    Run the member in a new process that has a separate session. Fork twice, so that the new process is an orphan and
    not a descendant of the task.
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(pipes.life_write)
    os.close(pipes.end_read)
    code = KILLED
    try:
        code = _keep(assignment, pipes.life_read)
    finally:
        os.write(pipes.end_write, str(code).encode())
        os._exit(0)


def _keep(assignment: Assignment, life: int) -> int:
    threading.Thread(target=_end_with_the_task, args=(life,), daemon=True).start()
    try:
        return live(assignment)
    except SystemExit as left:
        return int(left.code or 0)


def _end_with_the_task(life: int) -> None:
    """
    Wait until the task ends, then send SIGTERM to this process. All threads block the signal until the main thread can
    handle it.
    """
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Assignment.read(sys.argv[3:], os.environ, member=int(sys.argv[1]), address=sys.argv[2])))
