"""
The two rules that decide which files of the work folder belong to a checkpoint. `TrainingFiles` is for a script that
reports its steps. `StateFiles` is for a command whose state folders the job names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from spotrun.agent.agent_context import AgentContext
from spotrun.checkpoint.chosen_files import all_but
from spotrun.folder import state_files, work_files
from spotrun.folder.state_files import StateAt
from spotrun.folder.work_files import Stamp, Survey
from spotrun.spec.patterns import chooser


class TrainingFiles:
    """
    All files that a script has written into the work folder, except the files that the job excludes, and those for
    which `stays` returns True. If one of these files cannot be stored, the checkpoint is made without it, and a restore
    leaves that file as it is.
    """

    WHAT = "the checkpoint's files"
    IS_WHOLE = False

    def __init__(self, context: AgentContext, stays: Callable[[str], bool] = lambda _: False) -> None:
        self._assignment = context.assignment
        chosen = all_but(context.spec.checkpoint.files.exclude)
        self._chosen = lambda path: chosen(path) and not stays(path)

    @cached_property
    def before(self) -> Mapping[str, Stamp]:
        """The files of the work folder before the script began."""
        return work_files.remembered(self._assignment.files_before)

    def survey(self) -> Survey:
        return work_files.survey(self._assignment.work, self.before, self._chosen)


class StateFiles:
    """
    All files, links and folders at the paths where the job's command keeps its state, with their permissions. They are
    stored completely or not at all. A restore removes everything else at these paths.
    """

    WHAT = "the command's state"
    IS_WHOLE = True

    def __init__(self, context: AgentContext) -> None:
        train = context.spec.train
        self._work = context.assignment.work
        self._at = StateAt(train.state_paths, chooser(train.no_state))
        self.covers = self._at.covers
        self.before: Mapping[str, Stamp] = {}

    def survey(self) -> Survey:
        return state_files.survey(self._work, self._at)
