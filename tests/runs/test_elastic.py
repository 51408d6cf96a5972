"""Elastic trainings end with the same bits on any number of processes, which may change at each restart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spotrun.trainer_link import Refused, SnapshotTaken
from tests.support.repository import EXAMPLES, ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPT = ROOT / "tests/support/trainings/elastic_script.py"
LIGHTNING = SCRIPT.with_name("elastic_lightning.py")
WORLDS = (4, 3, 2, 1, 4)
OFTEN = ("twice", "hooks")
"""Variants that `make test` trains. The others are in `make nightly`."""


def job_of(variant: str, ranks: int, virtual_ranks: int = 4, script: Path = SCRIPT) -> dict[str, Any]:
    return {"script": str(script), "variant": variant, "ranks": ranks, "virtual_ranks": virtual_ranks}


def assert_same_bits(zygote: Zygote, folder: Path, variant: str, script: Path, kills: Sequence[str]) -> None:
    """Compare a training on WORLDS, killed at `kills` in between, with an undisturbed one on four processes."""
    straight = Agent(zygote, job_of(variant, 4, script=script), folder / "straight").run()
    agent = Agent(zygote, job_of(variant, WORLDS[0], script=script), folder / "changing", every_steps=1)
    for world, kill in zip(WORLDS, (*kills, None), strict=True):
        agent.job = job_of(variant, world, script=script)
        assert agent.attempt(kill=kill) == ("finished" if kill is None else "killed"), agent.log.read_text()[-3000:]
    assert agent.result() == straight
    assert agent.snapshot is not None
    assert agent.snapshot.step > 5


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name not in OFTEN))
        for name in ("plain", "workers", "accumulated", "scaled", "branches", "twice")
    ],
)
def test_training_on_changing_numbers_of_processes_has_the_bits_of_an_undisturbed_one(
    zygote: Zygote, tmp_path: Path, variant: str
) -> None:
    assert_same_bits(zygote, tmp_path, variant, SCRIPT, ("at:3", "at:2", "at:5", "at:9"))


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name not in OFTEN))
        for name in ("plain", "workers", "accumulated", "scaled", "hooks", "plateau")
    ],
)
def test_training_with_lightning_has_the_same_bits_on_changing_numbers_of_processes(
    zygote: Zygote, tmp_path: Path, variant: str
) -> None:
    assert_same_bits(zygote, tmp_path, variant, LIGHTNING, ("at:3", "at:4", "at:7", "at:9"))


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("metric", "training_step updates a metric of torchmetrics"),
        ("collective", "training_step calls torch.distributed.all_gather"),
        ("uneven", "only some micro-batches log a value"),
    ],
)
def test_training_step_that_depends_on_the_number_of_processes_is_refused(
    zygote: Zygote, tmp_path: Path, variant: str, reason: str
) -> None:
    agent = Agent(zygote, job_of(variant, 1 if variant == "uneven" else 2, script=LIGHTNING), tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    assert reason in agent.told(Refused)[0].reason
    assert agent.told(Refused)[0].hint.startswith("log ")


def test_training_with_lightning_begins_with_the_same_bits(zygote: Zygote, tmp_path: Path) -> None:
    """Also without a checkpoint that the processes share: a model that is made late, and metrics that count."""
    found = [Agent(zygote, job_of("hooks", n, script=LIGHTNING), tmp_path / str(n)).run() for n in (3, 1)]
    assert found[0] == found[1]


def test_eight_virtual_ranks_have_the_same_bits_on_three_processes_and_on_one(zygote: Zygote, tmp_path: Path) -> None:
    found = [Agent(zygote, job_of("scaled", n, 8), tmp_path / str(n)).run() for n in (3, 1)]
    assert found[0] == found[1]


def test_checkpoint_of_other_virtual_ranks_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    def kill(agent: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken) and agent.attempts == 1:
            agent.kill()

    agent = Agent(zygote, job_of("plain", 1), tmp_path, every_steps=1, on_message=kill)
    assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
    agent.job = job_of("plain", 1, 2)
    assert agent.attempt() == "refused"
    log = agent.log.read_text()
    assert "the checkpoint has 4 virtual ranks, and this training has 2 virtual ranks" in log
    assert "write elastic: {virtual_ranks: 4}, or start a new run" in log


def test_more_processes_than_virtual_ranks_are_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job_of("plain", 2, 1), tmp_path)
    assert agent.attempt() == "refused"
    assert "2 processes cannot share 1 virtual ranks" in agent.log.read_text()


def test_processes_whose_weights_differ_are_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job_of("apart", 2), tmp_path)
    assert agent.attempt() == "refused"
    assert "the processes have different weights" in agent.log.read_text()


def verified(job: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(job), "--json", *words]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.nightly
def test_example_has_the_same_bits_with_other_numbers_of_processes() -> None:
    found = verified(EXAMPLES / "elastic.yaml", "--worlds", "4,2,1,3")
    assert found["identical"]
    assert (found["worlds"], found["resumes_from_checkpoint"]) == ([4, 2, 1, 3], 3)


@pytest.mark.nightly
def test_gang_that_shrinks_and_grows_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "elastic.py", tmp_path / "train.py")
    (tmp_path / "job.yaml").write_text(GANG)
    found = verified(tmp_path / "job.yaml", "--kills", "2", "--keep")
    assert found["identical"]
    why = [sys.executable, "-m", "spotrun", "why"]
    histories = [
        subprocess.run([*why, str(run)], capture_output=True, text=True, check=True).stdout
        for run in Path(found["folder"]).glob("runs/job-*")
    ]
    shutil.rmtree(found["folder"])
    assert any("1 member is ready to join" in history for history in histories)


GANG = """
workdir: .
run: >-
  torchrun --nnodes $SPOTRUN_NUM_NODES --node-rank $SPOTRUN_NODE_RANK --nproc-per-node $SPOTRUN_NUM_GPUS_PER_NODE
  --master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py
num_nodes: 2
elastic: {virtual_ranks: 4}
resources: {cloud: local, accelerators: V100:1}
"""
