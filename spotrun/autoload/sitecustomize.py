"""
Seeds programs and installs spotrun's hooks when the user's own Python starts on an instance.

Python imports this file before the program's first line, because the agent puts the file's folder first in PYTHONPATH.

- If SPOTRUN_SEED is set, the random number generators of `random`, `numpy.random` and `torch` are seeded when the
  program imports these modules. So a program that sets no seed draws the same numbers in each attempt. A seed that the
  program sets itself takes effect later, and overrides this one.
- If SPOTRUN_AGENT is set, `import spotrun` imports the agent's spotrun package, even if the user's Python has none
  installed. Lightning finds the entry points of the agent's package, too. When a program imports a module in INSTALLS
  (training frameworks, and torch.distributed, see own_address.py), spotrun's function for that module is called.

At the end, this file runs the `sitecustomize` that Python would otherwise have imported.

The user's Python may be any version from 3.7 on, and does not have the agent's packages. So this file imports only a
few modules of the standard library. If something in this file fails, the file prints one line, and the program
continues as it would without the file.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

MYPY = False
if MYPY:  # importing these would take a third of the time of this whole file
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
SPAWNED = "--multiprocessing-fork"
"""
Argument of the processes that `multiprocessing` spawns. These processes are not seeded: a seed is computed from the
process's arguments, which are the same for all of them, so all would draw the same numbers.
"""
OLDEST = (3, 11)
"""The oldest Python that spotrun itself runs on."""
INSTALLS = {
    "accelerate.accelerator": "spotrun.loop.entry:watch_accelerate",
    "hydra.core.utils": "spotrun.hydra.entry:install",
    "lightning.fabric.fabric": "spotrun.loop.entry:watch_fabric",
    "lightning.pytorch.trainer.trainer": "spotrun.training.data.kept_iterators:install",
    "lightning_fabric.fabric": "spotrun.loop.entry:watch_fabric",
    "pytorch_lightning.trainer.trainer": "spotrun.training.data.kept_iterators:install",
    "torch.distributed": "spotrun.autoload.own_address:install",
    "transformers.trainer": "spotrun.transformers.entry:install",
}
"""
For each module, the function to call (`module:function`) when a program imports the module. The functions have to
tolerate repeated calls.
"""
SAID = {
    "hydra.core.utils": "Hydra's ${now:…} is the time of the run's first start, so that folders keep their names",
    "transformers.trainer": "a training by a Trainer of transformers is saved and resumed",
}
"""
For each module, the message to print when a program imports it. The other modules in INSTALLS have no message, because
a program may import them and not train with them.
"""
FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning", "transformers.trainer")
"""Modules whose import prints a message if this Python is too old for spotrun."""
ENTRY_POINTS = """
[pytorch_lightning.callbacks_factory]
spotrun = spotrun.lightning.factory:for_pytorch_lightning
[lightning.pytorch.callbacks_factory]
spotrun = spotrun.lightning.factory:for_lightning
"""
"""The same entry points as in pyproject.toml."""


def begin() -> None:
    acts: dict[str, Callable[[Any], None]] = {}
    base = os.environ.get("SPOTRUN_SEED")
    if base and SPAWNED not in sys.argv:
        acts.update(seeding(Process(base, program())))
    if os.environ.get("SPOTRUN_AGENT"):
        acts.update(loading())
    if not acts:
        return
    late = os.environ.get("SPOTRUN_LATE_VARIABLES")
    if late:
        from spotrun.autoload import late_variables

        late_variables.hold(late)
    for name, act in acts.items():
        if name in sys.modules:  # a .pth file has already imported the module
            act(sys.modules[name])
    sys.meta_path.insert(0, ActsOnImport(acts))


# --- seeds ------------------------------------------------------------------------------------------------------------


def program() -> Sequence[str]:
    """
    Return the program and its arguments, without the path of the instance's folder, which differs on each instance.

    The seed of the random number generators is computed from the result. So different programs of a run draw different
    random numbers, but all ranks of one program draw the same ones.
    """
    words = list(getattr(sys, "orig_argv", sys.argv))
    first = sys.argv[0] if sys.argv else ""
    words = words[words.index(first) :] if first in words else sys.argv
    if os.path.isfile(first):
        words = [os.path.abspath(first), *words[1:]]
    instance = os.environ.get("SPOTRUN_INSTANCE_DIR")
    return [word.replace(instance, "") for word in words] if instance else words


class Process:
    """
    Computes a seed for this process that is the same in each attempt. The seed depends on the program and, in a forked
    process, on how many processes the parent had forked by then.
    """

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
        """
        Return a seed of 32 bits, as numpy requires. (hashlib is not used, because loading OpenSSL takes 10 ms in each
        Python process.)
        """
        from binascii import crc32

        return crc32(repr(self._parts).encode("utf-8", "surrogateescape"))


def seed_random(module: Any, here: Process) -> None:
    if not hasattr(module, "SystemRandom"):
        return  # the module is the program's own file of this name
    module.seed(here.seed())
    # `random` itself registers a function that reseeds it in each forked process. The function below is registered
    # later and thus called later, so its seed is the one that counts.
    os.register_at_fork(after_in_child=lambda: module.seed(here.seed()))


def seed_numpy(module: Any, here: Process) -> None:
    """Seed numpy, but not in forked processes. As without spotrun, these inherit the state of their parent."""
    module.seed(here.seed())


def seed_torch(module: Any, here: Process) -> None:
    """
    Seed torch, but not in forked processes. torch's own data loading workers seed `random`, numpy and torch themselves.
    """
    module.manual_seed(here.seed())


SEEDED = {"random": seed_random, "numpy.random": seed_numpy, "torch": seed_torch}


def seeding(here: Process) -> Mapping[str, Callable[[Any], None]]:
    def act(seed: Callable[[Any, Process], None]) -> Callable[[Any], None]:
        return lambda module: or_step_aside("random generators are not seeded", seed, module, here)

    return {name: act(seed) for name, seed in SEEDED.items()}


# --- hooks into frameworks --------------------------------------------------------------------------------------------


def loading() -> Mapping[str, Callable[[Any], None]]:
    if sys.version_info < OLDEST:
        return dict.fromkeys(FRAMEWORKS, say_too_old)
    sys.meta_path.insert(0, OurPackage())

    def act(name: str, function: str) -> Callable[[Any], None]:
        return lambda module: or_step_aside(f"{name} is used without spotrun's hooks", install, module, function)

    return {name: act(name, function) for name, function in INSTALLS.items()}


def say_too_old(module: Any) -> None:
    here, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
    say(f"no checkpoint of {module.__name__}: this is Python {here}, and spotrun needs {oldest} or later")


def install(module: Any, function: str) -> None:
    from importlib import import_module

    place, _, name = function.partition(":")
    getattr(import_module(place), name)(module)
    if module.__name__ in SAID and os.environ.get("RANK", "0") == os.environ.get("LOCAL_RANK", "0") == "0":
        say(SAID[module.__name__])


class OurPackage:
    """
    A finder for `sys.meta_path`. It finds the spotrun package that contains this file, and the package's entry points.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "spotrun":
            return None
        from importlib.util import spec_from_file_location

        start = os.path.join(PACKAGE, "__init__.py")
        return spec_from_file_location(name, start, submodule_search_locations=[PACKAGE])

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """
        Yield spotrun's distribution if the caller searches all folders from which Python imports. If the caller names
        the folders to search (for example, to list the packages of one folder), yield nothing.
        """
        if "path" not in vars(context) and context.name in (None, "spotrun"):
            yield our_distribution()

    def invalidate_caches(self) -> None:
        pass


def our_distribution() -> Any:
    from importlib.metadata import Distribution

    from spotrun.version import __version__

    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: spotrun\nVersion: {__version__}\n",
        "entry_points.txt": ENTRY_POINTS,
    }

    class OurDistribution(Distribution):
        def read_text(self, filename: str) -> Any:
            return texts.get(filename)

        def locate_file(self, path: Any) -> Any:
            return os.path.join(os.path.dirname(PACKAGE), path)

    return OurDistribution()


# --- actions on import ------------------------------------------------------------------------------------------------


class ActsOnImport:
    """
    A finder for `sys.meta_path` that calls a function after the import of certain modules. `acts` maps the name of each
    of these modules to its function, which is called with the module. Other finders still find the modules.
    """

    def __init__(self, acts: Mapping[str, Callable[[Any], None]]) -> None:
        self._acts = acts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._acts:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                or_step_aside(f"{name} is used without spotrun's hooks", self._watch, spec)
                return spec
        return None

    def _watch(self, spec: Any) -> None:
        loader = spec.loader
        if isinstance(loader, type):
            raise TypeError(f"{spec.name} has a loader that is a class")  # so the modules of this kind share one loader
        original = loader.exec_module
        if getattr(original, "acts_on", None) == spec.name:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != spec.name:
                original(module)  # the loader of an archive loads many modules
                return
            loader.__dict__.pop("exec_module", None)
            original(module)
            self._acts[spec.name](module)

        exec_module.acts_on = spec.name  # type: ignore[attr-defined]
        loader.exec_module = exec_module

    def invalidate_caches(self) -> None:
        pass


def or_step_aside(otherwise: str, work: Callable[..., None], *arguments: object) -> None:
    try:
        work(*arguments)
    except Exception as error:  # noqa: BLE001
        say(f"{otherwise}: {type(error).__name__}: {error}")


def say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"spotrun: {text}\n")


def run_the_hidden_one() -> None:
    """
    Run the `sitecustomize` that Python would have found if this file did not hide it. Errors in it are not caught here,
    so Python reports them as it would without this file.
    """
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if os.path.abspath(folder) != HERE])
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    hidden = module_from_spec(spec)
    sys.modules["sitecustomize"] = hidden
    spec.loader.exec_module(hidden)


if __name__ == "sitecustomize":
    or_step_aside("no random generator is seeded, and no training is checkpointed", begin)
    run_the_hidden_one()
