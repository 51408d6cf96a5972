"""
The first process of an instance: runs the agent, and restarts it after a crash.

If the agent ends with exit code 0, this process ends too, and the instance powers off. This module imports nothing from
spotrun, so that a fault in the package cannot prevent its start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

CRASHES_MAX = 10
"""
Maximum consecutive crashes. After this many, the agent is not started again, because it would probably crash again.
"""
STEADY_S = 300.0
"""
Seconds of system time that an agent has to run before the count of consecutive crashes starts again from zero. A crash
after that time says nothing about the agent's start.
"""
PAUSE_S = 0.5
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def main(command: list[str] | None = None) -> int:
    crashes = 0
    while True:
        began = time.monotonic()
        exit_code = run_agent(command or [sys.executable, "-P", "-m", "spotrun.agent"])
        if exit_code == 0:
            return 0
        crashes = 1 if time.monotonic() - began > STEADY_S else crashes + 1
        print(f"spotrun: the agent ended with {exit_code} ({crashes} in a row)", file=sys.stderr, flush=True)
        if crashes >= CRASHES_MAX:
            return 1
        time.sleep(PAUSE_S)


def run_agent(command: list[str]) -> int:
    """Run the agent, and return its exit code. If this process ends before the agent, the kernel kills the agent."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent).returncode


if __name__ == "__main__":
    sys.exit(main())
