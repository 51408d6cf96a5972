"""What a script writes is the same after any history: the files of a run that is killed are those of one in peace."""

from __future__ import annotations

import csv
import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from spotrun.run import events as ev
from tests.support.agent_bench import AgentRun
from tests.support.eventually import eventually
from tests.support.process_signals import send_signal
from tests.support.sandbox import Sandbox

EPOCHS = 8
STEPS = EPOCHS * 12
VICTIMS = ("trainer", "instance", "agent", "instance", "trainer")
"""The first three are one of each."""
SEED = int(os.environ.get("SPOTRUN_TEST_SEED", "20261123"))
"""Another seed kills at other steps; a failure prints the plan."""
OURS = {"cost_usd", "usd_per_epoch", "lost_s", "attempt"}
"""Columns that spotrun adds to a log: they differ with the history."""


@pytest.mark.timeout(500)
@pytest.mark.parametrize("kills", [3, pytest.param(len(VICTIMS), marks=pytest.mark.nightly)])
def test_kills_change_no_file_of_the_script(sandbox: Sandbox, kills: int) -> None:
    sandbox.call("launch", job(sandbox, "calm", "0"), "-y")
    plan = kill_plan(random.Random(SEED), kills)
    print(f"seed {SEED}: {plan}")
    sandbox.trace.unlink()
    runner = sandbox.start("launch", job(sandbox, "killed", "0.1", "--die-once", str(sandbox.folder / "died")), "-y")
    for step, target in plan:
        eventually(lambda at=step: sandbox.last_step() >= at, within_s=120)
        send_signal(sandbox, target)
    output, _ = runner.communicate(timeout=300)
    assert runner.returncode == 0, output

    state = sandbox.state("killed")
    assert (sandbox.folder / "died").exists(), "between the training and its test, too"
    assert any(trainer.commit is not None for attempt in state.attempts.values() for trainer in attempt.trainers)
    assert all(commit.event.files is not None for commit in state.commits)
    calm, killed = files_of(sandbox, "calm"), files_of(sandbox, "killed")
    assert sorted(killed) == sorted(calm)
    assert "results.json" in calm
    assert "kept/last.ckpt" in calm
    for path, content in calm.items():
        assert killed[path] == content, path
    assert sandbox.left_running() == []


def test_a_torn_snapshot_is_followed_by_a_whole_one_and_each_resume_finds_its_files(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.mkdir()
    run = AgentRun(
        tmp_path,
        {"files": True, "tear_at": 20, "acts": {"step 50": "kill"}, "once": str(once), "steps": 90, "step_s": 0.05},
        scale=60,
    )
    try:
        first = run.launch()
        run.wait_for(ev.TrainerExited)
        eventually(lambda: run.steps_done()[-1][1] >= 60)
        first.notice(30)
        first.powers_off()
        second = run.launch()
        run.wait_for(ev.RunCompleted)
        second.powers_off()
    finally:
        run.close()
    torn = int((once / "torn").read_text())
    steps = [commit.event.step for commit in run.state.commits]
    assert torn not in steps
    assert any(step > torn for step in steps if step < 50), "another one was taken soon"
    for commit in run.state.commits:
        assert commit.event.files is not None
    lines = (second.folder / "work" / "log").read_text().splitlines()
    assert lines == ["begins", *map(str, range(1, 91))]
    assert (second.folder / "work" / "large").read_bytes() == bytes([90]) * 300_000
    assert len({pid for pid, _ in run.steps_done()}) == 3


def test_a_training_that_dies_in_its_first_step_leaves_the_next_one_the_work_folder_as_it_was(tmp_path: Path) -> None:
    """Else a logger would call its folder by the next number, and what callbacks write there would be elsewhere."""
    once = tmp_path / "once"
    once.mkdir()
    run = AgentRun(tmp_path, {"files": True, "acts": {"step 1": "kill"}, "once": str(once)})
    try:
        node = run.launch()
        node.powers_off()
    finally:
        run.close()
    assert len(run.seen(ev.ResumedFrom)) == 2
    logs = node.folder / "work" / "logs"
    left = sorted(path.relative_to(logs).as_posix() for path in logs.rglob("*") if path.is_file())
    assert left == ["version_0/.spotrun", "version_0/config.yaml"]


def test_a_checkpoint_whose_files_are_damaged_is_walked_past(tmp_path: Path) -> None:
    run = AgentRun(tmp_path, {"files": True, "steps": 100_000, "epoch_steps": 1000})
    try:
        first = run.launch()
        run.wait_for(ev.CheckpointCommitted, 2)
        first.notice(60)
        first.powers_off()
        older, newest = run.state.restore_candidates()[1::-1]
        (Path(run.store.uri) / newest.event.files.key).unlink()
        second = run.launch()
        resumed = run.wait_for(ev.ResumedFrom, 2)
        assert (resumed.commit, resumed.skipped) == (older.number, (newest.number,))
        run.wait_for(ev.TrainingStarted, 2)
        second.notice(60)
        second.powers_off()
        assert "cannot resume from the checkpoint" in run.log(second)
    finally:
        run.close()


def job(sandbox: Sandbox, name: str, step_s: str, *more: str) -> Path:
    args = ", ".join(f"'{word}'" for word in ("--epochs", str(EPOCHS), "--step-s", step_s, *more))
    return sandbox.job(name, args=args, program="filed.py", extra="retry: {max_restarts: 20}\n")


def kill_plan(rng: random.Random, count: int) -> list[tuple[int, str]]:
    steps = sorted(rng.sample(range(6, STEPS - 8, 8), count))
    return list(zip(steps, rng.sample(VICTIMS[:count], count), strict=True))


def files_of(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """What was fetched, each file in the form in which two histories can be compared."""
    folder = sandbox.folder / f"files-{name}"
    sandbox.call("fetch", name, "--to", folder)
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): comparable(path) for path in found}


def comparable(path: Path) -> Any:
    if path.suffix in (".ckpt", ".pt"):
        return plain(torch.load(path, weights_only=False))
    if path.name == "metrics.csv":
        rows = csv.DictReader(io.StringIO(path.read_text()))
        kept = [{name: value for name, value in row.items() if name not in OURS and value} for row in rows]
        return [row for row in kept if row.keys() - {"step", "epoch"}]
    return path.read_bytes()


def plain(value: Any) -> Any:
    """Without the paths of instances, and tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str) and "/work/" in value:
        return value.partition("/work/")[2]
    return value
