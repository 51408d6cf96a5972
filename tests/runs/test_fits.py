"""Scripts that call fit() several times: what they find after each fit() is the same after any history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotrun.trainer_link import EpochEnded, Finished, FitBegins, Progress, Refused, SnapshotTaken
from tests.support.trainings import fits_script
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPT = str(Path(fits_script.__file__))


def job(fits: str, **more: Any) -> dict[str, Any]:
    return {"script": SCRIPT, "fits": fits, **more}


def results(agent: Agent) -> Any:
    return json.loads((agent.folder / "result.json").read_text())["fits"]


IN_EACH = [
    "1:batch:0:3", "1:epoch_end:0", "1:train_end", "1:fit_end", "after:1", "tested:1", "2:start:0:0", "2:batch:0:3",
    "2:batch:1:1", "2:train_end", "after:2", "tested:2",
]  # fmt: skip
# One Trainer goes on counting.
OF_ONE = [place.replace("2:start:0", "2:start:2").replace("2:batch:0", "2:batch:2") for place in IN_EACH]
OF_ONE = [place.replace("2:batch:1:1", "2:batch:3:1") for place in OF_ONE]
OF_STEPS = [place for place in IN_EACH if place != "2:batch:1:1"] + ["after:2"]


SCRIPTS = {
    "one_trainer": "one Trainer that fits twice",
    "two_trainers": "two Trainers, one after the other",
    "folds": "a fit for each fold",
    "until_good": "fits until the result is good enough",
    "nothing_to_train": "a fit in which nothing is left to train, between two others",
}


@pytest.mark.pattern("exact", "Lightning", of="name", texts=SCRIPTS)
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.nightly), 3], ids=["all places", "each third place"]
)
@pytest.mark.parametrize(
    ("name", "kills", "fits"),
    [
        ("one_trainer", OF_ONE, 2),
        ("two_trainers", OF_STEPS, 2),
        ("folds", [*IN_EACH[::2], "3:batch:0:2", "3:batch:1:3", "3:fit_end", "tested:3"], 3),
        ("until_good", ["1:batch:0:3", "after:1", "2:batch:0:2", "tested:2", "2:fit_end", "after:1"], None),
        ("nothing_to_train", ["after:1", "after:2", "3:batch:0:2", "3:batch:1:2", "after:3"], 3),
    ],
)
def test_each_fit_finds_and_leaves_what_it_would_have_without_a_kill(
    zygote: Zygote, tmp_path: Path, name: str, kills: list[str], fits: int | None, every: int
) -> None:
    straight = Agent(zygote, job(name), tmp_path / "straight")
    straight.run()
    agent = Agent(zygote, job(name), tmp_path / "killed", every_steps=1)
    agent.run(kills[every // 2 :: every])
    wanted, found = results(straight), results(agent)
    assert len(wanted) == (fits or len(wanted)) > 1
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(wanted, found, strict=True), 1):
        for what in one:
            assert other[what] == one[what], (number, what)
    assert "spotrun: " not in agent.log.read_text()


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        pytest.param(
            "one_trainer",
            ["1:batch:0:3", "after:1", "2:start:2:0", "2:batch:3:1", "tested:2"],
            marks=pytest.mark.nightly,
        ),
        (
            "two_trainers",
            ["1:train_end", "2:start:0:0", "2:start:0:0", "2:batch:0:3", "after:2"],
        ),
    ],
)
def test_each_fit_logs_where_it_would_have_without_a_kill(
    zygote: Zygote, tmp_path: Path, name: str, kills: list[str]
) -> None:
    # TensorBoard's writers name files by the second: where a fit and its test begin within one, one log is lost.
    logging = job(name, loggers=["CSVLogger"])
    wanted = Agent(zygote, logging, tmp_path / "straight").run()["logs"]
    assert wanted
    assert Agent(zygote, logging, tmp_path / "killed", every_steps=1).run(kills)["logs"] == wanted


def test_epochs_and_steps_count_on_over_fits(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job("folds"), tmp_path, every_steps=1)
    agent.run(["2:batch:0:3", "3:batch:1:2"])
    newest = {(each.epoch, each.step) for each in agent.told(EpochEnded)}
    assert sorted(newest) == [(0, 4), (1, 8), (2, 12), (3, 16), (4, 20), (5, 24)]
    steps = [(each.fit, each.step) for each in agent.told(SnapshotTaken)]
    assert {fit: max(step for of, step in steps if of == fit) for fit in (1, 2, 3)} == {1: 8, 2: 16, 3: 24}
    assert min(step for fit, step in steps if fit == 2) == 9
    ends = [(each.step, each.epoch, each.resumed) for each in agent.told(Finished)]
    # The first process ends one fit(), the second repeats that and ends another, the third repeats both.
    assert ends == [(8, 1, False), (8, 1, True), (16, 3, False), (8, 1, True), (16, 3, True), (24, 5, False)]
    assert [each.fit for each in agent.told(FitBegins)] == [2, 2, 3, 2, 3]
    assert max(each.epochs for each in agent.told(Progress)) == 6


def test_several_fits_of_two_processes(zygote: Zygote, tmp_path: Path) -> None:
    two = job("two_trainers", ranks=2, trainer={"devices": 2, "strategy": "ddp"})
    straight, agent = Agent(zygote, two, tmp_path / "straight"), Agent(zygote, two, tmp_path / "killed", every_steps=1)
    straight.run()
    agent.run(["1:batch:0:2", "after:1", "2:batch:0:1", "2:fit_end"])
    assert results(agent) == results(straight)


def test_a_finished_fit_does_no_step(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job("two_trainers"), tmp_path, every_steps=1)
    agent.run(["2:batch:0:3"])
    second = agent.messages.index(agent.told(Finished)[1])
    begun = max(n for n, message in enumerate(agent.messages[:second]) if type(message).__name__ == "Hello")
    assert not [each for each in agent.messages[begun:second] if isinstance(each, Progress | SnapshotTaken)]


@pytest.mark.parametrize("name", ["within_another", "after_an_error"])
def test_a_fit_that_begins_before_the_last_one_has_ended_is_refused(zygote: Zygote, tmp_path: Path, name: str) -> None:
    agent = Agent(zygote, job(name), tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    assert agent.told(Refused)[0].reason == "a fit() begins before the previous fit() has finished"


def test_a_tuner_after_a_fit_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, job("tuned"), tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    assert "tuner" in agent.told(Refused)[0].reason
