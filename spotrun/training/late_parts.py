"""
Finds model parts that only a batch makes or removes. A process that resumes does not repeat that batch.

A resume repeats the script's start hooks, and can copy a part that is built like another part. It would refuse a model
with any other late part, so the training is refused as soon as it has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spotrun.training.weights import class_of, kinds_of, named, without_copies


class LateParts:
    """Late parts of a model. Call `epoch_begins` before the start hooks of each epoch, `batch_begins` after them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kinds: dict[str, str] = {}
        """Kinds of the parts that a resuming process has too."""
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
        """Name parts that a resume could not make as in `modules` (kinds by name); "" if it could make all."""
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
