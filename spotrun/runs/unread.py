"""Lets a command work to its end when nothing reads its output any more, as after `| head -1`."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any, TextIO


def go_on_unread(stream: TextIO) -> TextIO:
    """
    Return a stream that writes to the same place as `stream`, but discards all output once nothing can read it. Return
    `stream` itself if it writes to no file descriptor.
    """
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # with `python -u`, the buffer is the file itself
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.FileIO):
        return stream
    stream.flush()
    unread: Any = _Unread(raw.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        unread if raw is buffer else io.BufferedWriter(unread),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Unread(io.FileIO):
    """A pipe or a terminal that becomes /dev/null when its other end is closed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO) or stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno(), inheritable=self.fileno() in (1, 2))
        os.close(nowhere)
        return super().write(data)


def go_on_unread_here(*, output: bool) -> None:
    """Apply `go_on_unread` to the errors of this process, and with `output` to its standard output too."""
    if sys.stderr is not None:  # it is None after `2>&-`
        sys.stderr = go_on_unread(sys.stderr)
    if output and sys.stdout is not None:
        sys.stdout = go_on_unread(sys.stdout)
