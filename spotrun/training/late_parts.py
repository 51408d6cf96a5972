"""
Parts of the model that only a batch makes, or throws away: no process that resumes does it again.

What the script's hooks of a beginning do to the model is done again, and a part that is built like another one can be
made as its copy. A training with any other would be refused at its resume, so it is refused as soon as that is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spotrun.training.weights import class_of, kinds_of, named, without_copies


class LateParts:
    """Of one model. `epoch_begins` and `batch_begins` come before and after the hooks of each beginning."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kinds: dict[str, str] = {}
        """Of the parts that a process that resumes has too."""
        self._before: dict[str, str] | None = None
        self._judges = False

    def epoch_begins(self) -> None:
        self._before = kinds_of(self._module)

    def batch_begins(self) -> None:
        """The first of an epoch. Others are of no interest."""
        if self._before is None:
            return
        before, self._before = self._before, None
        now = kinds_of(self._module)
        if not self._judges:
            self._kinds, self._judges = now, True
            return
        self._kinds |= {name: kind for name, kind in now.items() if before.get(name) != kind}
        for name in before.keys() - now.keys():
            self._kinds.pop(name, None)

    def misfit(self, modules: Mapping[str, str]) -> str:
        """What of the `modules`, the kinds of all parts by name, no resume could make so; "" if nothing is."""
        if not self._judges:
            return ""
        known = self._kinds
        if new := without_copies(modules, known):
            return f"{named(new)}, which is new"
        if gone := [name for name in known if name not in modules]:
            return f"{named(gone)}, which is gone"
        if others := [name for name in known if class_of(known[name]) != class_of(modules[name])]:
            return f"{named(others)}, which is another module than before"
        self._kinds |= modules
        return ""
