"""
The Python environment of a run on one instance, into which the job's `setup` command installs packages.

The environment is a virtual environment on top of another Python: the agent's or, in a container, the image's. It can
import all packages of that Python, such as torch. `pip install` changes only the environment, never that Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from spotrun.agent.machine import layer
from spotrun.spec.model import RunSpec

FOLDER = "env"
TORCH_VARIABLE = "SPOTRUN_INSTALLS_TORCH"
"""Variable that the start script sets if the machine image has no suitable PyTorch."""
_OF_PACKAGES = (".dist-info", ".egg-info")
_VECTORS = ("avx", "amx", "sse", "fma", "bmi", "sve", "asimd")
"""Prefixes of processor features. Code that was compiled for one machine may depend on these features."""


def make(instance_dir: Path) -> None:
    """Make the environment on top of the agent's Python. If the environment exists, replace it."""
    layer.make(instance_dir / FOLDER)


def exists(instance_dir: Path) -> bool:
    """
    Return True if the run has an environment on this instance. The function does not follow the link to the
    environment's Python, because the link may lead to a file that exists only inside the container.
    """
    return os.path.lexists(instance_dir / FOLDER / "bin" / "python")


def python(instance_dir: Path, beneath: str = sys.executable) -> str:
    """
    Return the Python interpreter for a script on this instance: the environment's, or `beneath` if there is no
    environment.
    """
    return str(instance_dir / FOLDER / "bin" / "python") if exists(instance_dir) else beneath


def lacks_torch() -> bool:
    """Return True if PyTorch has to be installed into a run's environment."""
    return TORCH_VARIABLE in os.environ


def torch_command() -> str:
    """
    Return the command that installs PyTorch with pinned digests, and then checks that all packages that a training
    needs are installed.
    """
    pip = "pip --disable-pip-version-check --no-input --no-cache-dir install --quiet --retries 10"
    locks = " ".join(f"--requirement {shlex.quote(str(lock))}" for lock in _torch_locks())
    return f"{pip} --require-hashes --no-deps --only-binary :all: {locks} && {pip} --no-index 'spotrun[lightning]'"


def _torch_locks() -> list[Traversable]:
    return [files("spotrun.boot") / name for name in ("torch.txt", "cuda.txt")]


def variables(instance_dir: Path) -> Mapping[str, str]:
    """Return the variables, other than PATH, that an activated environment sets; none if the run has no environment."""
    return {"VIRTUAL_ENV": str(instance_dir / FOLDER)} if exists(instance_dir) else {}


def relocate(instance_dir: Path, made_in: str) -> None:
    """
    Adapt an environment that was made in another instance's folder, `made_in`. Its scripts and editable installs
    contain paths of that folder; replace them with paths of this instance's folder.
    """
    folder = instance_dir / FOLDER
    if made_in == str(instance_dir):
        return
    packages = "lib/python3.*/site-packages"  # the Python may be a container's
    for path in (
        *(folder / "bin").iterdir(),
        *folder.glob(f"{packages}/*.pth"),
        *folder.glob(f"{packages}/__editable__*.py"),
    ):
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if made_in.encode() in data and b"\0" not in data:
            path.write_bytes(data.replace(made_in.encode(), str(instance_dir).encode()))


def key_of(spec: RunSpec, workdir_sha256: str, accelerators: str) -> str:
    """
    Return the key under which the result of the job's `setup` on this instance is cached. The key is a hash of all
    inputs of the `setup` command: two instances with equal keys get the same result.

    The inputs are the command, the work folder with every file that the command may read, the command's variables, and
    the platform: Python, its packages (with the machine image's torch, or the torch that spotrun installs), the
    accelerator, and the processor's instructions. In a container, the image's digest replaces Python and its packages.
    """
    return _hash(
        {
            "setup": spec.setup,
            **(_of_this_python() if spec.image is None else {"image": spec.image.pinned}),
            "workdir": workdir_sha256,
            "envs": dict(spec.envs),
            "machine": [platform.system(), platform.machine(), *platform.libc_ver(), accelerators],
            "instructions": _instructions(),
        }
    )


def _of_this_python() -> dict[str, Any]:
    return {
        **({"torch": [lock.read_text() for lock in _torch_locks()]} if lacks_torch() else {}),
        "python": [sys.implementation.cache_tag, platform.python_version(), sys.base_prefix],
        "packages": _packages(),
    }


def _hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _packages() -> list[str]:
    """
    Return the installed packages with their versions. They are read from the names of the metadata folders, because
    reading the metadata takes a second on a cold disk.
    """
    folders = [Path(path) for path in sys.path if os.path.isdir(path)]
    return sorted({each.name for folder in folders for each in folder.iterdir() if each.suffix in _OF_PACKAGES})


def _instructions() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return sorted(flag for flag in flags if flag.startswith(_VECTORS))
