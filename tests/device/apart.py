"""
Runs a test in a process of its own: an accelerator stays in its process, and with some faults a process ends.

Autograd counts the devices once, when a process first computes gradients. So the process of a test comes from a server
that has imported PyTorch and computed nothing: in a fork of pytest's process, another test may have done it already.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.device import toy

PR_SET_PDEATHSIG = 1
"""The signal that a process gets when its parent ends, for example at the timeout of a test."""
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload([f"tests.device.{path.stem}" for path in Path(__file__).parent.glob("test_*.py")])


def fault_in_fresh_process(test: Callable[[], object]) -> str:
    """
    Run `test`, which can be pickled, with the simulated accelerator, in a process that has computed nothing before.
    Return how it failed; "" if it passed.
    """
    receiver, sender = FRESH.Pipe(duplex=False)
    with receiver:
        process = FRESH.Process(target=_run_for, args=(test, sender), daemon=True)
        process.start()
        sender.close()
        try:
            with os.fdopen(os.dup(receiver.fileno()), errors="replace") as pipe:
                said = pipe.read()
        except BaseException:  # pytest's timeout
            process.kill()
            raise
        finally:
            process.join()
    return said or _ending(process.exitcode)


def _run_for(test: Callable[[], object], sender: Connection) -> None:
    _run(test, sender.fileno())


def fault_in_fork(test: Callable[[], object]) -> str:
    """Run `test` with the simulated accelerator in a fork of this process. Return how it failed; "" if it passed."""
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
    return said or _ending(os.waitstatus_to_exitcode(status))


def _ending(code: int | None) -> str:
    return f"the process ended with {code}" if code else ""


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
