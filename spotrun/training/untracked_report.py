"""
Reports each value that training changes and that checkpoints do not contain. Each value is reported once, by name. A
job can require that such a report ends the training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain

from spotrun.trainer_link import NotCarried
from spotrun.training import unsupported
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.ranks import Ranks
from spotrun.training.session import Agent, alone

TOLD_MAX = 100
"""
Maximum number of changes in one message to the agent. The path and the description of each change are cut at TEXT_MAX
characters.
"""
TEXT_MAX = 300
HINT = (
    "keep the state in plain values and make the object from them at each start (docs/checkpoints.md), or set"
    " checkpoint: {exact: tell}"
)


class UntrackedReporter:
    """
    Prints each report to the script's output, and sends it to the agent, which records it. If `required` is True (the
    job requires exact resumes), a report ends the training.
    """

    def __init__(self, agent: Agent, ranks: Ranks, *, required: bool) -> None:
        self._agent = agent
        self._ranks = ranks
        self._required = required
        self._said: set[str] = set()

    def say(self, found: Iterable[UntrackedChange], step: int) -> None:
        """
        Report the changes that any of the ranks has found up to the snapshot of `step`. All ranks must make this call
        at the same point, even those that have found no change, because they send each other their changes.

        Raises:
            TrainingUnsupported: a change was found, and the job requires that each resume is exact.
        """
        if self._agent is alone():
            return  # nothing is saved, so there is no checkpoint that could lack anything
        everywhere = chain.from_iterable(self._ranks.gather(list(found)))
        named = (UntrackedChange(*lost) for lost in everywhere)
        new = {lost.path: lost for lost in named if lost.path not in self._said}
        if not new:
            return
        self._said |= new.keys()
        for lost in new.values():
            print(f"spotrun: {lost}", file=sys.stderr, flush=True)
        told = tuple((lost.path[:TEXT_MAX], lost.what[:TEXT_MAX]) for lost in new.values())
        self._agent.tell(NotCarried(step=step, places=told[:TOLD_MAX]))
        if self._required:
            first = next(iter(new.values()))
            more = f", and so have {len(new) - 1} more" if len(new) > 1 else ""
            unsupported.reject(self._agent, f"by step {step} {first}{more}; checkpoint.exact forbids it", HINT)
