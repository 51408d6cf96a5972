"""Output that nothing reads any more is dropped, and the command goes on; a full disk stays an error."""

from __future__ import annotations

import errno
import io
import os

import pytest

from spotrun.runs.unread import go_on_unread


def test_stream_goes_on_after_its_reader_has_left() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as opened:
        stream = go_on_unread(opened)
        print("first", file=stream, flush=True)
        assert os.read(reader, 100) == b"first\n"
        os.close(reader)
        for line in ("second", "third"):
            print(line, file=stream, flush=True)


def test_disk_that_is_full_is_still_an_error() -> None:
    with open("/dev/full", "w") as opened, pytest.raises(OSError, match="No space") as full:
        print("lost", file=go_on_unread(opened), flush=True)
    assert full.value.errno == errno.ENOSPC


def test_stream_in_memory_stays_as_it_is() -> None:
    for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO())):
        assert go_on_unread(stream) is stream
