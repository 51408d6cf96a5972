"""
The Python environment of a run on one instance: a layer over the agent's own, which `setup` installs into.

It sees all that the agent's Python has, torch first of all, and adds to it; in a container, all that the image's has.
A `pip install` touches nothing outside of the instance's folder, this machine's own Python least of all.
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
"""Variable set by a start script whose image has no PyTorch that spotrun takes."""
_OF_PACKAGES = (".dist-info", ".egg-info")
_VECTORS = ("avx", "amx", "sse", "fma", "bmi", "sve", "asimd")
"""Prefixes of processor features for which setups compile, if they compile for the machine that they run on."""


def make(instance_dir: Path) -> None:
    """Make a new environment in place of any that was there, on top of the agent's own Python."""
    layer.make(instance_dir / FOLDER)


def exists(instance_dir: Path) -> bool:
    """
    Return True if the run has an environment. A link that leads nowhere on this machine leads to the Python of a
    container.
    """
    return os.path.lexists(instance_dir / FOLDER / "bin" / "python")


def python(instance_dir: Path, beneath: str = sys.executable) -> str:
    """Return the interpreter that runs a script on this instance, where `beneath` is the one without an environment."""
    return str(instance_dir / FOLDER / "bin" / "python") if exists(instance_dir) else beneath


def lacks_torch() -> bool:
    """Return True if PyTorch is to be installed into the environment of a run."""
    return TORCH_VARIABLE in os.environ


def torch_command() -> str:
    """
    Return the command that installs PyTorch by its digests, and then checks that a training has all that it needs.
    """
    pip = "pip --disable-pip-version-check --no-input --no-cache-dir install --quiet --retries 10"
    locks = " ".join(f"--requirement {shlex.quote(str(lock))}" for lock in _torch_locks())
    return f"{pip} --require-hashes --no-deps --only-binary :all: {locks} && {pip} --no-index 'spotrun[lightning]'"


def _torch_locks() -> list[Traversable]:
    return [files("spotrun.boot") / name for name in ("torch.txt", "cuda.txt")]


def variables(instance_dir: Path) -> Mapping[str, str]:
    """Return the variables besides PATH that an activated environment sets; none if the run has no environment."""
    return {"VIRTUAL_ENV": str(instance_dir / FOLDER)} if exists(instance_dir) else {}


def relocate(instance_dir: Path, made_in: str) -> None:
    """Let scripts and editable installs that were made in another folder find themselves in this one."""
    folder = instance_dir / FOLDER
    if made_in == str(instance_dir):
        return
    packages = "lib/python3.*/site-packages"  # of a container's Python, perhaps
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
    Return the name of what `setup` makes here: a hash of all its inputs.

    These are the command, the work folder with every file that the command may read, its variables, and what it builds
    on: Python, its packages (the image's torch among them, or the one that is installed where there is none), the
    accelerator and the instructions of the processor. In a container the digest of its image stands for what is in it.
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
    Return names with versions, as their folders have them: reading what is in those takes a second on a cold disk.
    """
    folders = [Path(path) for path in sys.path if os.path.isdir(path)]
    return sorted({each.name for folder in folders for each in folder.iterdir() if each.suffix in _OF_PACKAGES})


def _instructions() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return sorted(flag for flag in flags if flag.startswith(_VECTORS))
