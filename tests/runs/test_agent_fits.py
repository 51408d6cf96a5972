"""The agent of a script with several fits: each fit() begins with what it had, and finished ones are not done again."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from spotrun.errors import RunNotFound
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.agent_bench import AgentRun, Start
from tests.support.eventually import eventually
from tests.support.process_signals import send_signal
from tests.support.sandbox import Sandbox, final_tensors

STEPS = 60
"""Of each fit()."""


@pytest.fixture
def start(start: Start, tmp_path: Path) -> Start:
    usual = {"steps": STEPS, "epoch_steps": 30, "once": str(tmp_path)}
    return lambda job, **spec: start(usual | job, **spec)


def steps_of(run: AgentRun) -> list[int]:
    return [step for _, step in run.steps_done()]


def fit_of(step: int) -> int:
    return (step - 1) // STEPS + 1


def assert_whole(run: AgentRun, fits: int) -> None:
    assert run.wait_for(ev.RunCompleted).step == fits * STEPS
    assert sorted(set(steps_of(run))) == list(range(1, fits * STEPS + 1))
    assert [epoch.event.epoch for epoch in run.state.epochs] == list(range(fits * STEPS // 30))
    commits = run.seen(ev.CheckpointCommitted)
    assert all(commit.fit == fit_of(commit.step) for commit in commits)
    assert {commit.step for commit in commits if commit.final} >= {STEPS * fit for fit in range(1, fits + 1)}
    assert not run.state.voids


def test_a_kill_in_a_later_fit_repeats_no_step_of_those_before(start: Start) -> None:
    run = start(
        {"fits": 3, "acts": {f"step {2 * STEPS + 40}": "kill"}}, checkpoint={"every": "20 steps", "keep_last": 1}
    )
    run.launch().powers_off()
    assert_whole(run, 3)
    by_process = itertools.groupby(run.steps_done(), lambda done: done[0])
    first, second = ([step for _, step in steps] for _, steps in by_process)
    assert first == list(range(1, 2 * STEPS + 40))
    assert second[0] > 2 * STEPS
    resumed = run.seen(ev.ResumedFrom)[1]
    assert run.state.commit(resumed.commit).event.fit == 3
    retired = {run.state.commit(event.commit).event.step for event in run.seen(ev.CheckpointRetired)}
    assert not retired & {STEPS, 2 * STEPS}, "what a fit() has ended with stays"
    assert retired, "although only the newest one is kept"


@pytest.mark.parametrize("before", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_kill_between_two_fits_does_no_step_again(start: Start, before: int) -> None:
    run = start({"fits": 3, "acts": {f"fit {before}": "kill"}})
    run.launch().powers_off()
    assert_whole(run, 3)
    assert len(steps_of(run)) == 3 * STEPS
    assert run.seen(ev.ResumedFrom)[1].step == (before - 1) * STEPS


def test_a_loss_of_the_instance_in_each_fit_is_resumed_on_another(start: Start) -> None:
    run = start({"fits": 2, "step_s": 0.05})
    for losses, step in enumerate((30, STEPS + 30), 1):
        node = run.launch()
        eventually(lambda at=step: steps_of(run) and max(steps_of(run)) >= at, within_s=60)
        node.notice(60)
        node.powers_off()
        assert run.seen(ev.AttemptDrained)[-1].final_commit == run.state.latest_commit().number
        assert len(run.seen(ev.AttemptDrained)) == losses
    run.launch().powers_off()
    assert_whole(run, 2)
    assert len(steps_of(run)) == 2 * STEPS


def test_a_loss_of_the_instance_between_two_fits_loses_no_step(start: Start) -> None:
    run = start({"fits": 2, "acts": {"fit 2": "wait"}})
    node = run.launch()
    eventually(lambda: any(commit.final for commit in run.seen(ev.CheckpointCommitted)), within_s=60)
    node.notice(60)
    node.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert run.state.commit(drained.final_commit).event.step == STEPS
    Path(run.folder, "go_on").touch()
    run.launch().powers_off()
    assert_whole(run, 2)
    assert len(steps_of(run)) == 2 * STEPS


def test_without_the_end_of_an_earlier_fit_it_is_done_again(start: Start) -> None:
    run = start({"fits": 2, "step_s": 0.05}, checkpoint={"every": "25 steps", "keep_last": 50})
    node = run.launch()
    eventually(lambda: any(commit.fit == 2 for commit in run.seen(ev.CheckpointCommitted)), within_s=60)
    os.kill(node.agent_pid(), signal.SIGSTOP)
    os.kill(node.trainer_pid(), signal.SIGKILL)
    (end,) = [each for each in run.state.commits if each.event.fit == 1 and each.event.final]
    for part in (Path(run.store.uri) / end.event.prefix).glob("part-*"):
        part.write_bytes(b"nobody could restore this")
    os.kill(node.agent_pid(), signal.SIGCONT)
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert resumed.step < STEPS
    assert end.number in resumed.skipped
    node.powers_off()
    assert run.wait_for(ev.RunCompleted).step == 2 * STEPS


def test_a_script_that_ends_before_the_fit_that_it_was_in_is_not_done(start: Start) -> None:
    run = start({"fits": 2, "acts": {f"step {STEPS + 40}": "kill"}, "forgets": True}, checkpoint={"every": "20 steps"})
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.USER_ERROR
    assert not run.seen(ev.RunCompleted)
    assert "ended with exit code 0 before fit() was done" in ended.detail


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_cross_validation_that_is_lost_in_each_fold_writes_what_one_in_peace_does(sandbox: Sandbox) -> None:
    sandbox.call("launch", folds(sandbox, "calm", "0"), "-y")
    mark = sandbox.folder / "died"
    runner = sandbox.start("launch", folds(sandbox, "killed", "0.1", "--die-after", "0", "--mark", str(mark)), "-y")
    for fit in (1, 2, 3):
        eventually(lambda at=fit: newest_fit(sandbox) >= at, within_s=120)
        send_signal(sandbox, "instance")
    output, _ = runner.communicate(timeout=200)
    assert runner.returncode == 0, output
    state = sandbox.state("killed")
    assert mark.exists()
    assert len(state.attempts) == 4
    assert [epoch.event.epoch for epoch in state.epochs] == list(range(6))
    calm, killed = (written(sandbox, name) for name in ("calm", "killed"))
    assert sorted(calm) == sorted(killed)
    for path in ("results.json", "folds.log"):
        assert killed[path] == calm[path]
    assert len(calm["folds.log"].splitlines()) == 3
    assert tensors(sandbox, "killed") == tensors(sandbox, "calm")


def newest_fit(sandbox: Sandbox) -> int:
    """Of the run that is killed; 0 while there is no such run, or no checkpoint of it."""
    try:
        newest = sandbox.state("killed").latest_commit()
    except RunNotFound:
        return 0
    return 0 if newest is None else newest.event.fit


def folds(sandbox: Sandbox, name: str, step_s: str, *more: str) -> Path:
    args = ", ".join(f"'{word}'" for word in ("--step-s", step_s, *more))
    return sandbox.job(name, args=args, program="folds.py", extra="retry: {max_restarts: 20}\n")


def tensors(sandbox: Sandbox, name: str) -> list[bytes]:
    """Of the last checkpoint, without the log of the script's logger, in which a run's costs are."""
    return [data for data in final_tensors(sandbox.run(name)).values() if b"cost_usd" not in data]


def written(sandbox: Sandbox, name: str) -> dict[str, bytes]:
    folder = sandbox.folder / f"files-{name}"
    sandbox.call("fetch", name, "--to", folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
