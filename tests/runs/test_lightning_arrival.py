"""Training begins with a checkpoint of which the rest is still coming, and nobody can tell from what it does."""

from __future__ import annotations

import pytest

from spotrun.checkpoint.snapshot import read_image
from spotrun.trainer_link import Progress
from tests.support.eventually import eventually
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same

AS_USUAL = {
    "as usual": {},
    "accumulation": {"trainer": {"accumulate_grad_batches": 3}},
    "manual optimisation": {"manual": True, "scheduler": "epoch"},
    "gradients that are clipped": {"trainer": {"gradient_clip_val": 0.1}},
}


class Watching(Agent):
    """Sends the rest of a checkpoint once its trainer has computed a batch, and then does `when_computed`."""

    def __init__(self, zygote, job, folder):
        self.computed = folder / "computed"
        super().__init__(zygote, job | {"computed": str(self.computed)}, folder, every_steps=1)
        self.when_computed = lambda: None

    def await_rest(self):
        trainer = str(self.pid)
        eventually(lambda: trainer in self.computed.read_text().split())
        self.when_computed()


@pytest.mark.parametrize("name", AS_USUAL)
def test_a_batch_is_computed_while_the_state_of_optimizers_is_coming(zygote, tmp_path, name):
    job = AS_USUAL[name]
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Watching(zygote, job, tmp_path / "killed")
    assert agent.attempt(kill="batch:1:4") == "killed"
    heard = len(agent.told(Progress))
    progress = []
    agent.when_computed = lambda: progress.append(len(agent.told(Progress)) - heard)
    assert_same(straight, agent.run())
    assert progress == [0], "a batch has ended without the state of optimizers"


def test_a_hook_that_is_shown_the_checkpoint_is_shown_all_of_it(zygote, tmp_path):
    job = {"load_hook": True}
    agent = Agent(zygote, job, tmp_path, every_steps=1)
    assert agent.attempt(kill="batch:1:4") == "killed"
    agent.run()
    state, _ = read_image(bytearray(agent.image))
    assert state["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.5


def test_a_trainer_whose_agent_goes_before_all_has_come_ends_by_itself(zygote, tmp_path):
    agent = Watching(zygote, {"agent_gone_s": 0.3}, tmp_path)
    assert agent.attempt(kill="batch:1:4") == "killed"
    heard = len(agent.told(Progress))
    agent.when_computed = lambda: agent.link.close()
    assert agent.attempt() == "failed"
    assert len(agent.told(Progress)) == heard
    assert not (tmp_path / "result.json").exists()
