"""Signals to the processes of runs on the local cloud, and the loss of whole instances."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.registry import cloud_named
from spotrun.instance import InstanceState
from tests.support.eventually import eventually
from tests.support.sandbox import Sandbox, environment_of, processes_now

T = TypeVar("T")


class Pick(Protocol):
    """Takes one of several."""

    def __call__(self, found: Sequence[T]) -> T: ...


FOUND_WITHIN_S = 60
PROGRAMS = {"agent": ("spotrun.agent",), "trainer": ("tiny.py", "quick.py", "filed.py")}
"""By target, endings of words in its command line."""


def send_signal(
    sandbox: Sandbox, target: str, number: signal.Signals = signal.SIGKILL, pick: Pick = lambda found: found[0]
) -> bool:
    """
    Signal the "trainer" or the "agent" of this sandbox, or have the cloud take the "instance" and wait for its end. Of
    several `pick` takes one; of instances the oldest is the first. False if a process ended by itself just before.

    It looks only at the processes of this machine, because it must be fast enough to hit within an upload.
    """
    if target == "instance":
        _take_instance(pick)
        return True
    pid = pick(eventually(lambda: [*processes_of(sandbox, target)], within_s=FOUND_WITHIN_S))
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _take_instance(pick: Pick) -> None:
    cloud = cloud_named("local").account(()).driver
    instance_id = pick(eventually(lambda: _running(cloud), within_s=FOUND_WITHIN_S))
    cloud.interrupt(instance_id, None)
    eventually(lambda: cloud.describe(instance_id).state is InstanceState.TERMINATED, within_s=FOUND_WITHIN_S)


def _running(cloud: LocalDriver) -> list[str]:
    """The oldest one first."""
    running = [instance for instance in cloud.instances() if instance.state is InstanceState.RUNNING]
    return [each.instance_id for each in sorted(running, key=lambda instance: instance.launched_at)]


def processes_of(sandbox: Sandbox, target: str) -> Iterator[int]:
    """The "agent" or "trainer" processes on the instances of this sandbox."""
    for pid in processes_now():
        if str(sandbox.machines) not in environment_of(pid).get("SPOTRUN_INSTANCE_DIR", ""):
            continue
        if any(word.endswith(PROGRAMS[target]) for word in _command_line(pid)):
            yield pid


class Uploads:
    """
    Tells whether an agent of this sandbox is uploading a checkpoint.

    An agent says so in its status file. If it is killed then, its file says so for ever. So call `settle` after each
    kill: files that are not written anew no longer count.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._folder = sandbox.folder / "cloud" / "instances"
        self._old: dict[Path, int] = {}

    def under_way(self) -> bool:
        written = self._written()
        return any(_status(path).get("upload") for path, at in written.items() if self._old.get(path) != at)

    def settle(self) -> None:
        self._old = self._written()

    def _written(self) -> dict[Path, int]:
        """When each was written last."""
        found = {}
        for path in self._folder.glob("*/status.json"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_mtime_ns
        return found


def _status(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    assert isinstance(found, dict)
    return found


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
