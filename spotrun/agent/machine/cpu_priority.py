"""
Gives training priority over its agent while a checkpoint is sent and the processor is fully used.

Most distributions switch on Linux's autogroup feature (sched(7)). Linux then divides a processor first between
sessions, and then between the threads of each session. The trainer runs in a different session than the agent. So the
trainer's share depends on the niceness of the agent's session, and not on the niceness of the agent's threads.

benchmarks/cpu_priority.py measured the effect on two fully loaded cores that other programs used too. While a
checkpoint is sent, training has 98 % of its speed without an agent; without the priority, it has 86 %. So the priority
makes it 1.14 times as fast (middle half of 15 rounds: 1.03 to 1.34). The drawback is a slower upload: while the cores
are fully used, the agent sends 0 to 6 MB/s instead of 167. This lasts at most until the next checkpoint is due or a
notice comes.
"""

from __future__ import annotations

import re
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
NICENESS = 15
"""
The niceness of the agent's session. With it, the agent gets a thirtieth of the processor time that the training gets,
if both want the same core.
"""


class CpuPriority:
    """
    Sets the priority of this process's session. On Linux without autogroups it does nothing: there, only the niceness
    of each thread matters, and other parts of the agent set it.
    """

    def __init__(self, autogroup: Path = AUTOGROUP) -> None:
        self._autogroup = autogroup
        self._usual = _niceness(autogroup)
        self._now = self._usual

    def stand_behind(self, behind: bool) -> None:
        """
        If `behind`, give training priority over this process; otherwise restore the usual priority. A call may have no
        effect, because the kernel refuses more than ten changes a second to an unprivileged process. So the caller has
        to repeat the call regularly.
        """
        if self._usual is None:
            return
        wanted = max(self._usual, NICENESS) if behind else self._usual
        if wanted == self._now:
            return
        try:
            self._autogroup.write_text(str(wanted))
        except OSError:
            return
        self._now = wanted


def _niceness(autogroup: Path) -> int | None:
    """
    Return the niceness of a session, which the kernel shows as `/autogroup-34514 nice 0`. Return None if the file
    `autogroup` does not exist.
    """
    try:
        found = re.search(r"nice (-?\d+)", autogroup.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
