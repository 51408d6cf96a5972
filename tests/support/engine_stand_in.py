"""
A docker that writes down its arguments, and whose containers have the files of this machine, but for those below /mnt,
in a mount namespace of their own: for where no engine runs.

It is a program (`StandIn.install` puts it into PATH), keeps what it knows in its folder, and speaks of containers and
images as docker does. Which images there are is in `images`, a line each, what a container has changed in `diff`, and
the PATH of an image in `path`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

PROGRAM = r"""#!{python} -SE
import json, os, signal, sys
folder, words = {folder!r}, sys.argv[1:]
with open(folder + "/asked", "a") as file:
    file.write(json.dumps(words) + "\n")

def lines(name):
    try:
        return open(folder + "/" + name).read().split("\n")[:-1]
    except FileNotFoundError:
        return []

def value(flag):
    return words[words.index(flag) + 1]

match words[0]:
    case "version":
        if silent := lines("silent"):
            sys.exit(silent[0])
        print("27.0")
    case "info":
        print("\n".join(lines("info")) or "{{}}")
    case "image":
        if words[-1] not in lines("images"):
            sys.exit("Error: No such image: " + words[-1])
        print(json.dumps([words[-1].partition("@")[0].rpartition(":")[0] + "@" + line for line in lines("digest")]))
    case "pull":
        login = os.environ.get("DOCKER_CONFIG")
        with open(folder + "/logins", "a") as file:
            file.write((open(login + "/config.json").read() if login else "none") + "\n")
        if refused := lines("refuses"):
            sys.exit("Error response from daemon: " + refused[0] + "\nSee 'docker pull --help'.")
        with open(folder + "/images", "a") as file:
            file.write(words[-1] + "\n")
    case "run":
        if refused := lines("fails"):
            sys.exit("docker: Error response from daemon: " + refused[0] + "\nSee 'docker run --help'.")
        name = value("--name")
        variables = {{"PATH": (lines("path") or [os.environ["PATH"]])[0], "HOME": "/root", "OF_IMAGE": "yes"}}
        for number, word in enumerate(words):
            if word == "--env":
                key, _, text = words[number + 1].partition("=")
                variables[key] = text
        reading, writing = os.pipe()
        holder = os.fork()
        if holder == 0:
            os.setsid()
            os.dup2(reading, 0)
            os.close(writing)
            alone = [{unshare!r}, "--mount", "--propagation", "private", "/bin/sh", "-c", {image!r}]
            os.execve(alone[0], [*alone, "/bin/sh", *words[-2:]], variables)
        os.close(reading)
        open(folder + "/containers/" + name, "w").write(str(holder))
        if os.fork() == 0:  # as a daemon does, this outlives who asked, and hears that its input has ended
            os.setsid()
            os.close(1)
            while os.read(0, 1024):
                pass
            os.close(writing)
            os._exit(0)
        os.close(writing)
        os.close(0)
        os.waitpid(holder, 0)
        try:
            os.unlink(folder + "/containers/" + name)
        except FileNotFoundError:
            pass
    case "diff":
        print("\n".join(["C /root", *lines("diff")]))
    case "ps":
        wanted = [word[6:-1] for word in words if word.startswith("name=^")]
        print("\n".join(name for name in os.listdir(folder + "/containers") if not wanted or name in wanted))
    case "rm":
        path = folder + "/containers/" + words[-1]
        try:
            os.kill(int(open(path).read()), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
    case other:
        sys.exit("docker: '" + other + "' is not a docker command.")
"""


UNSHARE, MOUNT = shutil.which("unshare"), shutil.which("mount")
IMAGE = f'{MOUNT} -t tmpfs none /mnt && echo yes > /mnt/of-image && exec "$0" "$@"'
OF_IMAGE = Path("/mnt/of-image")
"""A file that is there in its containers alone."""


class StandIn:
    """`asked` are the arguments of all its calls so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engine"
        (self.folder / "containers").mkdir(parents=True)
        (self.folder / "bin").mkdir()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        program = self.folder / "bin" / "docker"
        program.write_text(
            PROGRAM.format(
                python=os.path.realpath(sys.executable), folder=str(self.folder), image=IMAGE, unshare=UNSHARE
            )
        )
        program.chmod(0o755)
        patch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))

    def say(self, what: str, *lines: str) -> None:
        (self.folder / what).write_text("".join(f"{line}\n" for line in lines))

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    def calls(self, verb: str) -> list[list[str]]:
        return [words for words in self.asked if words[0] == verb]

    @property
    def logins(self) -> list[str]:
        return (self.folder / "logins").read_text().splitlines()

    @property
    def containers(self) -> list[str]:
        return sorted(os.listdir(self.folder / "containers"))
