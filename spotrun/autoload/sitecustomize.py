"""
Lets a program that seeds nothing draw the same numbers on each instance and in each attempt of its run.

Python imports this before the program's first line, as the agent puts this folder first in PYTHONPATH. The generators
of `random`, `numpy.random` and `torch` are seeded when the program imports them; what it seeds itself is later, and
wins. Nothing else happens, and nothing at all where SPOTRUN_SEED is not set. Then the `sitecustomize` that this one
hides is run, as if it were the only one.

The Python may be any from 3.7 on, with packages of its own: only the standard library is used, and little of it.
Whatever goes wrong here is said in a line, and the program goes on as it would without.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

MYPY = False
if MYPY:  # to import these would take a third of the time that all of this takes
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
SPAWNED = "--multiprocessing-fork"
"""
In the arguments of what `multiprocessing` spawns: several that look alike, and each has to have numbers of its own.
"""


def begin() -> None:
    base = os.environ.get("SPOTRUN_SEED")
    if not base or SPAWNED in sys.argv:
        return
    here = Process(base, program())
    for name in SEEDED:
        if name in sys.modules:  # a .pth file was earlier
            SEEDED[name](sys.modules[name], here)
    sys.meta_path.insert(0, SeedsWhatIsImported(here))


def program() -> Sequence[str]:
    """
    The program and its arguments: other programs of a run draw other numbers, and the ranks of one draw the same. The
    folder of the instance is left out, as another has another.
    """
    words = list(getattr(sys, "orig_argv", sys.argv))
    first = sys.argv[0] if sys.argv else ""
    words = words[words.index(first) :] if first in words else sys.argv
    if os.path.isfile(first):
        words = [os.path.abspath(first), *words[1:]]
    instance = os.environ.get("SPOTRUN_INSTANCE_DIR")
    return [word.replace(instance, "") for word in words] if instance else words


class Process:
    """This process, by its program and by which of its parent's forks it is: each has a seed of its own."""

    def __init__(self, base: str, program: Sequence[str]) -> None:
        self._parts: list[object] = [base, *program]
        self._forks = 0
        os.register_at_fork(before=self._fork_comes, after_in_child=self._is_forked)

    def _fork_comes(self) -> None:
        self._forks += 1

    def _is_forked(self) -> None:
        self._parts.append(self._forks)
        self._forks = 0

    def seed(self) -> int:
        """Of 32 bits, which is what numpy takes. hashlib would load OpenSSL into each Python, which takes 10 ms."""
        from binascii import crc32

        return crc32(repr(self._parts).encode("utf-8", "surrogateescape"))


def seed_random(module: Any, here: Process) -> None:
    if not hasattr(module, "SystemRandom"):
        return  # a file of the program has that name
    module.seed(here.seed())
    # Python seeds it from the operating system in each forked process, and has done so by then.
    os.register_at_fork(after_in_child=lambda: module.seed(here.seed()))


def seed_numpy(module: Any, here: Process) -> None:
    """A forked process goes on with its parent's, as it does without this."""
    module.seed(here.seed())


def seed_torch(module: Any, here: Process) -> None:
    """As numpy's. What loads data in workers of torch seeds all three in each."""
    module.manual_seed(here.seed())


SEEDED = {"random": seed_random, "numpy.random": seed_numpy, "torch": seed_torch}


class SeedsWhatIsImported:
    """Of `sys.meta_path`: finds nothing by itself, and seeds what the others find once it was imported."""

    def __init__(self, here: Process) -> None:
        self._here = here

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in SEEDED:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                or_step_aside(self._watch, spec)
                return spec
        return None

    def _watch(self, spec: Any) -> None:
        loader = spec.loader
        if isinstance(loader, type):
            raise TypeError(f"{spec.name} has a loader that is a class")  # of all modules of its kind
        original = loader.exec_module
        if getattr(original, "seeds", None) == spec.name:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != spec.name:
                original(module)  # the loader of an archive is that of many, and somebody may only have asked for this
                return
            loader.__dict__.pop("exec_module", None)
            original(module)
            or_step_aside(SEEDED[spec.name], module, self._here)

        exec_module.seeds = spec.name  # type: ignore[attr-defined]
        loader.exec_module = exec_module


def or_step_aside(work: Callable[..., None], *arguments: object) -> None:
    try:
        work(*arguments)
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"spotrun: generators are not seeded: {type(error).__name__}: {error}\n")


def run_the_hidden_one() -> None:
    """Its errors are its own: Python reports them as if it had found it."""
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if os.path.abspath(folder) != HERE])
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    hidden = module_from_spec(spec)
    sys.modules["sitecustomize"] = hidden
    spec.loader.exec_module(hidden)


if __name__ == "sitecustomize":
    or_step_aside(begin)
    run_the_hidden_one()
