"""
The interface for the program that an attempt runs. It has three implementations: a training that takes snapshots, a
command that keeps its state in files, and a command whose state spotrun does not save.

Every program starts as a command. It becomes a training when spotrun's callback connects to the agent and says hello.
"""

from __future__ import annotations

from typing import Protocol

from spotrun.agent.grace_period import Times
from spotrun.agent.inbox import Exited, StateFrozen
from spotrun.run.events import TrainerExited


class Trainee(Protocol):
    """Decides what can be saved now, how to react to a notice, and what happens after the program has ended."""

    # -- what can be saved now

    def turn(self, now_s: float) -> None:
        """
        Start a snapshot if one is due at monotonic run time `now_s`. This is called even after the program has ended.
        """
        ...

    def frozen(self, letter: StateFrozen) -> None:
        """Save the copy of a command's state that `letter` contains. If it is too late to save it, only close it."""
        ...

    def given_up(self, reason: str) -> None:
        """Report that the command's state cannot be saved, because it contains files that must not be stored."""
        ...

    def unwritten(self, detail: str) -> None:
        """Handle a ledger entry that cannot be written now because the store refuses writes."""
        ...

    # -- what a notice means

    @property
    def times(self) -> Times:
        """The times at which the program has to stop."""
        ...

    def make_way(self) -> None:
        """
        If the program is about to take a last snapshot, stop other uploads, so that this snapshot's upload can use the
        whole network.
        """
        ...

    def leave(self, now_s: float) -> None:
        """Stop training. If possible, save a last snapshot."""
        ...

    # -- what follows the end

    def awaits_the_last(self, now_s: float) -> bool:
        """Return True while the state that the program left at its end is still being copied."""
        ...

    def is_done(self, exited: Exited) -> bool:
        """Return True if the run is complete."""
        ...

    def why_give_up(self, exited: TrainerExited) -> str | None:
        """
        Return the reason why no other trainer should start after `exited`; None if one should. `exited` is already in
        the ledger.
        """
        ...
