"""
Before training: the work folder, and the user's own set-up command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

from spotrun import start_file, workdir
from spotrun.agent.node import Node
from spotrun.agent.trainer import user_environment
from spotrun.errors import SpotrunError
from spotrun.retrying import through_faults

SETUP_MAX_S = 3600.0
"""System time."""


class SetupFailed(SpotrunError):
    """The user's set-up command failed."""


FETCH_WITHIN_S = 300.0
"""System time that a passing fault of the store may last."""


def prepare(node: Node) -> None:
    """
    Unpack the work folder, fetch what the run begins from, and run `setup`; once in the life of an instance.

    Raises:
        SetupFailed: the command ended with an error, or not within an hour.
        SpotrunError: the work folder cannot be had.
    """
    done = node.place.folder / "setup-done"
    if done.exists():
        return
    node.status.change(phase="setup")
    through_faults(FETCH_WITHIN_S)(_fetch, node)
    if node.spec.setup is not None:
        _run(node, node.spec.setup)
    done.touch()


def _fetch(node: Node) -> None:
    workdir.fetch(node.store, node.created.workdir_sha256, node.place.work)
    if node.created.start_sha256 is not None:
        start_file.fetch(node.store, node.created.start_sha256, node.place.folder)


def _run(node: Node, command: str) -> None:
    before = node.console.size_bytes()
    output = node.console.open()
    try:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=node.place.work,
            env=user_environment(node.spec, node.place.folder, node.place.instance_id, node.place.run_uid),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    watchdog = threading.Timer(SETUP_MAX_S, _kill_group, (process.pid,))
    watchdog.daemon = True
    watchdog.start()
    exit_code = process.wait()
    watchdog.cancel()
    if exit_code != 0:
        tail = node.console.tail(1000, since=before).strip()
        raise SetupFailed(f"setup ended with exit code {exit_code}: {tail}", hint="correct setup, then launch again")


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
