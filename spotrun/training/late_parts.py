"""
Finds late parts: parts of a model that the script adds or removes during a batch instead of in its setup or a start
hook.

A resume runs the setup and the start hooks again, but not the batches before the snapshot. So a part that was added
during a batch is missing after a resume. spotrun can restore it only by copying another part of the model with the same
structure. If there is no such part, spotrun refuses to continue as soon as the late part appears.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spotrun.training.weights import class_of, kinds_of, named, without_copies


class LateParts:
    """
    Late parts of a model. In each epoch, call `epoch_begins` before the script's start hooks, and `batch_begins` after
    them. A part that appears between the two calls is not late if a resume `repeats` the beginning of every epoch. A
    loop of the script's own repeats only that of the epoch in which it resumes.
    """

    def __init__(self, module: nn.Module, *, repeats: bool) -> None:
        self._module = module
        self._repeats = repeats
        self._made_in_epoch: list[str] = []
        self._kinds: dict[str, str] = {}
        """The kind of each part that a resumed process also makes by itself, by the part's name."""
        self._before: dict[str, str] | None = None
        self._judges = False

    def epoch_begins(self) -> None:
        self._before = kinds_of(self._module)

    def batch_begins(self) -> None:
        """At an epoch's first batch, compare the model's parts with those at its beginning. Later, do nothing."""
        if self._before is None:
            return
        before, self._before = self._before, None
        now = kinds_of(self._module)
        if not self._repeats:
            self._made_in_epoch += now.keys() - before.keys()
        if not self._judges:
            self._kinds, self._judges = now, True
            return
        self._kinds |= {name: kind for name, kind in now.items() if before.get(name) != kind}
        for name in before.keys() - now.keys():
            self._kinds.pop(name, None)

    def misfit(self, modules: Mapping[str, str]) -> str:
        """
        Describe the parts of the model that a resume could not restore; "" if there are none. These are late parts
        without another part of the same structure, those that a loop of the script's own makes at an epoch's beginning,
        and parts that a batch has removed or replaced.

        `modules` maps the name of each current part of the model to the part's kind.
        """
        if not self._judges:
            return ""
        known = self._kinds
        if new := [name for name in self._made_in_epoch if name in modules]:
            return f"{named(sorted(new))}, which is new"
        if new := without_copies(modules, known):
            return f"{named(new)}, which is new"
        if gone := [name for name in known if name not in modules]:
            return f"{named(gone)}, which is gone"
        if others := [name for name in known if class_of(known[name]) != class_of(modules[name])]:
            return f"{named(others)}, which is a different module than before"
        self._kinds |= modules
        return ""
