"""
Port for what an attempt trains: a training that takes snapshots, a command that keeps its state in files, or a command
of which nothing is kept.

Every program starts as a command. It is a training from its hello on.
"""

from __future__ import annotations

from typing import Protocol

from spotrun.agent.grace_period import Times
from spotrun.agent.inbox import Exited, StateFrozen
from spotrun.run.events import TrainerExited


class Trainee(Protocol):
    """Answers what can be saved now, what a notice means, and what follows the end."""

    # -- what can be saved now

    def turn(self, now_s: float) -> None:
        """Have saved what is due, at monotonic run time `now_s`. Called again and again while it runs, and after."""
        ...

    def frozen(self, letter: StateFrozen) -> None:
        """Take a copy of a command's state, or close it if it comes too late."""
        ...

    def given_up(self, reason: str) -> None:
        """Report files that may not be stored."""
        ...

    def unwritten(self, detail: str) -> None:
        """Note that the store takes no entry of the ledger now."""
        ...

    # -- what a notice means

    @property
    def times(self) -> Times:
        """The moments at which it leaves."""
        ...

    def make_way(self) -> None:
        """Leave the network to the last snapshot, if there will be one."""
        ...

    def leave(self, now_s: float) -> None:
        """Do no further step, and save the last one if that is possible."""
        ...

    # -- what follows the end

    def awaits_the_last(self, now_s: float) -> bool:
        """Return True while the last copy of what an ended trainer has left is still being made."""
        ...

    def is_done(self, exited: Exited) -> bool:
        """Return True if nothing is left to do: the run is complete."""
        ...

    def why_give_up(self, exited: TrainerExited) -> str | None:
        """Return why no other trainer is started after this end, which the ledger has already; None to start one."""
        ...
