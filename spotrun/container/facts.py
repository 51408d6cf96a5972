"""Reads the settings of this machine's container engine. Pulls no image and starts no container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spotrun.container.engine import GPU, Engine, EngineFailed

CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The folders of files that define devices for containers."""
KIND = "nvidia.com/gpu"
HOOK = "nvidia-container-runtime-hook"
"""The program in nvidia-container-toolkit that `docker run --gpus` calls."""
INSTALL: Mapping[str, str] = {
    "docker": "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart docker",
    "podman": "install nvidia-container-toolkit, and run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
}


class EngineFacts(NamedTuple):
    """
    The settings of an engine. `rootless` is True if its containers belong to a user other than root. `gpus` is True if
    its containers can use the machine's GPUs, and None if the machine has none.
    """

    version: str
    rootless: bool
    gpus: bool | None


def facts_of(engine: Engine) -> EngineFacts:
    """
    Read the engine's settings.

    Raises:
        EngineFailed: the engine does not report them.
    """
    told = _info(engine)
    if engine.name == "docker":
        rootless = "name=rootless" in told.get("SecurityOptions", ())
        gpus = "nvidia" in told.get("Runtimes", {}) or shutil.which(HOOK) is not None
    else:
        rootless = bool(told.get("host", {}).get("security", {}).get("rootless"))
        gpus = any(KIND in path.read_text(errors="replace") for folder in CDI for path in _files(folder))
    return EngineFacts(engine.version().stdout.strip(), rootless, gpus if GPU.exists() else None)


def _info(engine: Engine) -> dict[str, Any]:
    done = engine.info()
    try:
        told = json.loads(done.stdout)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise EngineFailed(f"the output of {engine.name} info cannot be read: {done.stderr.strip()[-200:]}")
    return told


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.suffix in (".yaml", ".json")] if folder.is_dir() else []
