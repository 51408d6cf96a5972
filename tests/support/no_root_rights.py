"""Takes from root the right to read every file, so that a test meets files that it is not allowed to read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of linux/capability.h, for two words of each set
_READ_ALL = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def no_root_rights() -> Iterator[None]:
    """Obey the permissions of files in this thread and those that it starts, whichever user runs the test."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~_READ_ALL
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0
