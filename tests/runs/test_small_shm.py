"""Containers often have a /dev/shm of 64 MB: snapshots must not need more of it than that."""

from __future__ import annotations

import subprocess
import sys

from tests.support.sandbox import Sandbox

WIDTH = 3500
STATE_MB = WIDTH * WIDTH * 4 * 2 / 1e6
SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


def test_a_state_larger_than_dev_shm_is_snapshot_and_restored(sandbox: Sandbox) -> None:
    arguments = f"--width, '{WIDTH}', --epochs, '2', --step-s, '0.1', --workers, '2'"
    job = sandbox.job("roomy", args=arguments, script="{when: epoch 2 at 50%, then: interrupt, notice: none}")
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", SMALL_SHM, "bash"]
    launch = [sys.executable, "-m", "spotrun", "launch", str(job), "-y"]
    done = subprocess.run([*command, *launch], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    state = sandbox.state("roomy")
    assert len(state.attempts) == 2
    assert min(commit.event.size_bytes for commit in state.commits) > STATE_MB * 1e6 > 64e6
