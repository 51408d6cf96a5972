"""
A killed training goes on where models and optimizers are built in hooks while it runs: teachers, layers and groups that
come, optimizers that are exchanged, and optimizers that hold others.
"""

from __future__ import annotations

import pytest

from spotrun.trainer_link import Refused
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.late import LATE

PLACES = ["batch:0:2", "batch:0:6", "epoch_end:0", "start:1:0", "batch:1:3", "validation:1:8", "batch:2:2", "train_end"]
CANNOT = {
    "forgetful": "the checkpoint's model has late, which this one has not when it goes on",
    "stubborn": "Stubborn does not load its state: KeyError: 'momentum'",
}


@pytest.mark.parametrize("variant", [name for name in LATE if name not in CANNOT])
def test_what_is_built_late_is_there_after_a_resume(zygote, tmp_path, variant):
    job = {"variant": variant, "patient": True, "scheduler": "epoch"}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(PLACES))
    ended = agent.result()
    assert agent.run() == ended, "nothing is left to train, and all is there"


@pytest.mark.parametrize("variant", CANNOT)
def test_a_state_that_does_not_load_is_refused_in_a_line(zygote, tmp_path, variant):
    agent = Agent(zygote, {"variant": variant, "patient": True, "scheduler": "epoch"}, tmp_path, every_steps=1)
    assert agent.attempt(kill="batch:0:6") == "killed"
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    assert refused.reason == CANNOT[variant]
    assert refused.hint
