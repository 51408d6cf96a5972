"""
A killed training goes on with the weights that it had, whatever the script shows of them: averages in their place,
adapters alone, a pruned model, other names. See spotrun/training/weights.py.
"""

from __future__ import annotations

import pytest
import torch

from spotrun.checkpoint.snapshot import read_image
from spotrun.lightning.checkpoint_file import export
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same

PLACES = ["batch:0:3", "epoch_end:0", "start:1:1", "validation:1:8", "batch:2:2", "train_end"]
PLACE = ["start:1:1"]

TRAININGS = {
    "averages of a callback are saved as the weights": {"variant": "average as weights"},
    "averages of the module are saved as the weights": {"variant": "average in the module"},
    "state_dict gives only the adapters of a backbone": {"variant": "adapters only"},
    "state_dict gives other names and another type": {"variant": "own names"},
    "a hook throws away what a finished model does not need": {"variant": "nearly nothing"},
    "hooks of the start write to the weights": {"variant": "weights of the start"},
    "the checkpoint is pruned for good": {"variant": "pruned"},
    "a pruned model goes back to its first weights": {"variant": "lottery tickets"},
    "buffers grow, and a parameter comes": {"variant": "memory that grows"},
    "hyper-parameters change with the steps": {"variant": "hyper-parameters that change"},
}


REPRESENTATIVES = (
    "averages of the module are saved as the weights",
    "state_dict gives only the adapters of a backbone",
    "a hook throws away what a finished model does not need",
    "hooks of the start write to the weights",
    "a pruned model goes back to its first weights",
    "buffers grow, and a parameter comes",
    "hyper-parameters change with the steps",
)


@pytest.mark.pattern("exact", "Lightning")
@pytest.mark.parametrize(
    ("name", "kills"),
    [pytest.param(name, PLACE, id=name) for name in REPRESENTATIVES]
    + [pytest.param(name, PLACES, id=f"{name}, all places", marks=pytest.mark.nightly) for name in TRAININGS],
)
def test_a_killed_training_goes_on_with_the_weights_that_it_had(zygote, tmp_path, name, kills):
    job = TRAININGS[name] | {"patient": True}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(kills))
    ended = agent.result()
    assert agent.run() == ended, "nothing is left to train, and the weights are there"


def test_an_exported_checkpoint_shows_the_weights_as_the_script_does(zygote, tmp_path):
    agent = Agent(zygote, {"variant": "average as weights", "patient": True}, tmp_path, every_steps=1)
    assert agent.attempt(kill="batch:1:3") == "killed"
    state, _ = read_image(bytearray(agent.image))
    export(bytearray(agent.image), tmp_path / "out.ckpt")
    file = torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert file["decay"] == 0.9
    assert not [name for name in file if name.startswith("spotrun")]
    living, shown = state["spotrun_weights"]["own"]["net.0.weight"], file["state_dict"]["net.0.weight"]
    assert shown.shape == living.shape
    assert not torch.equal(shown, living)
