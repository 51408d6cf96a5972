"""
Waits in a thread of its own until the state of a command is at rest, and makes a copy of it then.

It works only while a copy is wanted. A survey at any cost takes nothing from the command but a little of the machine.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.content_store import stand_behind
from spotrun.agent.files.quiescence import Look, pause_s, rest_s, why_not_at_rest, writer_of
from spotrun.agent.files.rules import StateFiles
from spotrun.agent.inbox import StateFrozen
from spotrun.agent.snapshots.freeze import Freezing, NotAtRest
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.folder import state_files
from spotrun.folder.work_files import Survey

LAST_WITHIN_S = 60.0
"""
Maximum system seconds for the files of an ended command to come to rest: only a process that it left behind can write.
"""


class Wish(NamedTuple):
    """A request for a copy of the state of command `incarnation`. `is_last`: it has ended."""

    incarnation: int
    is_last: bool


class StateWatch:
    """Watches the state. The methods are the main loop's; a thread of its own does the work, and ends with `close`."""

    def __init__(self, context: AgentContext, files: CommitFiles) -> None:
        self._context = context
        self._files = files
        self._work = context.assignment.work
        self._state = StateFiles(context)
        self._wish: Wish | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        """The reason why the last survey has found no rest; None if it has."""
        self.stored: Survey | None = None
        """The state as the newest checkpoint has it."""

    def want(self, wish: Wish) -> None:
        """Request a copy. Idempotent; the answer is one letter, unless the wish is dropped before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="state", daemon=True)
            self._thread.start()
        self._set(wish)

    def drop(self) -> None:
        """Drop the wish: no copy is wanted any more. One that is being made may still come."""
        self._set(None)

    def put_back(self) -> None:
        """Note that the state is that of the newest checkpoint. Only before the command starts: it may end at once."""
        self.stored = self.look().survey

    def rest(self) -> None:
        """Drop the wish, and return when no copy is being made."""
        self.drop()
        with self._at_work:
            self.trouble = None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def look(self) -> Look:
        began_s = time.monotonic()
        survey = self._state.survey()
        return Look(survey, time.monotonic() - began_s)

    def _set(self, wish: Wish | None) -> None:
        with self._changed:
            if self._wish != wish:
                self._wish = wish
                self._changed.notify()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        stand_behind()
        while (wish := self._next()) is not None:
            if wish.is_last:
                self._serve_last(wish)
            else:
                self._serve_one(wish)

    def _next(self) -> Wish | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wish is not None)
            return None if self._closed else self._wish

    def _serve_one(self, wish: Wish) -> None:
        scale = self._context.clock.scale
        first, since_s = self.look(), time.monotonic()
        while self._pause(wish, pause_s(first, scale)):
            now = self.look()
            changed = now.survey.first_change(first.survey)
            if changed is None and time.monotonic() - since_s < rest_s(first, scale):
                continue
            with self._at_work:
                if self._wish == wish and (state := self._copied(first, now)) is not None:
                    self._answer(wish, state)
                    return
            first, since_s = now, time.monotonic()

    def _serve_last(self, wish: Wish) -> None:
        """Copy the state of an ended command, which is at rest unless a process is left."""
        until_s, look = time.monotonic() + LAST_WITHIN_S, self.look()
        with self._at_work:
            state = self._copied(look, look)
        while state is None and self.trouble is not None and time.monotonic() < until_s:
            if not self._pause(wish, rest_s(look, self._context.clock.scale)):
                return
            before, look = look, self.look()
            with self._at_work:
                state = self._copied(before, look)
        self._answer(wish, state)

    def _is_new(self, survey: Survey) -> bool:
        """
        Return True if a survey differs from that of the newest checkpoint; without one, if it is more than empty
        folders.
        """
        if self.stored is None:
            return bool(survey.files or survey.links)
        return survey.first_change(self.stored) is not None

    def _copied(self, before: Look, now: Look) -> Frozen | None:
        """
        Return a copy; None if nothing is new, or the state is not at rest. The main loop reads `trouble` at any moment,
        so that is set once, and at the end.
        """
        state, trouble = None, None
        try:
            if self._is_new(now.survey):
                state = self._copy(before, now)
        except NotAtRest as change:
            trouble = str(change)
        except OSError as error:
            trouble = f"{error.filename or 'it'} cannot be copied: {error.strerror}"
        self.trouble = trouble
        return state

    def _copy(self, before: Look, now: Look) -> Frozen:
        writer = writer_of(state_files.by_inode(self._work, now.survey.files))
        if (reason := why_not_at_rest(before, now, writer)) is not None:
            raise NotAtRest(reason)
        known = {path: known.version for path, known in self._files.known.items()}
        folder = self._context.assignment.folder
        return Freezing(self._work, folder, lambda: self.look().survey, known).freeze(now.survey)

    def _answer(self, wish: Wish, state: Frozen | None) -> None:
        now, now_s = self._context.clock.now(), self._context.clock.monotonic()
        with self._changed:
            if self._wish == wish:
                self._wish = None
        self._context.inbox.put(StateFrozen(wish.incarnation, state, now, now_s, wish.is_last))

    def _pause(self, wish: Wish, seconds: float) -> bool:
        """Return True if the wish still holds after `seconds` of system time."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed or self._wish != wish, seconds)
