"""Trainings of the real agent on the simulated accelerator (tests/device), which breaks while a snapshot is copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.run import events as ev
from tests.device import vulkan
from tests.device.build import PLUGIN, missing
from tests.support.agent_bench import AgentRun
from tests.support.repository import ROOT

SCRIPT = """
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from spotrun import Loop
from spotrun.training import overlap
from tests.device.train import break_it

overlap.FROM_BYTES = overlap.PIECE_FROM_BYTES = 1
place, fault = Path(os.environ["PLACE"]), os.environ.get("FAULT")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to("toy:1")
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scaler = torch.amp.GradScaler("toy", init_scale=2.0**20)
loop = Loop(seed=1, model=model, optimizer=optimizer, scaler=scaler)
s = loop.state(step=0, skipped=0)
for _ in loop.epochs(2):
    for x in loop.batches(DataLoader(torch.randn(400, 8), 4, shuffle=True)):
        with torch.autocast("toy", torch.float16):
            loss = model(x.to("toy:1")).square().mean()
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        s.step += 1
        s.skipped += scaler.get_scale() < before
        if fault and not (place / "broken").exists():
            time.sleep(0.05)
            while s.step > 100 and not (place / "saved").exists():
                time.sleep(0.05)
            if (place / "saved").exists():
                (place / "broken").write_text(str(s.step))
                break_it(fault)
weights = [value.cpu() for value in model.state_dict().values()]
torch.save([weights, scaler.state_dict(), s.skipped], place / "result.new")
(place / "result.new").rename(place / "result")
"""


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], AgentRun]]:
    if reason := missing():
        pytest.skip(reason)
    path = f"{PLUGIN}{os.pathsep}{ROOT}"
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs: list[AgentRun] = []

    def make(fault: str) -> AgentRun:
        files, envs = {"train.py": SCRIPT}, {"PLACE": str(tmp_path), "FAULT": fault, "PYTHONPATH": path}
        job: dict[str, Any] = {"train": {"script": "train.py"}, "checkpoint": {"every": "1 step"}}
        runs.append(AgentRun(tmp_path, scale=30.0, files=files, envs=envs, **job))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def break_once_saved(run: AgentRun) -> None:
    run.wait_for(ev.CheckpointCommitted, within_s=180)
    (run.folder / "saved").touch()


def check_commits(run: AgentRun) -> None:
    """Check that the trainer that broke committed nothing from the step on whose copy was under way."""
    steps = [each.step for each in run.seen(ev.CheckpointCommitted) if each.incarnation == 0]
    assert 0 < max(steps) < int((run.folder / "broken").read_text())


def test_training_killed_during_a_copy_resumes_with_the_same_bits(
    begin: Callable[[str], AgentRun], tmp_path: Path
) -> None:
    import torch

    run, alone = begin("killed"), tmp_path / "alone"
    node = run.launch()
    alone.mkdir()
    (alone / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PLACE": str(alone)}
    subprocess.run([sys.executable, "train.py"], cwd=alone, env=environment, check=True, timeout=180)
    break_once_saved(run)
    node.powers_off(180)
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed", run.log(node)
    check_commits(run)
    (found, *scaling), (expected, *expected_scaling) = (torch.load(each / "result") for each in (tmp_path, alone))
    assert all(map(torch.equal, found, expected))
    assert scaling == expected_scaling
    assert scaling[-1] > 0, "the first steps overflow"


@pytest.mark.nightly
def test_device_that_fails_during_a_copy_commits_no_part_of_it(begin: Callable[[str], AgentRun]) -> None:
    run = begin("failed")
    node = run.launch()
    break_once_saved(run)
    node.powers_off(180)
    assert "toy:1 has failed" in run.log(node)
    check_commits(run)


@pytest.mark.nightly
def test_trainings_resume_with_the_same_bits_on_the_simulated_accelerator(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.batteries.gpu", "--device", "test", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["loop", "lightning"])
def test_training_resumes_with_the_same_bits_on_an_accelerator_of_others(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := vulkan.missing():
        pytest.skip(reason)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (vulkan.PLUGIN, vulkan.PACKAGES, ROOT))))
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path))
    script = ROOT / "tests/device/small.py"
    command = [sys.executable, "-m", "spotrun", "verify-resume", "--json", "--kills", "1", str(script), "--", way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["identical"]
    assert found["steps"] == 40
