"""
Starts a runner in the background, and waits until the new process reports that it has begun to take care of the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from spotrun import address
from spotrun.errors import SpotrunError
from spotrun.runs.asking import say
from spotrun.runs.open_run import OpenRun
from spotrun.runs.signals import Signalled

LOGS = Path("~/.spotrun/runners")
"""Folder with the output of background runners whose runs are in a bucket."""
STARTER_FD = "SPOTRUN_STARTER_FD"
"""
Environment variable that gives the background process one end of a pipe. The process writes to the pipe once it has
begun to attend.
"""
ATTENDS_WITHIN_S = 60.0
"""
Maximum seconds of system time that the starter waits until the background process reports. The process needs some of
this time, because it reads the ledger and the cloud before it reports.
"""
LOG_TAIL_BYTES = 500


def leave_behind(run: OpenRun) -> None:
    """
    Start a detached runner, and wait until the runner reports that it takes care of the run. The run must be known on
    this machine (see known.py).

    Raises:
        SpotrunError: the runner ended, or did not report for ATTENDS_WITHIN_S, or its log cannot be written.
    """
    what = Background(f"the background runner of {run.id}", log_of(run), f"spotrun stop {run.typed}", "/")
    what.start(["resume", run.uri, "--foreground"], otherwise=f"attend with `spotrun resume {run.typed}`")
    print(
        f"a background runner takes care of {run.id} ({what.log}); see `spotrun status` and "
        f"`spotrun logs {run.typed} -f`"
    )


class Background(NamedTuple):
    """
    A spotrun process without a terminal. It works in `folder` and writes its output to `log`. `ends` is the command
    that ends it.
    """

    name: str
    log: Path
    ends: str
    folder: str

    def start(self, words: Sequence[str], *, otherwise: str) -> None:
        """
        Start the process, and wait until it reports that it takes care of the run. If it does not report, the error
        gives `otherwise` as advice.

        Raises:
            SpotrunError: the process ended, or did not report for ATTENDS_WITHIN_S, or its log cannot be written.
        """
        before = self.log.stat().st_size if self.log.exists() else 0
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as answer, _opened(self.log) as output:
            subprocess.Popen(
                [sys.executable, "-m", "spotrun", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.folder,
                pass_fds=(writing,),
                env=os.environ | {STARTER_FD: str(writing)},
            )
            os.close(writing)
            try:
                answered = bool(select.select([answer], [], [], ATTENDS_WITHIN_S)[0])
            except (KeyboardInterrupt, Signalled):
                say(f"{self.name} was started, and continues ({self.log}); `{self.ends}` ends it")
                raise
            if not answered or not answer.read(1):
                raise self._unattended(before, answered, otherwise)

    def _unattended(self, before: int, ended: bool, otherwise: str) -> SpotrunError:
        what = "ended immediately" if ended else f"did not report within {ATTENDS_WITHIN_S:.0f} s"
        with self.log.open("rb") as written:
            written.seek(max(before, self.log.stat().st_size - LOG_TAIL_BYTES))
            last = written.read().decode(errors="replace").strip()
        said = f"; its last output: {last}" if last else ""
        return SpotrunError(f"{self.name} {what}{said}", hint=f"see {self.log}, and {otherwise}")


def say_that_it_attends() -> None:
    """
    Report to the process that started this one in the background: the run is being taken care of. Do nothing if this
    was reported before, or if this process was not started in the background.
    """
    writing = os.environ.pop(STARTER_FD, None)
    if writing is None:
        return
    with contextlib.suppress(OSError), open(int(writing), "wb", buffering=0) as starter:  # the starter may have ended
        starter.write(b"1")


def open_to_append(log: Path) -> BinaryIO:
    """
    Open a log for appending, but refuse a link or a pipe. Another user with write access to a store's folder could put
    one there. A link would make this process write to another file, and a pipe would make it wait.

    Raises:
        OSError: `log` is a link or a pipe, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(log, flags, 0o600), "ab")


def _opened(log: Path) -> BinaryIO:
    try:
        return open_to_append(log)
    except OSError as error:
        raise SpotrunError(
            f"cannot write {log}: {error.strerror}",
            hint="check who has write access there, and whether the disk is full",
        ) from error


def log_of(run: OpenRun) -> Path:
    """Return the path of the run's log: in the run's folder if that folder is on this machine, otherwise below LOGS."""
    place = address.parse(run.uri)
    return Path(place) / "runner.log" if isinstance(place, str) else log_named(run.id)


def log_named(name: str) -> Path:
    """Return the path of the log file `name`, in the folder LOGS, for a run in a bucket."""
    folder = LOGS.expanduser()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{name}.log"
