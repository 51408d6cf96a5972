"""
The container in which the job's `setup` and the trainers of this instance run, if the job names an image.

pull by digest, unless the image is on this machine -> start, with the instance's folder mounted -> find its Python

The agent itself runs outside the container. The processes that it starts in the container are its own children,
although they see the container's files instead of the machine's (spotrun/container/engine.py). So the agent can watch
and end these processes just as without a container. If the agent restarts, it makes a new container.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import spotrun
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.machine.inside import write_entrance
from spotrun.container.engine import (
    Container,
    Engine,
    EngineFailed,
    EngineSilent,
    find_engine,
    name_of,
    remove_remembered,
)
from spotrun.container.hosts import cloud_behind
from spotrun.container.logins import login_to
from spotrun.container.registry import NotForThisUser, RegistryUnavailable, find, this_machine
from spotrun.errors import SpotrunError
from spotrun.spec.image import Image
from spotrun.store.atomic_write import write_atomically

PAUSES_S = (2.0, 10.0, 30.0, 60.0)
"""Seconds of system time between two tries to pull an image."""
PACKAGE = Path(spotrun.__file__).parent
"""
The folder of the package. It is visible in the container at the same path, because trainers in the container import the
package (spotrun/autoload).
"""
TRACE = "SPOTRUN_TRACE"
"""
Variable that contains the path of a rehearsal's trace file. The training writes the trace
(spotrun/exactness/trace_file.py).
"""
FIND_PYTHON = "command -v python3 || command -v python"
PASSED_ON = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        *("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    }
)
OURS = "SPOTRUN_"
"""Prefix of spotrun's variables. They are passed into the container."""
IGNORED = ("/tmp", "/var/tmp", "/run", "/root/.cache", "/var/cache", "/dev", "/proc", "/sys")  # noqa: S108
"""
Folders of a container that are not searched for changes by the job's `setup`, because files there do not affect the
training.
"""


class ImageUnusable(SpotrunError):
    """The image cannot be pulled, or cannot be used for a training. The same would happen on any other instance."""


class NoImageNow(SpotrunError):
    """The image could not be pulled on this instance. Another instance may be able to pull it."""


def start(context: AgentContext) -> None:
    """
    Start a new container for the instance.

    Raises:
        ImageUnusable: the image cannot be pulled or used, on any instance.
        NoImageNow: the image could not be pulled on this instance.
    """
    image = context.spec.image
    assert image is not None
    assignment = context.assignment
    name = name_of(assignment.run_uid, assignment.instance_id)  # that of the container that an earlier agent made
    try:
        remove_remembered(assignment.container_mark, name)
        engine = _engine()
        _pull(context, engine, image)
        remember(assignment.container_mark, engine, name)
        context.container = engine.start(image, name, assignment.run_uid, mounts_of(assignment.folder))
        write_entrance(assignment.folder)
        if context.spec.train.run is None:
            python_in(context.container)  # otherwise each trainer would fail, on every instance
    except (NoImageNow, ImageUnusable):
        raise
    except SpotrunError as error:
        raise ImageUnusable(error.message, hint=error.hint) from error


def remember(file: Path, engine: Engine, name: str) -> None:
    """
    Write a container's name to `file`. This must be done before the container starts. If the container's owner dies,
    another process can then find and remove the container.
    """
    write_atomically(file, msgspec.json.encode({"engine": engine.name, "name": name}))


def mounts_of(folder: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """
    Return the folders to mount in the container, each with its mode ("rw" or "ro"). Only what a training needs is
    mounted. Each folder has the same path inside the container as outside.
    """
    mounts = {str(folder): "rw"}
    if trace := environment.get(TRACE):
        mounts[str(Path(trace).parent)] = "rw"
    if not PACKAGE.is_relative_to(folder):
        mounts[str(PACKAGE)] = "ro"
    return mounts


def variables(container: Container, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process in the container: the variables of the image, the run and the machine."""
    passed = {name: value for name, value in inherited.items() if name in PASSED_ON or name.startswith(OURS)}
    return {**container.variables, **passed}


def python_in(container: Container) -> str:
    """
    Return the path of the image's Python interpreter.

    Raises:
        ImageUnusable: the image has no Python.
    """
    done = _run(container, ["/bin/sh", "-c", FIND_PYTHON])
    if done.returncode != 0 or not done.stdout.strip():
        raise ImageUnusable("the image has no Python in its PATH", hint="name an image with Python 3.11 or a later one")
    return done.stdout.split("\n")[0]


def make_environment(container: Container, folder: Path) -> None:
    """
    Make the run's Python environment in `folder`, on top of the image's Python.

    Raises:
        ImageUnusable: the image's Python cannot make an environment.
    """
    done = _run(container, [python_in(container), "-I", str(PACKAGE / "agent" / "machine" / "layer.py"), str(folder)])
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ImageUnusable(
            f"the image's Python cannot make an environment: {reason}",
            hint="install Python's venv and pip in the image",
        )


class ContainerEffects:
    """
    Finds the files that `setup` changes in a container. `since` returns the paths that have changed since this object
    was made.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._changed = self._look()

    def since(self) -> list[str]:
        return sorted(self._look() - self._changed)

    def _look(self) -> set[str]:
        changed = self._container.engine.changed(self._container.name)
        return {path for path in changed if "__pycache__" not in path and not _is_ignored(path)}


def _is_ignored(path: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in IGNORED)


def _run(container: Container, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        container.within(command, Path("/")),
        env=container.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _engine() -> Engine:
    """Return this machine's container engine. Try several times, because the engine's daemon may still be starting."""
    for pause_s in PAUSES_S:
        try:
            return find_engine()
        except EngineSilent:
            time.sleep(pause_s)
    try:
        return find_engine()
    except EngineSilent as error:
        raise NoImageNow(error.message) from error


def _pull(context: AgentContext, engine: Engine, image: Image) -> None:
    if engine.has(image):
        return
    began_s = time.monotonic()
    for pause_s in (*PAUSES_S, None):
        try:
            _pull_once(context, engine, image)
        except (EngineFailed, RegistryUnavailable) as error:
            if pause_s is None:
                raise NoImageNow(f"{image} could not be pulled: {error.message}") from error
        except NotForThisUser as error:
            # Try again. The run's role was created only a moment ago, and the cloud may take a while until all of its
            # servers know the role's permissions.
            if pause_s is None:
                raise ImageUnusable(error.message, hint=error.hint) from error
        else:
            context.note(f"{engine.name} pulled {image} in {time.monotonic() - began_s:.1f} s")
            return
        time.sleep(pause_s)


def _pull_once(context: AgentContext, engine: Engine, image: Image) -> None:
    """
    Pull the image once. If that fails, ask the image's registry about the image. If the registry returns an error too,
    raise the registry's error, because its message is shorter than the engine's.
    """
    login = login_to(image, context.spec.envs, context.secrets.values, cloud_behind(image.host))
    try:
        engine.pull(image, login)
    except EngineFailed:
        with contextlib.suppress(RegistryUnavailable):
            find(image, login, this_machine())
        raise
