"""Finds, saves and restores the training state that a script keeps in Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from types import FunctionType
from typing import Any

import torch

from spotrun.training.data.loader import is_indexed
from spotrun.training.framework import Framework, State
from spotrun.training.hooks import Stage
from spotrun.training.optimizer_parts import with_wrapped
from spotrun.training.python_state.baseline import LATE, Baseline
from spotrun.training.python_state.copies import Copies
from spotrun.training.python_state.encoding import Encoder, NewFunctions, UntrackedChange
from spotrun.training.python_state.fingerprints import PROBE_EVERY
from spotrun.training.python_state.graph import Before, Walk
from spotrun.training.python_state.inspection import CACHE
from spotrun.training.python_state.restoring import Restorer
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.surroundings import Surroundings
from spotrun.training.python_state.torch_hooks import HookRoots, TorchHooks
from spotrun.training.python_state.untracked import UntrackedObjects
from spotrun.training.python_state.values import name_of

DEPTH = 4
"""
Maximum depth to which library objects, such as a Subset or a Compose, are searched for the script's own datasets and
transforms.
"""
LONG = 64
"""
Maximum length of a list in a library object that is searched as a list of transforms. A longer list is considered data.
"""
NOTHING_LIKE_IT = "this process has no such object there"


class PythonState:
    """
    The state that the script keeps in Python objects.

    Call the methods in this order: `begins`, `moved`, `reads` for each loader, `starts`, and then `dump` at each
    snapshot. A loop of one's own names a loader only when it reads it, so `reads` may come after `starts`.

    On a resume, call `load` twice: first before the workers of the loaders start, because they copy the restored state;
    then again after `starts`, because the script's start hooks create new objects, which have to be restored too.
    """

    def __init__(self, framework: Framework, script: Script | None = None, work: str = "") -> None:
        """
        Prepare to save the state of `framework`'s training. File objects that are open for writing in the folder `work`
        are left out: checkpoints contain the folder's files, and the positions in them, separately.
        """
        self._framework = framework
        self._script = script or Script.of_this_process()
        self._work = work
        self._baseline = Baseline()
        self._data: dict[str, object] = {}
        self._collate: list[tuple[object, str]] = []
        self._loaders: list[object] = []
        self._stops: dict[int, object] = {}
        self._functions: NewFunctions = {}
        self._copies = Copies()
        self._dumps = 0
        self._started = False
        self._given: dict[str, object] = {}
        self._carried: set[int] = set()
        self._unseen = UntrackedObjects(())
        self._surroundings = Surroundings()
        self._hooks = TorchHooks(torch.nn.Module())
        self._hook_roots = HookRoots()
        self._news: list[UntrackedChange] = []

    def begins(self) -> None:
        """
        Record all objects that the script has made so far. Call this before any hook of the script can read restored
        weights.
        """
        self._baseline.add(self._walk(None))

    def moved(self) -> None:
        """
        Record the module's tensors again. Call this after the module has been moved to its device, because the move may
        have replaced its tensors.
        """
        self._baseline.settle(self._walk(None))

    def reads(self, loader: Any, stage: Stage, number: int) -> None:
        """
        Register the stage's loader with this number. The state of its stream or sampler is not part of the Python
        state: it is saved together with the position in the data.
        """
        names = ("sampler", "batch_sampler") if is_indexed(loader) else ("dataset",)
        itself = [loader] if hasattr(loader, "__dict__") else []  # a list is saved like any other list
        self._stops |= {id(one): one for one in (*itself, *(getattr(loader, name, None) for name in names))}
        self._stops.pop(id(None), None)
        self._carried = self._carried | self._stops.keys()  # a new set, because the one before is in use
        self._unseen.leave_out(self._carried)
        if stage == "train":
            path = f"data[{number}]"
            dataset = getattr(loader, "dataset", None) if is_indexed(loader) else None
            own = dict(_own_within(self._script, dataset, path))
            collate = [(loader.collate_fn, f"{path}.collate_fn")] if hasattr(loader, "collate_fn") else []
            self._data |= own
            self._collate += collate
            self._loaders += itself
            walk = Walk(self._script, self._stops, None)
            for where, part in own.items():
                walk.root(part, where)
            walk.hooks(collate)
            for where, one in self._of_libraries():
                walk.library_object(one, where)
            self._baseline.add(walk)

    def starts(self) -> None:
        """Record the state when the first epoch begins, after the start hooks have run."""
        walk = self._walk(self._baseline.before(probe=False))
        self._baseline.add_started(walk)
        others = (one for key, one in walk.others.items() if key not in walk.stops and not self._is_of_library(one[2]))
        self._carried = walk.nodes.keys() | walk.stops.keys()
        self._unseen = UntrackedObjects(others, self._carried, self._work)
        self._surroundings = Surroundings()
        self._hooks = TorchHooks(self._framework.module, self._framework.optimizers)
        self._given = self._given_now()
        self._started = True
        self._dumps = 0

    def dump(self) -> State:
        """
        Return the changes since `begins` was called. Tensors are not copied. Afterwards, `news` returns the changes
        that cannot be saved.
        """
        probe = self._dumps % PROBE_EVERY == 0
        self._dumps += 1
        walk = self._walk(self._baseline.before(probe=probe))
        encoder = Encoder(self._script, self._baseline, walk, self._copies, self._functions, probe=probe)
        image = encoder.image()
        if self._started:
            self._news += [*encoder.lost, *self._surroundings.changed(), *self._unseen.changed(probe=probe)]
            self._news += self._hooks.changed(probe=probe)
            self._news += self._come_and_gone()
        return image

    def _given_now(self) -> dict[str, object]:
        """Return the callbacks, loggers and other objects that the training has now, by name."""
        loggers = {f"loggers[{number}]": one for number, one in enumerate(self._framework.loggers)}
        return loggers | dict(self._framework.roots())

    def _come_and_gone(self) -> Iterator[UntrackedChange]:
        """
        Yield the callbacks and loggers that were added or removed since training began. A resumed process would start
        again with the original ones.
        """
        now = self._given_now()
        before, there = (set(map(id, each.values())) for each in (self._given, now))
        for path, one in now.items():
            if id(one) not in before:
                yield UntrackedChange(path, f"a {name_of(one)} that was added during training")
        for path, one in self._given.items():
            if id(one) not in there:
                yield UntrackedChange(path, f"a {name_of(one)} that was removed during training")

    def _is_of_library(self, value: object) -> bool:
        """
        Return True if `value` is the cache of a library's function, such as an imported function with `lru_cache`.
        """
        if type(value) is not CACHE:  # isinstance() would read `value.__class__`, which may raise for a lazy proxy
            return False
        function = getattr(value, "__wrapped__", None)
        return not (isinstance(function, FunctionType) and self._script.owns(function))

    def load(self, image: State, *, last: bool) -> None:
        """
        Restore `image`, which `dump` returned in an earlier process. A resume calls this twice; `last` is True in the
        second call. A saved value cannot be restored if this process has no object for it. After the second call,
        `news` returns these values.

        Raises:
            CheckpointDamaged: the image is malformed or of an unknown format.
        """
        parts = self._framework.module.named_modules(prefix="module") if last else ()
        restorer = Restorer(self._script, self._baseline, image, {f"{LATE}{path}": part for path, part in parts})
        restorer.load(self._baseline.plain_changes(self._walk(self._baseline.before(probe=False))) if last else ())
        self._baseline.ignore(restorer.new)
        if last:
            self._news += (
                UntrackedChange(path.removeprefix(LATE), NOTHING_LIKE_IT, saved=True) for path in restorer.lost
            )

    def generators(self) -> dict[str, Any]:
        """Return the script's own random number generators, by their paths."""
        return self._baseline.generators()

    def knows(self, value: object) -> bool:
        """
        Return True if snapshots can refer to `value` by its path, because it existed when training began.
        """
        return self._baseline.knows(value)

    def _walk(self, before: Before | None) -> Walk:
        framework, roots = self._framework, self._framework.roots()
        others: Sequence[Any] = [*with_wrapped(framework.optimizers), *framework.loggers, *framework.own_objects]
        rooted = set(map(id, roots.values()))  # a logger of the script's class is a root
        stops = {id(one): one for one in others if id(one) not in rooted}
        walk = Walk(self._script, self._stops | stops, before)
        walk.trained(framework.module, "module", framework.own_attributes)
        for path, root in chain(roots.items(), self._data.items()):
            walk.root(root, path)
        for path, one in self._of_libraries():
            walk.library_object(one, path)
        walk.modules()
        walk.hooks([*self._collate, *self._hook_roots.now(framework.module, framework.optimizers)])
        return walk

    def _of_libraries(self) -> Iterator[tuple[str, object]]:
        """Yield the objects of libraries to which scripts add attributes."""
        kinds = {"optimizers": self._framework.optimizers, "framework": self._framework.own_objects}
        for name, found in (*kinds.items(), ("loaders", self._loaders)):
            yield from ((f"{name}[{n}]", one) for n, one in enumerate(found) if not self._script.owns(type(one)))

    def news(self) -> list[UntrackedChange]:
        """
        Return the changes that a resume loses, because snapshots do not contain them or because they could not be
        restored. Return only changes that were found since the last call.
        """
        found, self._news = self._news, []
        return found


def _own_within(script: Script, value: Any, path: str, depth: int = DEPTH) -> Iterator[tuple[str, object]]:
    """
    Yield `value` if the script defines its class. Otherwise yield the instances of the script's classes inside it.
    """
    if script.owns(type(value)):
        yield path, value
    elif depth and isinstance(value, list | tuple):
        for number, part in enumerate(value if len(value) <= LONG else ()):
            yield from _own_within(script, part, f"{path}[{number}]", depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        for name, part in vars(value).items():
            yield from _own_within(script, part, f"{path}.{name}", depth - 1)
