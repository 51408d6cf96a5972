"""
The core works without the feature packages. All are deleted from a copy, which launches a run, reports it and ends it;
in `make nightly` each one is also deleted from another copy, in turn, which reports that run and ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.features import FEATURES
from tests.support.repository import ROOT

WITHIN_S = 240


class Copy:
    """A copy of the package in `folder` without some features. All copies use the store `runs`."""

    def __init__(self, folder: Path, features: Iterable[str], runs: Path) -> None:
        self.folder = folder
        self.runs = runs
        shutil.copytree(ROOT / "spotrun", folder / "spotrun")
        for feature in features:
            shutil.rmtree(folder / "spotrun" / feature)

    def call(self, *words: str) -> str:
        """Run a verb of the copy, which must succeed. Return what it printed."""
        environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "SPOTRUN_STORE": str(self.runs),
            "SPOTRUN_LOCAL_CLOUD": str(self.runs / ".cloud"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "spotrun", *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, f"spotrun {words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout


TWO_EPOCHS = """
import torch

from spotrun import Loop

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loop = Loop(model=model, optimizer=optimizer)
for _ in loop.epochs(2):
    for x in loop.batches(torch.utils.data.DataLoader(torch.ones(4, 2), 2)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
JOB = "name: two\ntrain: {script: two.py}\nlocal: {time_scale: 30, boot: 1s}\n"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy without any feature, which has launched a run of two epochs."""
    folder = tmp_path_factory.mktemp("core")
    core = Copy(folder, FEATURES, folder / "runs")
    (folder / "two.py").write_text(TWO_EPOCHS)
    (folder / "job.yaml").write_text(JOB)
    core.call("launch", "job.yaml", "-y")
    return core


@pytest.mark.exhaustive
def test_core_verbs_run_without_any_feature(core: Copy) -> None:
    reports_and_ends(core)


@pytest.mark.nightly
@pytest.mark.exhaustive
@pytest.mark.parametrize("feature", FEATURES)
def test_core_verbs_run_without_a_feature(feature: str, core: Copy, tmp_path: Path) -> None:
    reports_and_ends(Copy(tmp_path, [feature], core.runs))


def reports_and_ends(copy: Copy) -> None:
    assert [run["state"] for run in json.loads(copy.call("status", "--json"))] == ["completed"]
    assert json.loads(copy.call("report", "two", "--json"))["state"] == "completed"
    assert "all of its instances have ended" in copy.call("down", "two", "-y")
