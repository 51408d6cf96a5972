"""
A killed training goes on where models and optimizers are built in hooks while it runs: teachers, layers and groups that
come, optimizers that are exchanged, and optimizers that hold others.
"""

from __future__ import annotations

import pytest

from spotrun.trainer_link import Refused, SnapshotTaken
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.late import LATE

PLACES = ["batch:0:2", "batch:0:6", "epoch_end:0", "start:1:0", "batch:1:3", "validation:1:8", "batch:2:2", "train_end"]
FEW = ["batch:0:6", "batch:2:2"]
REPRESENTATIVES = (
    "teacher in on_train_batch_start",
    "groups in on_train_epoch_end",
    "backbone finetuning",
    "exchanged with its schedule",
    "layers that come",
    "average that comes",
    "lookahead of both",
    "sharpness aware",
    "gates that change",
)
"""One of each thing that may be built, and each hook that may do it at least once."""
CANNOT = {"stubborn": "Stubborn cannot load its state: KeyError: 'momentum'"}
AT_THE_END = "layer in on_train_end"
COME_OR_GO = {
    "layer in on_train_batch_end": "late, which is new",
    "layer in on_train_epoch_end": "late, which is new",
    "average in on_train_batch_start": "average, which is new",
    "gate in on_train_batch_end": "gate, which is a different module than before",
    "nothing in on_before_optimizer_step": "rest, which is gone",
}


PATTERNS = {
    **{name: f"a {name.replace('teacher', 'teacher that is made')}" for name in LATE if name.startswith("teacher")},
    **{name: f"parameter {name.replace(' in ', ' added in ')}" for name in LATE if name.startswith("groups")},
    **{name: f"an optimizer {name}" for name in LATE if name.startswith("exchanged")},
    "backbone finetuning": "Lightning's BackboneFinetuning",
    "schedule that is exchanged": "a schedule that is exchanged in the second epoch",
    "layers that come": "a new layer in each epoch",
    "average that comes": "an average of the model that a callback makes in a batch",
    "lookahead": "Lookahead around an optimizer",
    "slow buffers": "a wrapper of an optimizer without the base's `__init__`",
    "delegating": "a wrapper of an optimizer that has no state of its own",
    "both": "one optimizer for matrices and one for the rest",
    "lookahead of both": "Lookahead around two optimizers",
    "sharpness aware": "sharpness-aware minimization (two steps for each batch)",
    "counting": "an optimizer that keeps a number outside its state",
    "tied in a batch": "weights that are tied and parted in the middle of an epoch",
    "gates that change": "an activation that is exchanged, and a dropout that goes",
    "layer in on_train_batch_end": "a layer that comes in on_train_batch_end",
    "layer in on_train_epoch_end": "a layer that comes in on_train_epoch_end",
    "average in on_train_batch_start": "an AveragedModel that becomes part of the module in a batch",
    "gate in on_train_batch_end": "a module that is exchanged in on_train_batch_end",
    "nothing in on_before_optimizer_step": "a module that goes in on_before_optimizer_step",
}


@pytest.mark.pattern("exact", "Lightning", of="variant", texts=PATTERNS)
@pytest.mark.parametrize(
    ("variant", "kills"),
    [pytest.param(name, FEW, id=name) for name in REPRESENTATIVES]
    + [
        pytest.param(name, PLACES, id=f"{name}, all places", marks=pytest.mark.nightly)
        for name in LATE
        if name not in CANNOT | COME_OR_GO and name != AT_THE_END
    ],
)
def test_late_built_modules_are_there_after_a_resume(zygote, tmp_path, variant, kills):
    job = {"variant": variant, "patient": True, "scheduler": "epoch"}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(kills))
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


@pytest.mark.pattern("refused later", "Lightning", of="variant", texts=PATTERNS)
@pytest.mark.parametrize("variant", COME_OR_GO)
def test_module_that_no_resume_could_make_is_refused_when_it_appears(zygote, tmp_path, variant):
    agent = Agent(zygote, {"variant": variant, "patient": True, "scheduler": "epoch"}, tmp_path, every_steps=1)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    assert (
        refused.reason
        == f"a resume could not make the model as it is now, because the training changed it: {COME_OR_GO[variant]}"
    )
    assert refused.hint
    assert not [taken for taken in agent.told(SnapshotTaken) if taken.step > 8], "no checkpoint has it"


def test_module_that_appears_after_training_is_not_refused(zygote, tmp_path):
    job = {"variant": AT_THE_END, "patient": True, "scheduler": "epoch"}
    assert Agent(zygote, job, tmp_path, every_steps=1).attempt() == "finished"
