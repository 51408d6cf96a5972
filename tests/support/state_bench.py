"""
The state of a command without an agent: real programs, real looks, freezes and put-backs, and a ledger in this process.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.content_store import ContentStore
from spotrun.agent.files.restore import restore_state
from spotrun.agent.inbox import StateFrozen
from spotrun.agent.logs.output_redaction import OutputRedaction
from spotrun.agent.trainees.state_watch import CopyRequest, StateWatch
from spotrun.checkpoint.upload import UploadControl
from spotrun.run import events as ev
from spotrun.run.state import Commit
from spotrun.spec.model import TrainSpec
from spotrun.store.port import Store
from tests.support.histories import History
from tests.support.manual_clock import ManualClock

WITHIN_S = 60.0
"""A program and its first checkpoint take so long at most, on a machine that is busy."""


class StateRun:
    """A run whose command keeps its state in out/."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.history = History()
        self._instances = 0

    def instance(self) -> StateInstance:
        """The one before is gone."""
        if self.history.state.current is not None:
            self.history.ended(ev.Cause.INTERRUPTED)
        self.history.running()
        self._instances += 1
        return StateInstance(self, self.folder / f"instance-{self._instances}")


class StateInstance:
    """It begins with the state of the newest checkpoint."""

    def __init__(self, run: StateRun, folder: Path) -> None:
        self.run, self.folder, self.work = run, folder, folder / "work"
        (self.work / "out").mkdir(parents=True)
        self.notes: list[str] = []
        self.inbox: queue.SimpleQueue[StateFrozen] = queue.SimpleQueue()
        self.node: Any = SimpleNamespace(
            assignment=SimpleNamespace(folder=folder, work=self.work),
            clock=ManualClock(),
            store=run.store,
            note=self.notes.append,
            inbox=self.inbox,
            spec=SimpleNamespace(train=TrainSpec(run="true", state=("out/",))),
            console=SimpleNamespace(redaction=OutputRedaction(())),
            recorder=run.history,
        )
        pieces = ContentStore(self.node)
        pieces.begin(run.history.attempt)
        self.files = CommitFiles(self.node, pieces)
        self.files.begin(run.history.attempt, {})
        self.watch = StateWatch(self.node, self.files)
        self.program: subprocess.Popen[str] | None = None
        newest = run.history.state.latest_commit()
        if newest is not None:
            self.put_back(newest)

    def put_back(self, commit: Commit) -> None:
        attempt = self.run.history.attempt
        self.files.begin(attempt, *restore_state(self.node, commit, self.files.known, attempt))
        self.watch.stored = self.watch.look().survey

    def start(self, command: Sequence[str]) -> None:
        self.program = subprocess.Popen(
            [sys.executable, "-S", *command], cwd=self.work, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def kill(self) -> str:
        """What the program has said."""
        assert self.program is not None
        self.program.send_signal(signal.SIGKILL)
        return self.program.communicate()[0]

    def keep(self, seconds: float, at_least: int = 0) -> int:
        """Make checkpoints for so long, and until there are `at_least` so many. Returns how many."""
        until_s, made = time.monotonic() + seconds, 0
        give_up_at_s = until_s + WITHIN_S
        while (left_s := (until_s if made >= at_least else give_up_at_s) - time.monotonic()) > 0:
            self.watch.want(CopyRequest(0, is_last=False))
            try:
                frozen = self.inbox.get(timeout=left_s)
            except queue.Empty:
                break
            made += self.commit(frozen) is not None
        self.watch.drop()
        return made

    def last(self) -> ev.CommittedFiles | None:
        """The state that the program has left, as a checkpoint."""
        self.watch.want(CopyRequest(0, is_last=True))
        return self.commit(self.inbox.get())

    def commit(self, frozen: StateFrozen) -> ev.CommittedFiles | None:
        if frozen.state is None:
            return None
        with self.files.stored(frozen.state, UploadControl(), final=frozen.is_last) as stored:
            assert stored is not None
            self.run.history.commit(files=stored.name, size_bytes=0, step=0, final=frozen.is_last)
            self.files.committed(stored)
        self.watch.stored = frozen.state.survey
        frozen.state.close()
        self.files.sweep()
        return stored.name

    def close(self) -> None:
        if self.program is not None and self.program.poll() is None:
            self.kill()
        self.watch.rest()
        self.watch.close()
