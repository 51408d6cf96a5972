"""Saves the work folder's files with each snapshot of a fit() call, and restores them when the call resumes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spotrun.checkpoint.chosen_files import all_but
from spotrun.errors import SpotrunError
from spotrun.folder.work_files import remembered
from spotrun.trainer_link import WORK, Committed, FilesRule, FilesTorn, FilesWanted
from spotrun.training.ranks import Ranks
from spotrun.training.session import Agent, Session
from spotrun.training.work_folder.freezing import Freezer, Frozen
from spotrun.training.work_folder.open_files import Opened, OpenFiles, positions_of


class WorkFiles:
    """
    Saves and restores the work folder's files on one rank. A rank other than 0 handles only the files that it has open.
    If `rule` is None, checkpoints include no files.

    In a gang, checkpoints include only the files on the lead's machine. Lightning sends the path of rank 0's work
    folder to all ranks, so all paths in a checkpoint are paths on the lead. `of_checkpoints` is the path of the work
    folder on the lead, and `folder` its path on this machine.
    """

    def __init__(self, agent: Agent, ranks: Ranks, rule: FilesRule | None) -> None:
        self._agent = agent
        self._ranks = ranks
        self._rule = rule
        self._of_another_machine = bool(os.environ.get(WORK))
        self.of_checkpoints = "" if rule is None else os.path.realpath(rule.work)
        self.folder = os.path.realpath(os.environ[WORK]) if rule and self._of_another_machine else self.of_checkpoints
        self._open = None if rule is None else OpenFiles(self.folder)
        self._flushed: list[Opened] = []
        self._freezer: Freezer | None = None
        if rule is not None and isinstance(agent, Session):
            self._freezer = Freezer(self.folder, remembered(Path(rule.before)), all_but(rule.exclude))

    def positions(self) -> dict[str, int]:
        """Flush the files to which this process writes, and return the position in each, keyed by path."""
        self._flushed = [] if self._open is None else self._open.flush()
        return positions_of(self._flushed)

    def freeze(self, *, final: bool = False) -> Frozen | None:
        """
        Freeze the work folder at this boundary. First call `positions` on all ranks, because it flushes the files.
        Return None on ranks other than 0, and if checkpoints include no files (`rule` is None).
        """
        if self._freezer is None:
            return None
        self._hear(self._freezer)
        return self._freezer.freeze(self._flushed, final=final)

    def _hear(self, freezer: Freezer) -> None:
        assert isinstance(self._agent, Session)
        while (said := self._agent.said_of_files()) is not None:
            match said:
                case Committed(files=int(number)):
                    freezer.committed(number)
                case FilesTorn(paths=paths):
                    freezer.torn(paths)

    def send(self, frozen: Frozen) -> None:
        """Send the frozen folder to the agent, before the snapshot to which it belongs."""
        assert isinstance(self._agent, Session)
        frozen.send(self._agent.tell)

    def put_back(self, positions: Mapping[str, int]) -> None:
        """
        Wait until the agent has restored the checkpoint's files in the work folder. Then move each open file to the
        position that `positions` gives for its path. All ranks must call this together.

        Raises:
            SpotrunError: the folder could not be restored, or the agent is gone.
        """
        if self._rule is None or self._open is None or not self._rule.put_back:
            return
        mine = self._open.flush()
        everywhere = self._ranks.gather([file.path for file in mine])
        problem = None
        if isinstance(self._agent, Session):
            named = sorted({path for paths in everywhere for path in paths})
            problem = self._agent.want_files(FilesWanted(open=tuple(named)))
        problem = self._ranks.share(str, problem)
        if problem:
            raise SpotrunError(
                f"the checkpoint's files could not be restored into the work folder: {problem}",
                hint="the log names the file; is the instance's disk full?",
            )
        if not self._of_another_machine:
            self._open.move(positions)
        if self._freezer is not None:
            self._freezer.begin_with(self._open.flush())
