"""
Runs containers on this machine with docker or podman.

A container serves only as a file system: the image's files, with folders of this machine mounted. The container's own
process does nothing; it waits until its input ends.

The process that started the container is called its owner. The owner runs commands in the container's file system
(`Container.within`), but as its own child processes. So signals, exit codes, memory and sockets work as for any other
child process.

    docker run --rm --interactive …  <── input ──  the owner

When the owner ends, for whatever reason, that input ends too. Then the container ends, and the engine removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from spotrun import proc
from spotrun.container.registry import Credentials
from spotrun.errors import NotInstalled, SpotrunError
from spotrun.proc import ProcessMark
from spotrun.spec.image import Image

NAMES = ("docker", "podman")
"""The engines, in the order in which `find_engine` tries them."""
LABEL = "spotrun.run"
MARK = "SPOTRUN_CONTAINER"
"""The environment variable with the container's name. The container's own process has it."""
HOLDS = 'echo "$$"; read -r _ || :'
"""
The shell command that runs as the container's only process at first. It prints its process id, then waits until its
input ends. It uses only builtins that every shell has.
"""
ANSWERS_WITHIN_S = 60.0
STARTS_WITHIN_S = 300.0
"""
Maximum seconds of system time for a start. This is long because an engine without an overlay file system copies the
whole image when it starts a container.
"""
PULLS_WITHIN_S = 3600.0
ENDS_WITHIN_S = 20.0
GPU = Path("/dev/nvidiactl")
"""A device file that exists if the Nvidia GPU driver is loaded."""
GPUS: Mapping[str, tuple[str, ...]] = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
"""Options that give a container all GPUs. Podman's: https://github.com/cncf-tags/container-device-interface."""
FILE = "container.json"
"""The file in an instance's folder that names its container."""
_PAUSE_S = 0.1


class EngineFailed(SpotrunError):
    """docker or podman failed to do what spotrun requested."""


class EngineSilent(NotInstalled):
    """docker or podman is installed but does not answer. If the machine is booting, the engine may answer later."""


class Engine(NamedTuple):
    """A container engine: `name` is docker or podman, and `path` is the path of its program."""

    name: str
    path: str

    # -- images --------------------------------------------------------------------------------------------------------

    def digest_of(self, image: Image) -> str:
        """Return the digest of this machine's copy of `image`; "" if this machine has no copy."""
        done = self._ask("image", "inspect", "--format", "{{json .RepoDigests}}", f"{image.name}:{image.tag}")
        if done.returncode != 0:
            return ""
        with contextlib.suppress(ValueError):
            for found in json.loads(done.stdout) or ():
                name, _, digest = found.rpartition("@")
                if name == image.name or f"docker.io/{name}" == image.name or f"docker.io/library/{name}" == image.name:
                    return str(digest)
        return ""

    def has(self, image: Image) -> bool:
        return self._ask("image", "inspect", "--format", "{{.Id}}", image.pinned).returncode == 0

    def pull(self, image: Image, credentials: Credentials | None) -> None:
        """
        Pull an image by its digest. Layers that this machine already has are not pulled again.

        Raises:
            EngineFailed: the pull failed; the message contains the last line of the engine's output.
        """
        insecure = ["--tls-verify=false"] if self.name == "podman" and image.is_local else []
        with _login(self.name, image, credentials) as (options, variables, descriptors):
            done = self._run(
                ["pull", "--quiet", *insecure, *options, image.pinned], PULLS_WITHIN_S, variables, descriptors
            )
        if done.returncode != 0:
            raise EngineFailed(f"{self.name} pull: {_last_line(done.stderr)}")

    # -- containers ----------------------------------------------------------------------------------------------------

    def start(self, image: Image, name: str, run_uid: str, mounts: Mapping[str, str]) -> Container:
        """
        Start a container with all GPUs and with this machine's network. `mounts` maps each folder's path to its mount
        options. The path is the same inside and outside the container.

        Raises:
            EngineFailed: the start failed; the message contains the last line of the engine's output.
        """
        self.remove(name)
        command = [self.path, *self.run_arguments(image, name, run_uid, mounts, gpus=GPU.exists())]
        said = os.memfd_create("spotrun-container")
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
            )
            pid = _first_line(process, STARTS_WITHIN_S)
            if not pid.isdigit():
                process.kill()
                process.wait()
                self.remove(name)
                reason = _last_line(os.pread(said, 1 << 16, 0).decode(errors="replace")) or "it printed no process id"
                raise EngineFailed(f"{self.name} run: {reason}", hint=_advice(self.name, reason))
        finally:
            os.close(said)
        return Container(self, name, process, int(pid))

    def run_arguments(
        self, image: Image, name: str, run_uid: str, mounts: Mapping[str, str], *, gpus: bool
    ) -> list[str]:
        """
        Return the engine's arguments for starting the container. A process has the same id inside and outside of the
        container. The container uses this machine's shared memory, because data loaders pass batches through shared
        memory, and a container's own shared memory would be too small. The image's default command does not run.
        """
        return [
            *("run", "--rm", "--interactive", "--pull", "never", "--name", name, "--label", f"{LABEL}={run_uid}"),
            *("--network", "host", "--pid", "host", "--ipc", "host", "--user", "0", "--security-opt", "label=disable"),
            *("--env", f"{MARK}={name}"),
            *(part for path, options in mounts.items() for part in ("--volume", f"{path}:{path}:{options}")),
            *(GPUS[self.name] if gpus else ()),
            *("--entrypoint", "/bin/sh", image.pinned, "-c", HOLDS),
        ]

    def changed(self, name: str) -> set[str]:
        """
        Return the paths of the container's files that differ from its image. Folders are not included.

        Raises:
            EngineFailed: the engine cannot compare the files.
        """
        done = self._ask("diff", name)
        if done.returncode != 0:
            raise EngineFailed(f"{self.name} diff: {_last_line(done.stderr)}")
        paths = {line.partition(" ")[2] for line in done.stdout.splitlines()}
        return paths - {str(above) for path in paths for above in Path(path).parents}

    def remove(self, name: str) -> None:
        """
        Remove the container `name` with its files, even if it is running. Harmless if the container does not exist.

        Raises:
            EngineFailed: the container could not be removed.
        """
        give_up_at = time.monotonic() + ENDS_WITHIN_S
        while True:
            self._ask("rm", "--force", "--volumes", name)
            if not (left := self.named(name)):
                return
            if time.monotonic() > give_up_at:
                raise EngineFailed(f"the container {left[0]} cannot be removed", hint=f"{self.name} rm --force {name}")
            time.sleep(_PAUSE_S)  # another process may be removing the container

    def named(self, name: str) -> list[str]:
        """Return [name] if a container of that name exists, running or not; otherwise []."""
        done = self._ask("ps", "--all", "--filter", f"name=^{name}$", "--format", "{{.Names}}")
        return done.stdout.split()

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(arguments, ANSWERS_WITHIN_S)

    def _run(
        self,
        arguments: Sequence[str],
        within_s: float,
        variables: Mapping[str, str] = MappingProxyType({}),
        descriptors: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                env={**os.environ, **variables},
                pass_fds=descriptors,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"{self.name} {arguments[0]} did not finish within {within_s:.0f} s") from None

    def version(self) -> subprocess.CompletedProcess[str]:
        """
        Ask the engine for its version. docker reports the version of its daemon, so it fails if the daemon does not
        run.
        """
        return self._ask(
            "version", "--format", "{{.Server.Version}}" if self.name == "docker" else "{{.Client.Version}}"
        )

    def info(self) -> subprocess.CompletedProcess[str]:
        return self._ask("info", "--format", "{{json .}}")


def find_engine() -> Engine:
    """
    Return the first engine that is installed and answers.

    Raises:
        EngineSilent: an engine is installed, but none answers.
        NotInstalled: no engine is installed, this user is not root, or nsenter is missing.
    """
    silent = []
    for name in NAMES:
        if (path := shutil.which(name)) is None:
            continue
        engine = Engine(name, path)
        try:
            done = engine.version()
        except EngineFailed as error:
            silent.append(error.message)
            continue
        if done.returncode == 0:
            return _for_this_user(engine)
        silent.append(f"{name} says: {_last_line(done.stderr)}")
    if silent:
        raise EngineSilent(f"this machine cannot start containers: {'; '.join(silent)}", hint="start docker or podman")
    raise NotInstalled("this machine has neither docker nor podman", hint="apt-get install podman")


def _for_this_user(engine: Engine) -> Engine:
    if os.geteuid() != 0:
        raise NotInstalled(
            "only root can run a training in a container, because only root can enter docker and podman containers",
            hint="run spotrun as root on this machine, or remove resources.image_id from the job",
        )
    if shutil.which("nsenter") is None:
        raise NotInstalled("nsenter, which enters a container, is not installed", hint="apt-get install util-linux")
    return engine


class Container:
    """
    A container that runs until `close` is called, or until the process that started the container ends.

    Raises:
        EngineFailed: the engine is configured to run containers on another machine.
    """

    def __init__(self, engine: Engine, name: str, process: subprocess.Popen[bytes], pid: int) -> None:
        self.engine = engine
        self.name = name
        self._process = process
        self._holder = _mark(pid)
        self.variables = variables_of(pid)
        """The environment variables that the image and the engine set for a process."""
        if self.variables.pop(MARK, None) != name or self._holder is None:
            self.close()
            raise EngineFailed(
                f"the containers of {engine.name} are not on this machine", hint="unset DOCKER_HOST and DOCKER_CONTEXT"
            )

    @property
    def is_alive(self) -> bool:
        return self._holder is not None and _mark(self._holder.pid) == self._holder

    def within(self, command: Sequence[str], folder: Path) -> list[str]:
        """
        Return a command line that runs `command` with the container's file system and with the work folder `folder`.
        `command` becomes a child of the process that executes the command line, and inherits its environment.
        """
        assert self._holder is not None
        return entering(self._holder.pid, command, folder)

    def close(self) -> None:
        """End and remove the container. Idempotent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(SpotrunError):
            self.engine.remove(self.name)


def entering(holder: int, command: Sequence[str], folder: Path) -> list[str]:
    """Return the command line of `Container.within`. `holder` is the id of the container's own process."""
    enter = [str(shutil.which("nsenter")), "--target", str(holder), "--mount", "--root"]
    return [*enter, "--", "/bin/sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]


def name_of(run_uid: str, instance_id: str) -> str:
    """Return the name of an instance's container. No other instance or run uses this name."""
    return f"spotrun-{run_uid}-{instance_id}"


class ContainerRecord(msgspec.Struct, frozen=True):
    """
    The content of the file that names a container. With this file, another process can remove the container if its
    owner has died.

    The training can change this file, so no program's path is read from it, although earlier versions of spotrun wrote
    one.
    """

    engine: Literal["docker", "podman"]
    name: str


def remembered(file: Path) -> ContainerRecord | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=ContainerRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_remembered(file: Path, name: str) -> None:
    """
    Remove the instance's container `name` with the engine that `file` names. Harmless if the file or the container does
    not exist. The caller computes `name`, because the training could write the name of another container into the file.

    Raises:
        EngineFailed: the container could not be removed.
    """
    if (left := remembered(file)) is None:
        return
    if (path := shutil.which(left.engine)) is None:
        raise EngineFailed(f"the container {name} cannot be removed", hint=f"install {left.engine} again")
    Engine(left.engine, path).remove(name)
    file.unlink(missing_ok=True)


@contextlib.contextmanager
def _login(
    engine: str, image: Image, credentials: Credentials | None
) -> Iterator[tuple[Sequence[str], Mapping[str, str], Sequence[int]]]:
    """
    Yield the command-line options, environment variables and file descriptors that make an engine read the login from
    memory, because the login must not be written to a disk.
    """
    if credentials is None:
        yield (), {}, ()
        return
    host = "https://index.docker.io/v1/" if engine == "docker" and image.host == "docker.io" else image.host
    memory = os.memfd_create("spotrun-login")
    try:
        os.write(memory, json.dumps({"auths": {host: {"auth": credentials.encoded}}}).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        if engine == "podman":
            yield ("--authfile", f"/proc/self/fd/{memory}"), {}, (memory,)
            return
        with TemporaryDirectory(prefix="spotrun-login-") as folder:
            Path(folder, "config.json").symlink_to(f"/proc/self/fd/{memory}")
            yield (), {"DOCKER_CONFIG": folder}, (memory,)
    finally:
        os.close(memory)


def _first_line(process: subprocess.Popen[bytes], within_s: float) -> str:
    """Return a process's first line of output; "" if it prints none within `within_s` seconds of system time."""
    assert process.stdout is not None
    give_up_at, read = time.monotonic() + within_s, b""
    while b"\n" not in read and (left_s := give_up_at - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left_s)[0]:
            break
        if not (piece := os.read(process.stdout.fileno(), 64)):
            break
        read += piece
    return read.partition(b"\n")[0].decode(errors="replace").strip()


def _mark(pid: int) -> ProcessMark | None:
    found = proc.stat(pid)
    return None if found is None or found.ended else found.mark


def variables_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; {} if it cannot be read."""
    try:
        read = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (each.partition(b"=") for each in read.split(b"\0") if b"=" in each)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # After an error, docker prints a line that points to its help.
    told = [line for line in lines if not line.startswith(("See '", "Run '"))]
    return (told or lines or [""])[-1][:500]


def _advice(engine: str, reason: str) -> str | None:
    if "nvidia.com/gpu" in reason:
        return "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` in the machine image"
    if "could not select device driver" in reason:
        return "install nvidia-container-toolkit in the machine image"
    if "/bin/sh" in reason:
        return "use an image that has a shell"
    return None
