"""SIGKILL of everything at random steps: the result is bit-identical, the bill is right, nothing is left running."""

from __future__ import annotations

import os
import random
import shutil
import signal
from fractions import Fraction
from pathlib import Path

import pytest

from spotrun.errors import RunGone
from tests.support.audit import instance_dollars, one_attempt_at_a_time, samples_are_whole
from tests.support.eventually import eventually
from tests.support.process_signals import send_signal
from tests.support.sandbox import Sandbox, final_tensors

EPOCHS = 10
STEPS = EPOCHS * 12
ARGS = f"--frozen, --epochs, '{EPOCHS}'"
"""Later checkpoints borrow most of their bytes of earlier ones."""
VICTIMS = ("trainer", "agent", "instance", "runner", "instance", "trainer", "runner", "agent")
"""The first four are one of each."""
SEED = int(os.environ.get("SPOTRUN_TEST_SEED", "20261121"))
"""Another seed kills at other steps; a failure prints the plan."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_kills_of_trainer_agent_instance_and_runner_change_no_bit_and_no_cent(sandbox: Sandbox, count: int) -> None:
    sandbox.call("launch", sandbox.job("calm", args=f"{ARGS}, --step-s, '0'"), "-y")
    quiet = sandbox.trace_by_step()
    sandbox.trace.unlink()

    plan = kill_plan(random.Random(SEED), count)
    print(f"seed {SEED}: {plan}")
    job = sandbox.job("killed", args=f"{ARGS}, --step-s, '0.1'", extra="retry: {max_restarts: 20}\n")
    runner = sandbox.start("launch", job, "-y")
    for step, target in plan:
        eventually(lambda at=step: sandbox.last_step() >= at, within_s=120)
        if target == "runner":
            runner.kill()
            runner = sandbox.start("resume", "killed")
        else:
            send_signal(sandbox, target)
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    assert sandbox.trace_by_step() == quiet
    assert samples_are_whole(quiet, epochs=EPOCHS, samples=96)
    assert final_tensors(sandbox.run("killed")) == final_tensors(sandbox.run("calm"))
    assert sum(bool(commit.event.borrows) for commit in sandbox.state("killed").commits) >= 3
    assert one_attempt_at_a_time(sandbox.state("killed"))
    ours, clouds = instance_dollars(sandbox, "killed")
    assert abs(ours - clouds) < Fraction(1, 10**6), (float(ours), float(clouds))
    assert sandbox.left_running() == []


def kill_plan(rng: random.Random, count: int) -> list[tuple[int, str]]:
    """Each of so many targets once, at steps apart enough for its successor to have begun."""
    steps = sorted(rng.sample(range(4, STEPS - 8, 6), count))
    return list(zip(steps, rng.sample(VICTIMS[:count], count), strict=True))


def test_no_process_is_left_by_a_killed_launch_that_is_taken_down(sandbox: Sandbox) -> None:
    launch = sandbox.start("launch", sandbox.job("dropped", args="--epochs, '50'"), "-y")
    eventually(lambda: sandbox.trace.exists(), within_s=90)
    launch.send_signal(signal.SIGKILL)
    launch.communicate()
    assert sandbox.left_running() != []
    sandbox.call("down", "dropped", "-y")
    assert sandbox.left_running() == []


def test_a_run_whose_folder_is_moved_away_ends_with_its_instance(sandbox: Sandbox) -> None:
    launch = sandbox.start("launch", sandbox.job("moved", args="--epochs, '50'"), "-y")
    eventually(lambda: sandbox.trace.exists(), within_s=90)
    folder = Path(sandbox.run("moved").uri)
    folder.rename(sandbox.folder / folder.name)
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == RunGone.exit_code, output
    assert f"{folder} was moved or deleted" in " ".join(output.split())
    assert sandbox.left_running() == []
    if folder.exists():  # the agent has written on in a new folder
        shutil.copytree(folder, sandbox.folder / folder.name, dirs_exist_ok=True)
        shutil.rmtree(folder)
    (sandbox.folder / folder.name).rename(folder)
    sandbox.call("down", "moved", "-y")
