"""
What the process that calls fit() cannot carry is refused before the first step: training that another process does, and
weights that no checkpoint would hold.
"""

from __future__ import annotations

import pytest

from spotrun.trainer_link import Finished, Progress, Refused
from tests.support.trainings.agent import Agent

OTHERS_TRAIN = """
import os
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

pl.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, {strategy}).fit(BoringModel())
print("fit() has returned")
"""
IN_PLACE_OF_DDP = """
class Elsewhere:
    is_interactive_compatible = False
    def launch(self, function, *args, trainer=None, **kwargs):
        if os.fork() == 0:
            function(*args, **kwargs)
            os._exit(0)
        os.wait()

class OnACluster(pl.strategies.SingleDeviceStrategy):
    def _configure_launcher(self):
        self._launcher = Elsewhere()
"""
STRATEGIES = {
    "ddp_spawn": 'strategy="ddp_spawn", devices=2',
    "ddp_fork": 'strategy="ddp_fork", devices=2',
    "ddp_notebook, one process": 'strategy="ddp_notebook", devices=1',
    "a launcher of another package": 'strategy=OnACluster("cpu")',
}


@pytest.mark.pattern("refused", "Lightning")
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_whose_processes_are_not_this_one_is_refused_by_fit(zygote, tmp_path, name):
    script = tmp_path / "script.py"
    text = OTHERS_TRAIN.format(strategy=STRATEGIES[name])
    script.write_text(text.replace("\npl.Trainer", f"{IN_PLACE_OF_DDP}\npl.Trainer"))
    agent = Agent(zygote, {"script": str(script)}, tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    assert "hands the training to processes that it starts" in refused.reason
    assert 'strategy="ddp"' in refused.hint
    assert not agent.told(Progress)


BORING = """
import os, sys
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

def train():
    options = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0}
    pl.Trainer(max_steps=2, accelerator="cpu", **options).fit(BoringModel())
"""


def test_a_training_that_lost_its_agent_on_the_way_is_an_error(zygote, tmp_path):
    """As one that outlives its trainer, or a shell that has kept the variable: nobody listens there."""
    script = tmp_path / "script.py"
    script.write_text(BORING + 'os.environ["SPOTRUN_AGENT"] += "-of-another"\ntrain()\n')
    agent = Agent(zygote, {"script": str(script)}, tmp_path)
    assert agent.attempt() == "failed"
    log = agent.log.read_text()
    assert "this process cannot reach the agent" in log
    assert "start the training with `spotrun launch`" in log
    assert not agent.told(Progress)


def test_a_child_of_a_training_may_train_something_of_its_own(zygote, tmp_path):
    script = tmp_path / "script.py"
    child = "pid = os.fork()\nif not pid:\n    train()\n    os._exit(3)\nassert os.waitpid(pid, 0)[1] >> 8 == 3\n"
    script.write_text(f"{BORING}train()\n{child}")
    agent = Agent(zygote, {"script": str(script)}, tmp_path)
    assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
    assert len(agent.told(Finished)) == 1


LEAVING_OUT = """
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from torch import nn

class Model(BoringModel):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.head = nn.Linear(2, 2)
        self.blocks = [nn.Linear(2, 2)]
        self.scales = {"a": [nn.Parameter(torch.ones(()))]}
    def configure_optimizers(self):
        return torch.optim.SGD([WHAT], lr=0.1)
    MORE

pl.Trainer(max_steps=2, limit_val_batches=0, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Model())
"""
DROPS_THE_HEAD = """
    def state_dict(self, *args, **kwargs):
        return {n: t for n, t in super().state_dict(*args, **kwargs).items() if not n.startswith(("head", "frozen"))}
"""
DELETES_THE_HEAD = """
    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["head.weight"]
"""
KEEPS_IT_BESIDE = """
    def on_save_checkpoint(self, checkpoint):
        checkpoint["head's"] = checkpoint["state_dict"].pop("head.weight"), self.blocks[0].state_dict()
"""
RENAMES = """
    def state_dict(self, *args, **kwargs):
        return {"net." + n: t for n, t in super().state_dict(*args, **kwargs).items() if not n.startswith("frozen")}
"""
LEFT_OUT = {
    "in a plain list": ("*self.parameters(), *self.blocks[0].parameters()", "", "blocks[0].weight, blocks[0].bias"),
    "in a plain dict": ("*self.parameters(), self.scales['a'][0]", "", "scales['a'][0]"),
    "held by no object": ("*self.parameters(), nn.Parameter(torch.ones(3))", "", "one of shape (3,) in optimizer 0"),
}


def leaving_out(zygote, folder, what, more):
    (folder / "script.py").write_text(LEAVING_OUT.replace("WHAT", what).replace("MORE", more))
    return Agent(zygote, {"script": str(folder / "script.py")}, folder)


@pytest.mark.pattern("refused", "Lightning", of="name", texts={name: f"trained weights, {name}" for name in LEFT_OUT})
@pytest.mark.parametrize("name", LEFT_OUT)
def test_trained_weights_that_no_checkpoint_holds_are_named(zygote, tmp_path, name):
    what, more, names = LEFT_OUT[name]
    agent = leaving_out(zygote, tmp_path, what, more)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    assert refused.reason == f"an optimizer trains weights that are not in the model: {names}"
    assert "nn.ModuleList" in refused.hint
    assert not [progress for progress in agent.told(Progress) if progress.step]


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("*self.parameters()", DROPS_THE_HEAD),
        ("*self.parameters()", DELETES_THE_HEAD),
        ("*self.parameters(), *self.blocks[0].parameters()", KEEPS_IT_BESIDE),
        ("*self.parameters()", RENAMES),
    ],
    ids=[
        "state_dict may leave them out",
        "so may a hook",
        "another place of the checkpoint will do",
        "and another name",
    ],
)
def test_weights_that_a_checkpoint_holds_anywhere_are_not_refused(zygote, tmp_path, what, more):
    agent = leaving_out(zygote, tmp_path, what, more)
    assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
