"""Sweeps of real trainings on the local cloud."""

from __future__ import annotations

import json
import signal
from decimal import Decimal

import pytest

from spotrun.runs.sweeps import NamedSweep, sweep_named
from tests.support.eventually import eventually
from tests.support.process_signals import send_signal
from tests.support.sandbox import Sandbox, final_tensors

TWO, THREE = ("--grid", "width=16,32"), ("--grid", "width=16,32,64")
BUDGET = 40
KNOWN = "policy: {expected_work: 1h}\n"
"""So no trial waits for what the first one shows, and a slow machine spends no whole share on a start."""


def the_sweep(sandbox: Sandbox, name: str) -> NamedSweep:
    found = sweep_named(name, sandbox.uri)
    assert found is not None
    return found


def epochs(sandbox: Sandbox, name: str) -> int:
    """How many have ended in all runs of a sweep."""
    found = sweep_named(name, sandbox.uri)
    return 0 if found is None else sum(len(run.ledger.refresh().epochs) for run in found.runs())


@pytest.mark.timeout(600)
def test_a_sweep_trains_all_trials_within_its_budget_and_names_the_best(sandbox: Sandbox) -> None:
    job = sandbox.job("calm", args="--epochs, '2', --step-s, '0'", extra=KNOWN)
    output = sandbox.call("sweep", job, *TWO, "--budget", BUDGET, "--reduction-factor", 0, "-y", "--json")
    found = json.loads(output[output.index("{\n") :])
    assert [row["state"] for row in found["rows"]] == ["completed"] * 2
    assert found["best"] == found["rows"][0]["run"]
    assert Decimal(0) < Decimal(found["cost_usd"]) <= BUDGET
    one, other = the_sweep(sandbox, "calm-sweep").runs()
    assert one.spec.train.args[4:] != other.spec.train.args[4:] != ()
    assert final_tensors(one) != final_tensors(other)
    assert sandbox.left_running() == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_sweep_through_kills_gives_each_trial_the_bits_of_an_undisturbed_one(sandbox: Sandbox) -> None:
    calm = sandbox.job("calm", args="--epochs, '3', --step-s, '0'", extra=KNOWN)
    sandbox.call("sweep", calm, *TWO, "--budget", BUDGET, "--reduction-factor", 0, "-y")

    job = sandbox.job("rough", args="--epochs, '3', --step-s, '0.4'", extra=f"retry: {{max_restarts: 20}}\n{KNOWN}")
    command = ("sweep", job, *TWO, "--budget", BUDGET, "--reduction-factor", 0, "-y")
    first = sandbox.start(*command)
    eventually(lambda: epochs(sandbox, "rough-sweep") >= 1, within_s=200)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    send_signal(sandbox, "instance")
    send_signal(sandbox, "trainer")
    output = sandbox.call(*command, "--json")
    found = json.loads(output[output.index("{\n") :])

    assert [row["state"] for row in found["rows"]] == ["completed"] * 2
    assert found["best"] == found["rows"][0]["run"]
    assert sum(row["interruptions"] for row in sandbox.ask_json("status", "rough-sweep")) >= 1
    assert Decimal(0) < Decimal(found["cost_usd"]) <= BUDGET
    undisturbed = the_sweep(sandbox, "calm-sweep").runs()
    for rough, quiet in zip(the_sweep(sandbox, "rough-sweep").runs(), undisturbed, strict=True):
        assert rough.spec.train.args[4:] == quiet.spec.train.args[4:] != ()
        assert final_tensors(rough) == final_tensors(quiet)
    assert sandbox.left_running() == []


@pytest.mark.timeout(600)
def test_the_name_of_a_sweep_stands_for_all_of_its_runs(sandbox: Sandbox) -> None:
    job = sandbox.job("many", args="--epochs, '80', --step-s, '0.05'", extra=KNOWN)
    budget = 10 * BUDGET  # a first epoch that a busy machine held up says that each of 80 takes as long
    command = ("sweep", job, *THREE, "--budget", budget, "--max-parallel", 2, "--reduction-factor", 0, "-y")
    attending = sandbox.start(*command)
    eventually(lambda: epochs(sandbox, "many-sweep") >= 1, within_s=200)
    eventually(lambda: len(the_sweep(sandbox, "many-sweep").runs()) == 2, within_s=120)
    assert len(sandbox.ask_json("status", "many-sweep")) == 2
    assert "2 of 3 trials of the sweep many-sweep have begun" in sandbox.ask("status", "many-sweep")
    assert "another process on this machine takes care" in sandbox.ask(*command, code=1)
    assert "no further trial begins" in sandbox.call("stop", "many-sweep")
    output, _ = attending.communicate(timeout=120)
    assert attending.returncode == 4, output
    assert "many-sweep was stopped" in output
    assert sandbox.left_running() == []

    attending = sandbox.start(*command)
    eventually(lambda: sandbox.left_running() or attending.poll() is not None, within_s=120)
    assert attending.poll() is None, attending.communicate()
    attending.send_signal(signal.SIGKILL)
    attending.communicate()
    assert "many-sweep is down" in sandbox.ask("down", "many-sweep", "-y")
    assert sandbox.left_running() == []


@pytest.mark.timeout(600)
def test_sweep_ends_at_an_unlogged_metric_and_goes_on_with_the_right_one_until_sigterm(
    sandbox: Sandbox,
) -> None:
    job = sandbox.job("told", args="--epochs, '80', --step-s, '0.05'", extra=KNOWN)
    command = ("sweep", job, *TWO, "--budget", BUDGET, "--max-parallel", 1, "-y")
    mistaken = sandbox.call(*command, "--metric", "val_los", code=2)
    assert "no trial has logged the metric 'val_los' by the end of epoch 1" in " ".join(mistaken.split())
    assert "--metric val_loss" in mistaken
    assert sandbox.left_running() == []

    before = epochs(sandbox, "told-sweep")
    attending = sandbox.start(*command, "--metric", "val_loss")
    eventually(lambda: epochs(sandbox, "told-sweep") > before, within_s=200)
    attending.send_signal(signal.SIGTERM)
    output, _ = attending.communicate(timeout=120)
    assert attending.returncode == 4, output
    assert "leaves nothing running" in output
    assert sandbox.left_running() == []
    assert {row["state"] for row in sandbox.ask_json("status", "told-sweep")} == {"stopped"}
