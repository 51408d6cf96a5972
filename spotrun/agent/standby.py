"""Waits as a standby until it is allowed to take over from an attempt that is about to end (protocol 13)."""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import Future, ThreadPoolExecutor

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.decisions import AgentAction, PredecessorLeaving, leaving_window_s, standby_verdict
from spotrun.agent.inbox import Exited, LedgerLost, LedgerRead, Letter, NoticeHeard, PowerOff, TrainerMessage
from spotrun.checkpoint.restore import Image, fetch
from spotrun.errors import CheckpointDamaged, StoreError
from spotrun.run.state import Commit, RunState

TURN_S = 0.1
"""Maximum seconds of system time between two rounds."""


class Prefetch:
    """
    Fetches the newest checkpoint in advance, so that a takeover does not have to wait for it. If the fetch fails, the
    checkpoint is fetched at the takeover.
    """

    def __init__(self, context: AgentContext) -> None:
        self._store = context.store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._fetching: tuple[Commit, Future[Image]] | None = None

    def follow(self, state: RunState) -> None:
        """Fetch the newest commit, unless a fetch is already in progress."""
        newest = state.latest_commit()
        if (
            newest is None
            or not newest.event.has_image
            or (self._fetching is not None and not self._fetching[1].done())
        ):
            return
        if self._fetching is None or self._fetching[0].number != newest.number:
            self._forget()
            self._fetching = newest, self._pool.submit(fetch, self._store, newest, retry_for_s=10.0)

    def take(self, state: RunState) -> Image | None:
        """
        Stop prefetching. If the newest commit has been fetched, return its image; if it is being fetched, wait for it.
        Return None if its fetch has not begun, or has failed.
        """
        newest, fetching = state.latest_commit(), self._fetching
        self._pool.shutdown(wait=False)
        if newest is None or fetching is None or fetching[0].number != newest.number:
            self._forget()
            return None
        with contextlib.suppress(CheckpointDamaged, StoreError):
            return fetching[1].result()
        return None

    def _forget(self) -> None:
        if self._fetching is not None:
            self._fetching[1].add_done_callback(_close)


def _close(future: Future[Image]) -> None:
    if future.exception() is None:
        future.result().close()


def stand_by(context: AgentContext, *, warming: bool) -> Image | None:
    """
    Wait until this agent is allowed to take over. Return the image of the newest checkpoint if it was fetched in
    advance; otherwise None.

    While it waits, the standby reports in its status when it is ready. If `warming` is True, a trainer was started in
    advance, and the standby is ready once this trainer has finished its imports. Otherwise the standby is ready
    immediately. If the old attempt has no deadline, the runner requests the handover only after this report.

    Raises:
        PowerOff: the standby is no longer needed, or the cloud has announced the end of its instance.
    """
    if not warming:
        context.status.change(phase="standby")
    prefetch = Prefetch(context)
    kept: list[Letter] = []
    began_s = context.clock.monotonic()
    leaving: PredecessorLeaving | None = None
    while True:
        state, now_s = context.recorder.state, context.clock.monotonic()
        window_s = leaving_window_s(state)
        if leaving is None and window_s is not None:
            leaving = PredecessorLeaving(now_s, window_s)
        verdict = standby_verdict(state, context.assignment.launch, leaving, began_s, now_s)
        if verdict is AgentAction.START:
            break
        if verdict is not AgentAction.STAND_BY:
            raise PowerOff("the standby is no longer needed")
        prefetch.follow(state)
        came = _wait(context)
        if any(isinstance(letter, TrainerMessage | Exited) for letter in came):
            context.status.change(phase="standby")
        kept += came
    for letter in kept:
        context.inbox.put(letter)
    return prefetch.take(context.recorder.state)


def _wait(context: AgentContext) -> list[Letter]:
    """
    Wait up to TURN_S for one letter (a report from another thread). Return the letter if it has to be kept for the
    attempt that this standby will start; otherwise return [].
    """
    try:
        letter = context.inbox.get(timeout=TURN_S)
    except queue.Empty:
        return []
    if isinstance(letter, LedgerRead):
        return []  # the next round reads the newest state from the recorder
    if isinstance(letter, LedgerLost):
        raise PowerOff(letter.reason)
    if isinstance(letter, NoticeHeard) and letter.kind == "termination":
        raise PowerOff("the cloud is taking this instance before the run needed it")
    return [letter]
