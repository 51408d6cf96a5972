"""
Waits in a separate thread until a command's state is at rest, and then copies the state.

The thread works only while a copy is due. It never stops the command, and its surveys take little processor time.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.content_store import stand_behind
from spotrun.agent.files.quiescence import TimedSurvey, pause_s, rest_s, why_not_at_rest, writer_of
from spotrun.agent.files.rules import StateFiles
from spotrun.agent.inbox import StateFrozen
from spotrun.agent.snapshots.freeze import Freezing, NotAtRest
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.folder import state_files
from spotrun.folder.work_files import Survey

LAST_WITHIN_S = 60.0
"""
Maximum seconds of system time for the files of an ended command to come to rest. They may change if the command left a
process running.
"""


class CopyRequest(NamedTuple):
    """
    A request for a copy of the state of command `incarnation`. `is_last` is True if the command has ended; no later
    copy will follow.
    """

    incarnation: int
    is_last: bool


class StateWatch:
    """Watches the state in a separate thread until `close` is called. Only the main loop calls the public methods."""

    def __init__(self, context: AgentContext, files: CommitFiles) -> None:
        self._context = context
        self._files = files
        self._work = context.assignment.work
        self._state = StateFiles(context)
        self._wish: CopyRequest | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        """The reason why the state was not at rest at the last survey; None if it was at rest."""
        self.is_missing = False
        """True if nothing existed at the state's paths at the last survey."""
        self.stored: Survey | None = None
        """The survey of the state in the newest checkpoint."""

    def want(self, wish: CopyRequest) -> None:
        """
        Request a copy. When the copy is made, the thread puts a StateFrozen letter into the agent's inbox, unless the
        request was dropped before. Repeating a request before its letter has arrived has no effect.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="state", daemon=True)
            self._thread.start()
        self._set(wish)

    def drop(self) -> None:
        """Drop the request for a copy. If a copy is already in progress, its letter may still arrive."""
        self._set(None)

    def put_back(self) -> None:
        """
        Record that the work folder now has the state of the newest checkpoint, so that this state is not copied again.
        Call this before the command starts: as soon as it runs, it may change the files.
        """
        self.stored = self.look().survey

    def rest(self) -> None:
        """Drop the request, and wait until no copy is in progress."""
        self.drop()
        with self._at_work:
            self.trouble = None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def look(self) -> TimedSurvey:
        began_s = time.monotonic()
        survey = self._state.survey()
        return TimedSurvey(survey, time.monotonic() - began_s)

    def _set(self, wish: CopyRequest | None) -> None:
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

    def _next(self) -> CopyRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wish is not None)
            return None if self._closed else self._wish

    def _serve_one(self, wish: CopyRequest) -> None:
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

    def _serve_last(self, wish: CopyRequest) -> None:
        """
        Copy the state of a command that has ended. The state is at rest unless the command left a process running. If
        other members of a gang have state files too, copy the state even if it has not changed, because theirs may have
        changed.
        """
        until_s, look = time.monotonic() + LAST_WITHIN_S, self.look()
        if self._files.is_joined:
            self.stored = None
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
        Return True if the survey differs from the state in the newest checkpoint. If there is no checkpoint, return
        True if the survey has any files.
        """
        if self.stored is None:
            return bool(survey.files or survey.links)
        return survey.first_change(self.stored) is not None

    def _copied(self, before: TimedSurvey, now: TimedSurvey) -> Frozen | None:
        """
        Return a copy of the state; None if nothing has changed, or if the state is not at rest. If the state is not at
        rest, set `trouble` to the reason; otherwise set it to None. `trouble` is assigned only once, at the end,
        because the main loop may read it at any time.
        """
        state, trouble, seen = None, None, now.survey
        self.is_missing = not (seen.files or seen.folders or seen.links or seen.refused)
        try:
            if self._is_new(now.survey):
                state = self._copy(before, now)
        except NotAtRest as change:
            trouble = str(change)
        except OSError as error:
            trouble = f"{error.filename or 'a file'} cannot be copied: {error.strerror}"
        self.trouble = trouble
        return state

    def _copy(self, before: TimedSurvey, now: TimedSurvey) -> Frozen:
        writer = writer_of(state_files.by_inode(self._work, now.survey.files))
        if (reason := why_not_at_rest(before, now, writer)) is not None:
            raise NotAtRest(reason)
        folder, known = self._context.assignment.folder, self._files.need_no_copy
        return Freezing(self._work, folder, lambda: self.look().survey, known).freeze(now.survey)

    def _answer(self, wish: CopyRequest, state: Frozen | None) -> None:
        now, now_s = self._context.clock.now(), self._context.clock.monotonic()
        with self._changed:
            if self._wish == wish:
                self._wish = None
        self._context.inbox.put(StateFrozen(wish.incarnation, state, now, now_s, wish.is_last))

    def _pause(self, wish: CopyRequest, seconds: float) -> bool:
        """Wait up to `seconds` of system time. Return True if the request is still valid."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed or self._wish != wish, seconds)
