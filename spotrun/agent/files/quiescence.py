"""
Decides when a command's state is at rest, and finds processes that still write to it. Pure, except `writer_of`, which
reads /proc.

Files that belong together, for example those of a database or a sharded save, are written one after another. So the
state is copied only when two conditions hold: none of its files has changed for a while, and no process has one of them
open for writing.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.folder.state_files import TOO_MANY, has_too_many
from spotrun.folder.work_files import Survey

REST_S = 5.0
"""
Minimum seconds of run time for which a command's state files must stay unchanged before the state counts as at
rest.
"""
REST_MIN_S = float(os.environ.get("SPOTRUN_REST_FLOOR_S", "1"))
"""
Lower limit of REST_S in seconds of system time. It is needed if run time passes faster than system time, because
programs do not write faster then. Tests set a smaller value.
"""
SURVEYS = 2
"""
Number of surveys (reads of all files' sizes and times) whose total duration the state must at least stay unchanged. If
surveys take so long that this is more than REST_S, it replaces REST_S.
"""
LOOKS = 5
"""
Number of surveys within the time that the state must stay unchanged. With several surveys, the agent notices soon that
the state has come to rest.
"""
BUSY_SHARE_MAX = 0.05
"""
Maximum share of one processor that the surveys use. The more files a state has, the longer a survey takes, and so the
less often the state is surveyed.
"""
COMMAND_MAX = 40
Files = Mapping[tuple[int, int], str]
"""The paths of files, keyed by device and inode."""

REST_MORE = "let the command close its files between saves, or write constantly changing files outside of the state"
NAME_FEWER = "name folders with fewer files as train.state, or pack them"


class Writer(NamedTuple):
    """
    A process that can still write to a file of the state. It has the file open for writing, or, if `mapped` is True,
    has mapped the file into memory.
    """

    pid: int
    command: str
    path: str
    mapped: bool = False

    def __str__(self) -> str:
        how = "mapped" if self.mapped else "open"
        return f"{self.path} is {how} for writing in {self.command} (process {self.pid})"


class TimedSurvey(NamedTuple):
    """A survey of the state, and the seconds of system time that the survey took."""

    survey: Survey
    took_s: float


def rest_s(look: TimedSurvey, scale: float) -> float:
    """Return how many seconds of system time must pass without a change before the state counts as at rest."""
    return max(REST_S / scale, REST_MIN_S, SURVEYS * look.took_s)


def pause_s(look: TimedSurvey, scale: float) -> float:
    """Return the seconds of system time between two surveys."""
    return max(rest_s(look, scale) / LOOKS, look.took_s / BUSY_SHARE_MAX)


def why_not_at_rest(before: TimedSurvey, now: TimedSurvey, writer: Writer | None) -> str | None:
    """
    Return the reason why the state is not at rest; None if it is at rest. `before` and `now` are two surveys, made
    at least `rest_s()` apart. `writer` is a process that still had a file open for writing after the second survey.
    """
    if has_too_many(now.survey):
        return TOO_MANY
    changed = now.survey.first_change(before.survey)
    if changed is not None:
        return f"{changed} is still being written"
    return None if writer is None else str(writer)


def writer_of(files: Files) -> Writer | None:
    """
    Return a process on this machine that has one of `files` open for writing, or mapped shared and writable; None if
    there is no such process. The agent itself is ignored. Processes of other users, which this user is not allowed to
    inspect, are not found.
    """
    if not files:
        return None
    inodes = {inode for _, inode in files}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                for path, mapped in _written_by(name, files, inodes):
                    return Writer(int(name), _command(name), path, mapped)
    return None


def _written_by(pid: str, files: Files, inodes: set[int]) -> Iterator[tuple[str, bool]]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            place = f"/proc/{pid}/fd/{fd}"
            if os.lstat(place).st_mode & stat.S_IWUSR and (path := files.get(_key(place))) is not None:
                yield path, False
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        fields = line.split(maxsplit=5)  # fields (proc_pid_maps(5)): address, permissions, offset, device, inode, path
        if fields[1][1:2] == b"w" and fields[1][3:4] == b"s" and int(fields[4]) in inodes:
            with contextlib.suppress(OSError):
                if (path := files.get(_key(f"/proc/{pid}/map_files/{fields[0].decode()}"))) is not None:
                    yield path, True
                continue
            # The link in map_files shows the mapped file's device and inode, but only privileged users are allowed to
            # follow it. For other users, find the file by its inode alone.
            yield next(path for (_, inode), path in files.items() if inode == int(fields[4])), True


def _key(place: str) -> tuple[int, int]:
    facts = os.stat(place)
    return facts.st_dev, facts.st_ino


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()[:COMMAND_MAX]
    return "?"


def in_words(trouble: str) -> tuple[str, str]:
    """
    Return two texts for the user: why the state cannot be copied, given `trouble`, and what to do about it.
    """
    return (trouble, NAME_FEWER) if trouble == TOO_MANY else (f"its files never stop changing: {trouble}", REST_MORE)
