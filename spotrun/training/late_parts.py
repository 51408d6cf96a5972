"""
Finds parts of the model that only a batch makes, or throws away: no process that resumes does that again.

A resume repeats what the script's hooks of a beginning do to the model, and can make a part that is built like another
one as its copy. It would refuse any other part, so the training is refused as soon as it has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spotrun.training.weights import class_of, kinds_of, named, without_copies


class LateParts:
    """Late parts of one model. `epoch_begins` and `batch_begins` come before and after the hooks of each beginning."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kinds: dict[str, str] = {}
        """Kinds of the parts that a process that resumes has too."""
        self._before: dict[str, str] | None = None
        self._judges = False

    def epoch_begins(self) -> None:
        self._before = kinds_of(self._module)

    def batch_begins(self) -> None:
        """Compare at the first batch of an epoch; do nothing at others."""
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
        """Return which of `modules`, the kinds of all parts by name, no resume could make; "" if there is none."""
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
