"""Runs a test in a process of its own: an accelerator stays in its process, and with some faults a process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

import torch

from tests.device import toy

PR_SET_PDEATHSIG = 1
"""The signal that a process gets when its parent ends, for example at the timeout of a test."""


def fault_of(test: Callable[[], object]) -> str:
    """Run `test` with the simulated accelerator in a forked process. Return how it failed; "" if it passed."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        _run(test, write)
    os.close(write)
    try:
        with os.fdopen(read, errors="replace") as pipe:
            said = pipe.read()
    except BaseException:  # pytest's timeout
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
    return said or (f"the process ended with {os.waitstatus_to_exitcode(status)}" if status else "")


def _run(test: Callable[[], object], write: int) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        torch.set_num_threads(1)  # the threads of the parent are not here
        toy.load()
        test()
        assert not toy.faults(), "memory was freed or unpinned while it was copied, or unpinned without being pinned"
        assert not toy.overdue(), "a gate was left closed"
        code = 0
    except BaseException:  # noqa: BLE001  (the parent raises it)
        os.write(write, traceback.format_exc().encode()[-60_000:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
