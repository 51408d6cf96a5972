"""
Stores a trace on disk: one file for each rank. If a rank's trainer is restarted, the new process appends to the same
file.

Each record is one line, written by one system call, so a SIGKILL can leave only the last line incomplete. Readers skip
an incomplete line (`decode_record`).
"""

from __future__ import annotations

import os
from pathlib import Path

from spotrun.exactness.trace import Trace, TraceRecord, decode_record, encode_record

FILE_VARIABLE = "SPOTRUN_TRACE"
"""Environment variable that names the file to which a trainer writes its trace."""
HOLD_VARIABLE = "SPOTRUN_TRACE_HOLD"
"""Environment variable with the steps, separated by commas, at which a trainer waits to be killed."""
INSTANCES_VARIABLE = "SPOTRUN_TRACE_INSTANCES"
"""
Environment variable that names the folder in which all instances have their folders. Those folders have different names
in each training, so their paths are removed from the trace.
"""


def path_of_rank(path: Path, rank: int) -> Path:
    """Return the trace file of a rank. `path` is the file of rank 0."""
    return path if rank == 0 else path.with_name(f"{path.name}.rank{rank}")


def read_ranks(path: Path) -> dict[int, Trace]:
    """Return the trace of each rank."""
    found = {0: TraceFile(path).read()}
    for other in sorted(path.parent.glob(f"{path.name}.rank*")):
        found[int(other.name.rpartition(".rank")[2])] = TraceFile(other).read()
    return dict(sorted(found.items()))


class TraceFile:
    """A trace file that this process reads or appends to. Only one process at a time may append."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appended = False
        self._read_bytes = 0
        self._records: list[TraceRecord] = []

    def append(self, record: TraceRecord) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            line = encode_record(record)
            os.write(descriptor, line if self._appended or not _is_torn(descriptor) else b"\n" + line)
            self._appended = True
        finally:
            os.close(descriptor)

    def read(self) -> Trace:
        """Return all complete records so far. Each call reads only new records from the file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return Trace([])
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        found = (decode_record(line) for line in whole.splitlines())
        self._records += [record for record in found if record is not None]
        return Trace(list(self._records))


def _is_torn(descriptor: int) -> bool:
    """Return True if the last writer was killed in the middle of a line."""
    size_bytes = os.fstat(descriptor).st_size
    return size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"
