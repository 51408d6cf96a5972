"""
Finds late parts: model parts that only a batch makes or removes. A process that resumes does not repeat that batch.

A resume reruns the script's start hooks, and can make a missing part by copying a part that is built alike. Other late
parts it cannot make. So a training is refused as soon as its model has such a part.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spotrun.training.weights import class_of, kinds_of, named, without_copies


class LateParts:
    """
    Late parts of a model. At each epoch, call `epoch_begins` before the start hooks, and `batch_begins` after them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kinds: dict[str, str] = {}
        """Kinds of the parts that a process that resumes makes too."""
        self._before: dict[str, str] | None = None
        self._judges = False

    def epoch_begins(self) -> None:
        self._before = kinds_of(self._module)

    def batch_begins(self) -> None:
        """Compare the model's parts, at the first batch of an epoch; do nothing at other batches."""
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
        """
        Return, in words, the parts that keep a resume from making the model `modules` (kinds by name); "" if there are
        none.
        """
        if not self._judges:
            return ""
        known = self._kinds
        if new := without_copies(modules, known):
            return f"{named(new)}, which is new"
        if gone := [name for name in known if name not in modules]:
            return f"{named(gone)}, which is gone"
        if others := [name for name in known if class_of(known[name]) != class_of(modules[name])]:
            return f"{named(others)}, which is a different module than before"
        self._kinds |= modules
        return ""
