"""
A command whose state spotrun does not save. It runs, gets SIGTERM before the cloud takes its instance, and starts from
the beginning on the next instance.
"""

from __future__ import annotations

from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.grace_period import SigtermTimes, Times
from spotrun.agent.inbox import Exited, StateFrozen
from spotrun.agent.processes.trainer import Trainer
from spotrun.run.events import TrainerExited
from spotrun.run.protection import PROTECT, UNPROTECTED
from spotrun.run.state import RunState

PLACE = "the state of the command"


class Command:
    """
    A command that `trainer` runs, and whose state spotrun does not save.

    Every program starts as a command. So this class also handles a script with spotrun's callback, in each attempt,
    until the callback connects to the agent. From then on, the script counts as a training.
    """

    def __init__(self, context: AgentContext, trainer: Trainer, journal: AttemptJournal) -> None:
        self.trainer = trainer
        self._context = context
        self._journal = journal
        self._began_at = context.clock.now()
        self._has_begun = self._unprotected = self._told = False

    @property
    def _state(self) -> RunState:
        return self._context.recorder.state

    @property
    def _has_state(self) -> bool:
        """True if the job names state files. Subclasses may know of other state files."""
        return bool(self._context.spec.train.state)

    # -- what can be saved now

    def turn(self, now_s: float) -> None:
        pass

    def frozen(self, letter: StateFrozen) -> None:
        self.discard(letter)

    def discard(self, letter: StateFrozen) -> None:
        """Close a copy of the command's state, because it will not become a checkpoint."""
        if letter.state is not None:
            letter.state.close()

    def given_up(self, reason: str) -> None:
        self._tell(f"no checkpoint of the command's state: {reason}", reason)

    def unwritten(self, detail: str) -> None:
        self._context.note(f"could not write an entry to the ledger yet: {detail}")

    def becomes_training(self) -> None:
        """Record that the command is now a training, because spotrun's callback in it has connected to the agent."""
        if self._unprotected:
            self._unprotected = False
            self._context.note("spotrun's callback has connected to the agent: checkpoints are saved from now on")

    def _say_that_it_began(self, *, unprotected: bool = False) -> None:
        """
        Record in the ledger the time at which the command began. `unprotected` is True if no state of the command
        is saved, because it is a Python program without spotrun's callback, and the job names no state files. In that
        case, also warn the user.
        """
        if self._has_begun:
            return
        self._has_begun = True
        self._unprotected = unprotected
        self._journal.command_began(self.trainer.number, self._began_at, unprotected=unprotected)
        if unprotected:
            self._context.note(f"UNPROTECTED: {UNPROTECTED}. {PROTECT}")

    def _tell(self, note: str, what: str) -> None:
        """Report why there is no checkpoint, unless this was already reported."""
        if not self._told:
            self._told = True
            self._context.note(note)
            self._journal.not_carried(0, [(PLACE, self._context.console.clean(what))])

    # -- what a notice means

    @property
    def times(self) -> Times:
        return SigtermTimes()

    def make_way(self) -> None:
        pass

    def leave(self, now_s: float) -> None:
        self.trainer.terminate()

    # -- what follows the end

    def awaits_the_last(self, now_s: float) -> bool:
        if self.trainer.exited is not None and (self._has_state or self._context.spec.train.run is not None):
            self._say_that_it_began()
        return False

    def is_done(self, exited: Exited) -> bool:
        return False  # the run's checkpoints are of a training, which has not begun in this process

    def why_give_up(self, exited: TrainerExited) -> str | None:
        return decisions.why_give_up(self._state, exited, self._context.spec.retry.max_restarts)
