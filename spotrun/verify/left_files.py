"""Compares the files that two trainings left in their work folders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from spotrun.exactness import folders
from spotrun.exactness.difference import Difference, DifferenceKind, difference
from spotrun.exactness.same_everywhere import Clean
from spotrun.exactness.scope import VARIES_AGAIN, ComparedCount, NotCompared
from spotrun.exactness.varying import Varying, unnumbered
from spotrun.verify.rehearsal import RehearsalResult

NAMED_MAX = 20
"""Maximum number of parts of one file that the result lists as not compared."""


class LeftFiles:
    """
    The files that the last instance of each training, `straight` and `interrupted`, left in its work folder.

    `again` is a second uninterrupted training, like `straight`. If a file, line or field differs between `straight` and
    `again`, it is not deterministic, and is not compared.
    """

    def __init__(
        self,
        straight: RehearsalResult,
        interrupted: RehearsalResult,
        clean: Clean,
        again: RehearsalResult | None = None,
    ) -> None:
        refused = straight.refused | interrupted.refused
        names = folders.names_of(straight.work.paths | interrupted.work.paths)
        trackers = {name: tracker for name in names if (tracker := folders.tracker_of(name)) is not None}
        names -= trackers.keys() | refused.keys()
        self._why = {name: f"{tracker} files contain the run's name" for name, tracker in trackers.items()} | refused
        self._varying: dict[str, Varying] = {}
        found = list(folders.differences(straight.work, interrupted.work, names, clean))
        if again is not None:
            found = self._steady(found, straight, interrupted, again, clean)
        self._found = found
        self.names = names - self._why.keys()

    def _steady(
        self,
        found: list[folders.FileDifference],
        straight: RehearsalResult,
        interrupted: RehearsalResult,
        again: RehearsalResult,
        clean: Clean,
    ) -> list[folders.FileDifference]:
        """
        Return those differences in `found` that an interruption has caused.

        If the two uninterrupted trainings, `straight` and `again`, differ at the same place, an interruption is not the
        cause. In that case, record the file, line or field as not deterministic.
        """
        two = [folders.names_of(each.work.paths) for each in (straight, again)]
        coming = {unnumbered(name) for name in two[0] ^ two[1]}
        differing = [each.path for each in found]
        for name in differing:
            if straight.work.has(name) and interrupted.work.has(name) and again.work.has(name):
                varying = Varying(straight.work.parts_of(name, clean), again.work.parts_of(name, clean))
                if varying.is_whole:
                    self._why[name] = VARIES_AGAIN
                elif varying:
                    self._varying[name] = varying
            elif unnumbered(name) in coming:
                self._why[name] = VARIES_AGAIN
        left = [name for name in differing if name not in self._why]
        return list(folders.differences(straight.work, interrupted.work, left, clean, self._varying))

    def differences(self) -> Iterator[Difference]:
        for found in self._found:
            where = found.where or None
            yield difference(DifferenceKind.FILES, found.straight, found.interrupted, name=found.path, where=where)

    @property
    def vary(self) -> bool:
        """True if the files of the two uninterrupted trainings differ."""
        return bool(self._varying) or VARIES_AGAIN in self._why.values()

    def compared(self) -> list[ComparedCount]:
        return [ComparedCount("files", len(self.names))] if self.names else []

    def not_compared(self) -> list[NotCompared]:
        whole = [NotCompared(f"file {name}", reason) for name, reason in sorted(self._why.items())]
        parts = (
            NotCompared(f"file {name}, {part}", VARIES_AGAIN)
            for name, varying in sorted(self._varying.items())
            for part in islice(varying.names(), NAMED_MAX)
        )
        return [*whole, *parts]
