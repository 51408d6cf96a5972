"""Compares the files that two rehearsals have left in their work folders."""

from __future__ import annotations

from collections.abc import Iterator

from spotrun.exactness import folders, scope
from spotrun.exactness.difference import Difference, DifferenceKind, difference
from spotrun.exactness.same_everywhere import Clean
from spotrun.exactness.scope import Compared, NotCompared
from spotrun.verify.rehearsal import Rehearsed


class LeftFiles:
    """
    The files of the two work folders, as the last instances have left them. Files that are `varying` differ without any
    interruption, for the reason `why`.
    """

    def __init__(
        self,
        straight: Rehearsed,
        interrupted: Rehearsed,
        varying: frozenset[str],
        clean: Clean,
        why: str = scope.VARIES,
    ) -> None:
        self._folders = straight.work, interrupted.work
        self._refused = straight.refused | interrupted.refused
        self._clean = clean
        self._why = why
        names = folders.names_of(straight.work.paths | interrupted.work.paths)
        self._trackers = {name: tracker for name in names if (tracker := folders.tracker_of(name)) is not None}
        names -= self._trackers.keys() | self._refused.keys()
        # A logger may have had a line in its buffer when the files were read: files that are the same in the end are
        # compared.
        self.varying = frozenset(found.path for found in folders.differences(*self._folders, names & varying, clean))
        self.names = names - self.varying

    def differences(self) -> Iterator[Difference]:
        for found in folders.differences(*self._folders, self.names, self._clean):
            where = found.where or None
            yield difference(DifferenceKind.FILES, found.straight, found.interrupted, name=found.path, where=where)

    def compared(self) -> list[Compared]:
        return [Compared("files", len(self.names))] if self.names else []

    def not_compared(self) -> list[NotCompared]:
        why = {name: f"{tracker} files name each run" for name, tracker in self._trackers.items()}
        why |= dict.fromkeys(self.varying, self._why) | self._refused
        return [NotCompared(f"file {name}", reason) for name, reason in sorted(why.items())]
