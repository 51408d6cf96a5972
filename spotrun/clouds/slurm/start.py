"""
The first process of an instance, which the Slurm job runs on its node. When this process ends, the instance has ended.

    python -P -m spotrun.clouds.slurm.start RUN UID LAUNCH SECONDS SCRATCH COMMAND…

The process makes the instance's folder, starts the step that listens for Slurm's notice, and runs COMMAND, which starts
the agent. When the time-to-live, SECONDS, has passed, the process ends the step and COMMAND. Slurm enforces the
time-to-live too, but only in whole minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spotrun.clouds.local import processes
from spotrun.clouds.slurm.ids import instance_id_of
from spotrun.clouds.slurm.notices import FILE

SLURMS_OWN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")
"""
Prefixes of environment variables that Slurm sets. These variables are removed from the agent's environment. A training
library that found them would assume that Slurm starts the trainers, but the agent starts them.
"""
UNENDED = ("sh", "-c", 'trap "" TERM; exec "$@"', "sh")
"""
The beginning of a command line that starts a program with SIGTERM ignored. Slurm may send this signal in the job's
first second, and the signal would end a program that has not installed its handler yet.
"""
LISTENER = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--gres=none", "--input=none", "--kill-on-bad-exit=0"),
    *UNENDED,
    *(sys.executable, "-P", "-m", "spotrun.clouds.slurm.listener"),
)
ENDS_WITHIN_S = 2.0
OVER = 124
FOLDER_PREFIX = "spotrun-"


class Assignment(NamedTuple):
    """The arguments of this program, and Slurm's number for the job."""

    run_uri: str
    run_uid: str
    launch: str
    life_s: float
    scratch: Path
    init: list[str]
    job: str
    member: int | None = None
    """Index of the member in a gang; the other members reach it at `address`. None for a single instance."""
    address: str = ""

    @classmethod
    def read(
        cls, arguments: list[str], environment: Mapping[str, str], member: int | None = None, address: str = ""
    ) -> Assignment:
        uri, uid, launch, life_s, scratch, *init = arguments
        job = environment["SLURM_JOB_ID"]
        return cls(uri, uid, launch, float(life_s), Path(scratch), init, job, member, address)

    @property
    def folder(self) -> Path:
        number = self.job if self.member is None else f"{self.job}.{self.member}"
        return self.scratch / f"{FOLDER_PREFIX}{os.getuid()}-{number}"

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """
        Return the environment for an agent: `own`, without Slurm's variables (SLURMS_OWN), and with variables that
        describe the instance. The variables that Slurm sets for the node's GPUs are kept.
        """
        kept = {name: text for name, text in own.items() if not name.startswith(SLURMS_OWN)}
        return (
            kept
            | self._place_in_gang
            | {
                "SPOTRUN_RUN": self.run_uri,
                "SPOTRUN_RUN_UID": self.run_uid,
                "SPOTRUN_LAUNCH": self.launch,
                "SPOTRUN_INSTANCE_ID": instance_id_of(self.job, self.member),
                "SPOTRUN_INSTANCE_DIR": str(self.folder),
            }
        )

    @property
    def _place_in_gang(self) -> dict[str, str]:
        if self.member is None:
            return {}
        return {"SPOTRUN_MEMBER": str(self.member), "SPOTRUN_MEMBER_ADDRESS": self.address}


def main(assignment: Assignment) -> int:
    """Run the instance until it ends. Return the exit code of its command, or OVER at the end of its time-to-live."""
    signal.signal(signal.SIGTERM, _leave)  # Slurm kills the job after KillWait
    lock = prepared(assignment)
    try:
        return live(assignment, [*LISTENER, str(assignment.folder / FILE)])
    finally:
        os.close(lock)


def live(assignment: Assignment, hears: Sequence[str] = ()) -> int:
    """
    Run the instance's command in its folder until the command ends, the time-to-live expires, or SIGTERM arrives. Then
    end all of the instance's processes and remove the folder. `hears` is the command of a process that listens for
    notices while the instance runs; if it is empty, no process listens.
    """
    over_s = time.monotonic() + assignment.life_s
    processes.become_subreaper()
    listener = None
    try:
        signal.signal(signal.SIGTERM, _leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if hears:
            listener = subprocess.Popen(hears, stdin=subprocess.DEVNULL)
        command = subprocess.Popen(assignment.init, env=assignment.environment(os.environ), cwd=assignment.folder)
        return command.wait(max(0.0, over_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("spotrun: the time-to-live is over", file=sys.stderr, flush=True)
        return OVER
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (assignment.folder / FILE).unlink(missing_ok=True)
        if listener is not None:
            _dismiss(listener)
        processes.kill_all(partial(processes.descendants, os.getpid()))
        shutil.rmtree(assignment.folder, ignore_errors=True)


def prepared(assignment: Assignment) -> int:
    """Remove the folders of dead instances, make this instance's folder, and return the folder's lock."""
    sweep(assignment.scratch)
    return made(assignment.folder)


def sweep(scratch: Path) -> None:
    """Remove the folders of this user's dead instances on this node. A running instance holds its folder's lock."""
    for folder in scratch.glob(f"{FOLDER_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            lock = _locked(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def made(folder: Path) -> int:
    """
    Make a new folder that only this user can access, and return its lock. Other processes remove folders that are not
    locked, so the folder is locked before it gets its final name.
    """
    unnamed = folder.with_name(f".{folder.name}")
    for left in (folder, unnamed):
        shutil.rmtree(left, ignore_errors=True)
    unnamed.mkdir(mode=0o700, parents=True)
    lock = _locked(unnamed)
    unnamed.rename(folder)
    return lock


def _locked(folder: Path) -> int:
    """
    Lock a folder.

    Raises:
        OSError: a running process holds the lock, or the folder belongs to another user.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _dismiss(listener: subprocess.Popen[bytes]) -> None:
    """
    End the listener: Slurm keeps the node until the listener's step has ended. The caller must first delete the
    listener's file, because otherwise the listener does not exit at the SIGTERM that `srun` passes on to the step.
    """
    listener.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        listener.wait(ENDS_WITHIN_S)


def _leave(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Assignment.read(sys.argv[1:], os.environ)))
