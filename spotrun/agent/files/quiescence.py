"""
Decides when a command's state is at rest, and finds processes that still write to it. Pure, except `writer_of`, which
reads /proc.

Files that belong together, like those of a database or a sharded save, are written one after another. So the state is
copied only when none of its files has changed for a while, and no process has any of them open for writing.
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
"""Minimum run seconds without a change that count as rest."""
REST_MIN_S = float(os.environ.get("SPOTRUN_REST_FLOOR_S", "1"))
"""The minimum in system seconds, because programs write equally slowly at any speed of run time. Tests set less."""
SURVEYS = 2
"""Minimum length of a rest, as a multiple of the duration of a survey."""
LOOKS = 5
"""Surveys during a rest's minimum length, so that a rest is noticed soon."""
BUSY_SHARE_MAX = 0.05
"""Maximum share of a processor for surveys. A state of many files is surveyed less often."""
COMMAND_MAX = 40
Files = Mapping[tuple[int, int], str]
"""Paths by device and inode."""

REST_MORE = "let the command close its files between saves, or write elsewhere what changes all the time"
NAME_FEWER = "name folders with fewer files as train.state, or pack them"


class Writer(NamedTuple):
    """A process that may write to a file of the state; through a memory mapping if `mapped`."""

    pid: int
    command: str
    path: str
    mapped: bool = False

    def __str__(self) -> str:
        how = "mapped" if self.mapped else "open"
        return f"{self.path} is {how} for writing in {self.command} (process {self.pid})"


class TimedSurvey(NamedTuple):
    """The state at one moment; the survey took `took_s` of system time."""

    survey: Survey
    took_s: float


def rest_s(look: TimedSurvey, scale: float) -> float:
    """Return the system seconds for which nothing may change."""
    return max(REST_S / scale, REST_MIN_S, SURVEYS * look.took_s)


def pause_s(look: TimedSurvey, scale: float) -> float:
    """Return the system seconds between two surveys."""
    return max(rest_s(look, scale) / LOOKS, look.took_s / BUSY_SHARE_MAX)


def why_not_at_rest(before: TimedSurvey, now: TimedSurvey, writer: Writer | None) -> str | None:
    """
    Return why the state is not at rest; None if it is. `before` and `now` are two surveys at least `rest_s` apart.
    `writer` is a process that had a file open after the second survey.
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
    there is none. Ignore this process, and processes that this user may not inspect.
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
        fields = line.split(maxsplit=5)  # address, permissions, offset, device, inode, path (proc_pid_maps(5))
        if fields[1][1:2] == b"w" and fields[1][3:4] == b"s" and int(fields[4]) in inodes:
            with contextlib.suppress(OSError):
                if (path := files.get(_key(f"/proc/{pid}/map_files/{fields[0].decode()}"))) is not None:
                    yield path, True
                continue
            # not every user may follow links in map_files
            yield next(path for (_, inode), path in files.items() if inode == int(fields[4])), True


def _key(place: str) -> tuple[int, int]:
    facts = os.stat(place)
    return facts.st_dev, facts.st_ino


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()[:COMMAND_MAX]
    return "?"


def in_words(trouble: str) -> tuple[str, str]:
    """Return what to report about a state that cannot be copied because of `trouble`, and advice for the user."""
    return (trouble, NAME_FEWER) if trouble == TOO_MANY else (f"it never rests: {trouble}", REST_MORE)
