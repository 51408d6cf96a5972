"""A script that feeds its loss on Python objects ends with the same bits, whenever it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotrun.training.data.in_workers import KEPT_THERE
from spotrun.training.python_state.encoding import UntrackedChange
from tests.support.trainings import state_script
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.trainers import Zygote

SCRIPT = str(Path(state_script.__file__))
FEW = ["start:0:5", "epoch_end:0", "batch:1:5"]
OF_TWO = ["batch:0:3", "start:1:0", "validation:1:4", "batch:2:2", "train_end"]
KILLS = [
    "batch:0:3", "start:0:5", "batch:0:6", "validation:0:8", "epoch_end:0", "start:1:0", "batch:1:2", "batch:1:5",
    "validation:1:8", "batch:2:2", "epoch_end:2", "train_end",
]  # fmt: skip
"""Before and after the steps at which something changes: 5, 9 and 12."""


@pytest.mark.parametrize(
    ("job", "kills"),
    [
        pytest.param({}, KILLS, marks=pytest.mark.nightly),
        pytest.param({"workers": 1}, KILLS, marks=pytest.mark.nightly),
        pytest.param({"ranks": 2, "trainer": {"devices": 2, "strategy": "ddp"}}, OF_TWO, marks=pytest.mark.nightly),
        ({"workers": 1}, FEW),
        ({"ranks": 2, "trainer": {"devices": 2, "strategy": "ddp"}}, ["start:1:0"]),
    ],
    ids=["as it is", "a worker", "two processes", "a worker, few places", "two processes, a place"],
)
def test_python_objects_of_a_script_are_carried(
    zygote: Zygote, tmp_path: Path, job: dict[str, Any], kills: list[str]
) -> None:
    job = {"script": SCRIPT} | job
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    killed = agent.run(kills)
    assert_same(straight, killed)
    said = {line for line in agent.log.read_text().splitlines() if line.startswith("spotrun: ")}
    in_worker = {f"spotrun: {UntrackedChange('Rated.read', KEPT_THERE)}"} if "workers" in job else set()
    assert said <= in_worker, "what a worker counts is not what the training process has"
