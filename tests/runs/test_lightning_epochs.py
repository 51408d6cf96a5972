"""
A killed training goes on in its epoch and in the next ones as if nothing had happened, where epochs are not alike:
samplers that depend on the epoch, on their own past or on a hook, and iterables without an end.
"""

from __future__ import annotations

import json

import pytest

from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same

PLACES = ["batch:0:3", "epoch_end:0", "start:1:0", "batch:1:3", "epoch_end:1", "batch:2:2", "start:3:1", "batch:3:3"]
FEW = ["start:1:0", "batch:2:2"]
FOUR = {"max_epochs": 4}
FIVE_BATCHES = FOUR | {"limit_train_batches": 5}
EPOCHS = {
    "buckets, whose number depends on the epoch": ({"loader": "buckets"}, FOUR),
    "the same in workers": ({"loader": "buckets", "workers": 2, "persistent": True}, FOUR),
    "the same, and validation twice an epoch": ({"loader": "buckets"}, FOUR | {"val_check_interval": 0.5}),
    "a sampler that counts its passes": ({"loader": "counting sampler"}, FOUR),
    "a schedule that asks how long training takes": ({"loader": "counting sampler", "scheduler": "onecycle"}, FOUR),
    "batches that a hook lets grow": ({"loader": "batches that grow", "variant": "batches that grow"}, FOUR),
    "samples that a hook weighs": ({"loader": "weights of samples", "variant": "hard samples first"}, FOUR),
    "epochs that a hook cuts short": ({"variant": "epochs cut short", "loggers": ["CSVLogger"]}, FOUR),
    "a sampler that never stops and has a length": ({"loader": "endless with a length"}, FOUR),
    "a generator that never stops": ({"loader": "iterator"}, FIVE_BATCHES),
    "a dataset that is its own iterator": ({"loader": "dataset that is an iterator"}, FIVE_BATCHES),
    "a dataset that never stops": ({"loader": "forever"}, FIVE_BATCHES),
    "a dataset that never stops, in a worker": ({"loader": "forever", "workers": 1}, FIVE_BATCHES),
}


REPRESENTATIVES = (
    "the same in workers",
    "a schedule that asks how long training takes",
    "batches that a hook lets grow",
    "epochs that a hook cuts short",
    "a sampler that never stops and has a length",
    "a dataset that is its own iterator",
    "a dataset that never stops, in a worker",
)


BUCKETS = "buckets, whose number depends on the epoch"
PATTERNS = {
    "the same in workers": f"{BUCKETS}, in workers",
    "the same, and validation twice an epoch": f"{BUCKETS}, and validation twice an epoch",
}


@pytest.mark.pattern("exact", "Lightning", of="name", texts=PATTERNS)
@pytest.mark.parametrize(
    ("name", "kills"),
    [pytest.param(name, FEW, id=name) for name in REPRESENTATIVES]
    + [pytest.param(name, PLACES, id=f"{name}, all places", marks=pytest.mark.nightly) for name in EPOCHS],
)
def test_epochs_that_are_not_alike_go_on_as_they_would_have(zygote, tmp_path, name, kills):
    loader, trainer = EPOCHS[name]
    job = {"scheduler": "epoch", "patient": True, "trainer": trainer} | loader
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert_same(straight, agent.run(kills))


def test_an_epoch_has_as_many_batches_as_it_would_have_had(zygote, tmp_path):
    job = {"loader": "buckets", "scheduler": "epoch", "patient": True, "trainer": FOUR}
    agent = Agent(zygote, job, tmp_path, every_steps=1)
    result = agent.run(["batch:1:3"])
    epochs = [line[1] for line in map(json.loads, result["trace"]) if line[0] == "train"]
    assert [epochs.count(epoch) for epoch in range(4)] == [9, 8, 9, 8]
