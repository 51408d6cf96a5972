"""
What training owes to every framework behind the port, and every framework to training: a training that is killed at
any boundary and resumed ends with the same bits. Lightning, transformers, a toy of one file and a script with a `Loop`
pass the same suite.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from spotrun.checkpoint.snapshot import read_image
from spotrun.trainer_link import EpochEnded, Finished, Hello, Progress, Refused, SnapshotTaken
from spotrun.training.framework import OPTIMIZERS, STEP, WEIGHTS
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.trainers import Zygote

FRAMEWORKS = ("pytorch_lightning", "toy", "transformers", "loop")
BATCHES = 8
TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as usual": ({}, {}),
    "accumulation, validation within it": ({}, {"accumulate_grad_batches": 3, "val_check_interval": 0.5}),
    "a stream with a state": ({"loader": "stateful stream", "scheduler": "epoch"}, {}),
}
OF_EACH_KIND = [f"start:0:{BATCHES - 3}", f"batch:0:{BATCHES}", f"validation:0:{BATCHES}", "start:1:0", "train_end"]
EVERY_BOUNDARY = [
    place
    for epoch in (0, 1)
    for place in (
        *(f"start:{epoch}:{batch}" for batch in range(BATCHES)),
        f"batch:{epoch}:{BATCHES}",
        f"validation:{epoch}:{BATCHES}",
        f"epoch_end:{epoch}",
    )
] + ["train_end"]


@pytest.fixture(params=FRAMEWORKS)
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def job_of(package: str, job: dict[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    return {"package": package, "digests": True} | (job or {}) | {"trainer": {"max_epochs": 2} | trainer}


def trained(result: dict[str, Any]) -> list[Any]:
    return [line for line in map(json.loads, result["trace"]) if line[0] == "train"]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_kill_at_a_boundary_of_each_kind_changes_no_bit(
    zygote: Zygote, tmp_path: Path, package: str, name: str
) -> None:
    """Of a training that accumulates gradients those are enough that are within them, or within an epoch."""
    job, options = TRAININGS[name]
    job = job_of(package, job, **options)
    straight = Agent(zygote, job, tmp_path / "straight").run()
    kills = OF_EACH_KIND if name == "as usual" else ["start:0:5"]
    assert_same(straight, Agent(zygote, job, tmp_path / "killed", every_steps=1).run(kills))


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRAININGS)
def test_a_kill_at_each_boundary_of_two_epochs_changes_no_bit(
    zygote: Zygote, tmp_path: Path, package: str, name: str
) -> None:
    """Weights, optimizer, losses, metrics, the order of samples, and every generator after each batch."""
    job, options = TRAININGS[name]
    job = job_of(package, job, **options)
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(EVERY_BOUNDARY))
    assert agent.attempts == len(EVERY_BOUNDARY) + 1
    assert len(trained(straight)) == 2 * BATCHES


def test_a_snapshot_is_at_a_boundary_and_says_which(zygote: Zygote, tmp_path: Path, package: str) -> None:
    agent = Agent(zygote, job_of(package, accumulate_grad_batches=3), tmp_path, every_steps=1)
    agent.run(["batch:0:8", "batch:1:7"])
    taken = agent.told(SnapshotTaken)
    assert {(each.epoch, each.batch) for each in taken} <= {(epoch, batch) for epoch in (0, 1) for batch in (3, 6, 8)}
    steps = {(0, 3): 1, (0, 6): 2, (0, 8): 3, (1, 3): 4, (1, 6): 5, (1, 8): 6}
    assert {each.step == steps[each.epoch, each.batch] for each in taken} == {True}
    assert [each.epoch_ended for each in taken if each.final] == [True]
    assert [each.final for each in taken if each.step == 6] == [True], "the last step is in one snapshot"


def test_an_image_is_the_frameworks_own_state_and_ours_with_optimizers_last(
    zygote: Zygote, tmp_path: Path, package: str
) -> None:
    agent = Agent(zygote, job_of(package), tmp_path, every_steps=1)
    agent.run()
    state, meta = read_image(bytearray(agent.image))
    assert {WEIGHTS, STEP, "spotrun"} <= state.keys()
    assert list(state)[-1] == OPTIMIZERS
    assert {"place", "seed", "logs", "mlflow", "mlflow_client", "ranks"} <= state["spotrun"].keys()
    own = ["metrics", "files", "data", "module", "python", "averages", "buffers"]
    assert [list(rank) for rank in state["spotrun"]["ranks"]] == [own]
    assert (meta["epoch"], meta["batch"], meta["step"]) == (1, 8, state[STEP])
    (hello,) = agent.told(Hello)
    assert hello.framework == meta["framework"]
    assert hello.framework.startswith(package.partition(".")[0])


def test_agent_receives_each_epoch_and_the_end(zygote: Zygote, tmp_path: Path, package: str) -> None:
    agent = Agent(zygote, job_of(package), tmp_path)
    agent.run()
    ends = [(each.epoch, each.step, each.batches, each.samples) for each in agent.told(EpochEnded)]
    assert ends == [(0, 8, 8, 40), (1, 16, 8, 40)]
    losses = {"loss", "eval_loss"} if package == "transformers" else {"train_loss", "val_loss"}
    assert losses <= agent.told(EpochEnded)[0].metrics.keys()
    first = next(each for each in agent.told(Progress) if each.phase == "train")
    assert (first.epoch, first.batch, first.batches, first.step, first.epochs) == (0, 1, 8, 1, 2)
    assert agent.messages[-1] == Finished(step=16, epoch=1)


def test_a_finished_training_that_is_resumed_does_no_step(zygote: Zygote, tmp_path: Path, package: str) -> None:
    agent = Agent(zygote, job_of(package), tmp_path)
    first = agent.run()
    del agent.messages[:]
    assert agent.run() == first
    assert not agent.told(Progress)
    assert not agent.told(SnapshotTaken), "its last one is durable"
    assert agent.messages[-1] == Finished(step=16, epoch=1, resumed=True)


def test_a_drained_training_stands_still_after_its_final_snapshot(zygote: Zygote, tmp_path: Path, package: str) -> None:
    job = job_of(package, {"slow_s": 0.05})
    straight = Agent(zygote, job, tmp_path / "straight").run()

    def drain(agent: Agent, message: object) -> None:
        if isinstance(message, Progress) and message.step == 1:
            agent.drain()
        if isinstance(message, SnapshotTaken) and message.final:
            threading.Timer(0.1, agent.kill).start()

    agent = Agent(zygote, job, tmp_path / "drained", every_steps=1, on_message=drain)
    assert agent.attempt() == "killed"
    assert isinstance(agent.messages[-1], SnapshotTaken)
    assert agent.messages[-1].final
    agent.on_message = None
    assert_same(straight, agent.run())


def test_a_loss_that_is_not_finite_is_noticed(zygote: Zygote, tmp_path: Path, package: str) -> None:
    agent = Agent(zygote, job_of(package, {"nan_at": 12}), tmp_path, every_steps=1)
    agent.run()
    finite = {each.step: each.finite for each in agent.told(SnapshotTaken)}
    assert any(finite.values())
    assert not any(good for step, good in finite.items() if step > 12)


def test_agent_receives_the_step_at_which_a_script_fails(zygote: Zygote, tmp_path: Path, package: str) -> None:
    agent = Agent(zygote, job_of(package), tmp_path, every_steps=1)
    assert agent.attempt(kill="error:1:2") == "failed"
    assert [each.step for each in agent.told(Progress)][-1] == 10


@pytest.mark.parametrize(
    ("package", "job"),
    [
        ("pytorch_lightning", {"callbacks": {"LearningRateFinder": {}}}),
        ("toy", {"unsupported": True}),
        ("transformers", {"arguments": {"auto_find_batch_size": True}}),
        ("loop", {"unsupported": True}),
    ],
)
def test_problems_end_a_training_before_its_first_step(
    zygote: Zygote, tmp_path: Path, package: str, job: dict[str, Any]
) -> None:
    agent = Agent(zygote, job_of(package, job), tmp_path)
    assert agent.attempt() == "refused"
    assert not agent.told(Progress)
    (refused,) = agent.told(Refused)
    assert refused.reason
    assert refused.hint
