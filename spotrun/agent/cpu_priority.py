"""
Who goes first on a full processor: training, or what its agent does beside it.

Linux shares a processor between sessions first and between the threads of each afterwards, where that is switched on,
as it is in most distributions (sched(7), "The autogroup feature"). A trainer has a session of its own: the niceness of
the agent's threads means nothing to it, only that of the agent's session.
"""

from __future__ import annotations

import re
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
NICENESS = 15
"""A thirtieth of the weight of training. What the agent does besides sending needs next to nothing."""


class Precedence:
    """Of this process's session. Without the feature nothing happens, and the niceness of threads does the same."""

    def __init__(self, autogroup: Path = AUTOGROUP) -> None:
        self._autogroup = autogroup
        self._usual = _niceness(autogroup)
        self._now = self._usual

    def stand_behind(self, behind: bool) -> None:
        """
        Training goes first, or no more. To be called again and again: who has no privileges may change it ten times a
        second, and is told to try later.
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
    """As the kernel tells it: `/autogroup-34514 nice 0`; None where it has no such thing."""
    try:
        found = re.search(r"nice (-?\d+)", autogroup.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
