"""
A training that is killed and resumed ends as the one that was not: the same bits in weights, optimizer, learning
rates, losses, metrics and sample order (promise I11). Trainers are real processes, and die by a real SIGKILL. See
tests/support/trainings.
"""

from __future__ import annotations

import json
import platform
import random
import shutil
import threading
from collections import Counter

import pytest

from spotrun.checkpoint.snapshot import read_image
from spotrun.trainer_link import EpochEnded, Finished, Hello, Progress, Refused, SnapshotTaken
from tests.support.checkpoint_images import image_bytes
from tests.support.trainings.agent import Agent
from tests.support.trainings.comparison import assert_same
from tests.support.trainings.trainers import Spawner


def trained(result, what="train"):
    return [line for line in map(json.loads, result["trace"]) if line[0] == what]


def exact(zygote, folder, job, kills, every_steps=1):
    """Train straight and through `kills`, and compare; returns the killed one's agent and result."""
    straight = Agent(zygote, job, folder / "straight").run()
    agent = Agent(zygote, job, folder / "killed", every_steps=every_steps)
    killed = agent.run(kills)
    assert_same(straight, killed)
    return agent, killed


# Places: "batch:e:n" in on_train_batch_end of the n-th batch of epoch e (8 batches); "start:e:n" with n done, in
# on_train_batch_start; "validation:e:n" in the validation after batch n; "epoch_end:e"; "train_end".
EVERYWHERE = [
    "batch:0:2", "batch:0:3", "start:0:5", "batch:0:6", "batch:0:7", "batch:0:8", "validation:0:8", "epoch_end:0",
    "start:1:0", "start:1:1", "batch:1:8", "validation:1:8", "batch:2:8", "epoch_end:2", "train_end",
]  # fmt: skip
SOME = ["batch:0:3", "batch:0:8", "epoch_end:0", "start:1:0", "validation:1:8", "batch:2:8"]
FEW = ["batch:0:3", "start:1:0", "validation:1:8"]

LOGGERS = ("mlflow", "tensorboardX")
"""What trainers with loggers of files import."""
TRAININGS = {
    "one cycle over all steps": ({}, EVERYWHERE),
    "import lightning": ({"package": "lightning.pytorch"}, SOME),
    "schedule by epoch": ({"scheduler": "epoch"}, SOME),
    "plateau of a validation metric": ({"scheduler": "plateau"}, SOME),
    "plateau of an epoch's training loss": ({"scheduler": "plateau", "monitor": "train_loss_epoch"}, FEW),
    "plateau by step": ({"scheduler": "plateau", "interval": "step", "monitor": "train_loss_step"}, FEW),
    "plateau, validation each second epoch": (
        {"scheduler": "plateau", "trainer": {"check_val_every_n_epoch": 2, "max_epochs": 4}},
        ["batch:0:3", "start:1:0", "validation:1:8", "start:2:0", "batch:2:8", "start:3:0"],
    ),
    "validation twice an epoch": (
        {"trainer": {"val_check_interval": 0.5}},
        ["batch:0:4", "validation:0:4", "batch:0:5", "validation:0:8", "start:1:0", "start:1:4", "validation:2:4"],
    ),
    "validation each 5 batches, across epochs": (
        {"trainer": {"check_val_every_n_epoch": None, "val_check_interval": 5}},
        ["batch:0:5", "validation:0:5", "batch:1:2", "validation:1:2", "start:1:3", "batch:2:8"],
    ),
    "accumulation": ({"trainer": {"accumulate_grad_batches": 3}}, SOME),
    "accumulation, validation within it": ({"trainer": {"accumulate_grad_batches": 3, "val_check_interval": 2}}, FEW),
    "accumulation that grows": ({"accumulation": {"0": 1, "1": 3}}, [*SOME[:4], "batch:1:5", *SOME[4:]]),
    "2 workers": ({"workers": 2}, ["batch:0:3", "validation:0:8", "batch:2:8"]),
    "2 persistent workers": (
        {"workers": 2, "persistent": True, "val_workers": 1, "val_persistent": True},
        ["batch:0:5", "start:1:0", "batch:1:3"],
    ),
    "early stopping": (
        {"early_stopping": 1, "min_delta": 0.2, "trainer": {"max_epochs": 6}},
        ["batch:0:3", "validation:0:8", "epoch_end:0", "validation:1:8", "epoch_end:1"],
    ),
    "max_steps within an epoch": (
        {"trainer": {"max_steps": 19, "max_epochs": -1}},
        ["batch:0:8", "validation:1:8", "batch:2:2", "train_end"],
    ),
    "max_steps at an epoch's end": ({"trainer": {"max_steps": 16, "max_epochs": -1}}, [*SOME[:5], "train_end"]),
    "limit_train_batches": (
        {"trainer": {"limit_train_batches": 5, "limit_val_batches": 2}},
        ["batch:0:5", "epoch_end:0", "start:1:0", "batch:2:5"],
    ),
    "should_stop set in mid-epoch": (
        {"stop_at": [1, 4], "trainer": {"max_epochs": 4}},
        ["batch:1:3", "validation:1:4", "epoch_end:1", "train_end"],
    ),
    "should_stop before min_epochs": (
        {"stop_at": [0, 4], "trainer": {"max_epochs": 4, "min_epochs": 2}},
        ["batch:0:5", "batch:1:3", "validation:1:8"],
    ),
    "samples drawn with replacement": ({"loader": "weighted"}, FEW),
    "the loader's own generator, drop_last": ({"loader": "generator", "samples": 43}, FEW),
    "a loader without batches": ({"loader": "no batches"}, ["batch:0:3", "start:1:0", "validation:1:10"]),
    "manual optimisation": ({"manual": True, "scheduler": "epoch"}, SOME),
    "a torchmetrics metric": ({"torchmetric": True}, FEW),
    "ModelCheckpoint": ({"checkpoints": True}, SOME),
    "ModelCheckpoint that saves nothing after its first epoch": (
        {"checkpoints": True, "saving": {"mode": "max", "save_top_k": 1}},
        ["start:1:0", "batch:2:3"],
    ),
    "LearningRateMonitor": ({"callbacks": {"LearningRateMonitor": {}}, "loggers": ["CSVLogger"]}, [*FEW, "train_end"]),
    "loaders made again each epoch": ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, FEW),
    "two loaders, the short one cycled": ({"loader": "two"}, ["batch:0:2", "start:0:3", "batch:0:5", *SOME[1:]]),
    "loaders until the shortest ends": (
        {"loader": "min_size", "trainer": {"max_epochs": 4}},
        ["batch:0:2", "batch:1:3", "start:2:0", "start:2:1"],
    ),
    "loaders until the longest ends": ({"loader": "max_size"}, ["batch:0:2", "batch:0:5", "start:1:0", "batch:2:8"]),
    "two loaders with workers": ({"loader": "two", "workers": 1, "persistent": True}, ["batch:0:4", "batch:1:4"]),
    "an IterableDataset, read again up to the place": ({"loader": "stream", "scheduler": "epoch"}, SOME),
    "an IterableDataset in 2 persistent workers": (
        {"loader": "stream", "scheduler": "epoch", "workers": 2, "persistent": True},
        ["batch:0:3", "start:1:0", "batch:1:5"],
    ),
    "an IterableDataset with a state": ({"loader": "stateful stream", "scheduler": "epoch"}, SOME),
    "an IterableDataset with a state, epochs cut short": (
        {"loader": "stateful stream", "scheduler": "epoch", "trainer": {"limit_train_batches": 5, "max_epochs": 4}},
        ["batch:0:3", "start:1:0", "batch:1:2", "start:3:1"],
    ),
    "torchdata's StatefulDataLoader": ({"torchdata": True}, FEW),
    "torchdata's StatefulDataLoader with workers": ({"torchdata": True, "workers": 2}, ["batch:0:3", "batch:1:8"]),
    "torchdata's, of an IterableDataset with a state": (
        {"torchdata": True, "loader": "stateful stream", "scheduler": "epoch"},
        FEW,
    ),
    "torchdata's, of an IterableDataset with a state in workers": (
        {"torchdata": True, "loader": "stateful stream", "scheduler": "epoch", "workers": 2},
        ["batch:0:3", "batch:0:8", "start:1:0", "batch:1:5"],
    ),
    "torchdata's, of an IterableDataset without a state": (
        {"torchdata": True, "loader": "stream", "scheduler": "epoch", "workers": 1},
        ["batch:0:3", "batch:1:8"],
    ),
    "a loader that is no DataLoader": ({"loader": "batches", "scheduler": "epoch"}, FEW),
    "overfit_batches": ({"trainer": {"overfit_batches": 4}}, ["batch:0:2", "batch:0:4", "start:1:0", "batch:2:3"]),
    "five interruptions in one epoch": ({}, ["batch:1:2", "batch:1:3", "start:1:4", "batch:1:6", "batch:1:7"]),
    "CSVLogger": ({"loggers": ["CSVLogger"], "trainer": {"val_check_interval": 0.5}}, FEW),
    "TensorBoardLogger": (
        {"loggers": ["TensorBoardLogger"], "slow_events_s": 0.005, "trainer": {"val_check_interval": 0.5}},
        SOME,
    ),
    "MLFlowLogger": ({"loggers": ["MLFlowLogger"], "trainer": {"val_check_interval": 0.5}}, FEW),
    "loggers of files that are too large to be carried": (
        {"loggers": ["MLFlowLogger", "CSVLogger", "TensorBoardLogger"], "logs_max_bytes": 0},
        FEW,
    ),
    "weights averaged by SWA": (
        {
            "callbacks": {"StochasticWeightAveraging": {"swa_lrs": 0.02, "swa_epoch_start": 2}},
            "trainer": {"max_epochs": 4},
        },
        [
            "batch:0:3",
            "epoch_end:0",
            "batch:1:3",
            "start:2:0",
            "batch:2:5",
            "validation:3:8",
            "batch:4:3",
            "validation:4:8",
        ],
    ),
    "weights averaged by SWA, linear, own schedule": (
        {
            "callbacks": {
                "StochasticWeightAveraging": {
                    "swa_lrs": 0.02,
                    "swa_epoch_start": 0.5,
                    "annealing_epochs": 2,
                    "annealing_strategy": "linear",
                }
            },
            "scheduler": "epoch",
            "trainer": {"max_epochs": 4},
        },
        ["batch:1:5", "batch:2:3", "start:3:0", "batch:3:8", "train_end"],
    ),
    "loaders of the module's own, made once": ({"loader": "of the module"}, FEW),
    "loaders made again each second epoch": (
        {"loader": "of the module", "trainer": {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 4}},
        ["batch:0:3", "start:1:0", "batch:1:5", "start:2:0", "batch:3:2", "validation:3:8"],
    ),
    "loaders made again each epoch by what the script has found": (
        {
            "variant": "data that grows",
            "loader": "of the module",
            "scheduler": "epoch",
            "trainer": {"reload_dataloaders_every_n_epochs": 1},
        },
        ["batch:0:2", "start:1:0", "batch:1:3", "batch:2:1", "start:2:5", "train_end"],
    ),
    "two optimizers, manual optimisation, clipping": ({"manual": "two", "scheduler": "two optimizers"}, SOME),
    "validation and a snapshot each second batch": (
        {"trainer": {"val_check_interval": 2}},
        ["batch:0:2", "validation:0:2", "validation:0:4", "start:0:4", "validation:0:8", "batch:1:6"],
    ),
    "weights averaged by EMA": (
        {"callbacks": {"EMAWeightAveraging": {"decay": 0.9}}, "slow_validation_s": 0.02},
        SOME,
    ),
    "two processes": (
        {"ranks": 2, "trainer": {"devices": 2, "strategy": "ddp"}, "samples": 80},
        ["batch:0:3", "validation:0:8", "start:1:0", "batch:1:5", "train_end"],
    ),
    "two processes, the second of which has seen enough": (
        {
            "ranks": 2,
            "trainer": {"devices": 2, "strategy": "ddp", "max_epochs": 7},
            "samples": 80,
            "variant": "ranks that see other values",
        },
        ["batch:2:3"],
    ),
    "two processes, each of which shuffles a whole stream before it takes its share": (
        {
            "ranks": 2,
            "trainer": {"devices": 2, "strategy": "ddp"},
            "samples": 80,
            "loader": "stream",
            "scheduler": "epoch",
        },
        ["batch:0:3", "start:1:0", "batch:1:5"],
    ),
    "validation of a stream": ({"validation_stream": "stream"}, SOME[2:5]),
    "validation of a stream in a persistent worker": (
        {"validation_stream": "stream", "val_workers": 1, "trainer": {"val_check_interval": 0.5}},
        ["batch:0:4", "validation:0:8", "batch:1:5"],
    ),
    "validation of a stream with a state, cut short": (
        {"validation_stream": "stateful stream", "trainer": {"limit_val_batches": 3, "val_check_interval": 0.5}},
        ["batch:0:3", "batch:0:5", "validation:0:8", "start:1:0", "validation:1:8", "batch:2:7"],
    ),
    "what many scripts have": (
        {"usual": True, "loader": "batch sampler", "scheduler": "warmup", "trainer": {"gradient_clip_val": 0.5}},
        SOME,
    ),
    "generators that the script keeps for itself": ({"own_generators": True, "loader": "own sampler"}, FEW),
    "generators that the script keeps for itself, in workers": (
        {"own_generators": True, "loader": "own sampler", "workers": 2, "persistent": True},
        ["batch:0:3", "start:1:0", "batch:1:5"],
    ),
    "a stream with a generator of its own": (
        {"own_generators": True, "loader": "stream", "scheduler": "epoch"},
        ["batch:0:3", "start:1:0", "batch:1:5"],
    ),
    "half precision": ({"trainer": {"precision": "bf16-mixed", "gradient_clip_val": 0.1}}, SOME[:3]),
    "the callback in the script too": ({"explicit": True}, SOME[:3]),
    "another Trainer validates first": ({"validate_first": True}, SOME[:3]),
}


IN_WORKERS = {"workers": 2, "persistent": True}
TOGETHER = {
    "accumulation, plateau, workers, validation twice an epoch, what callbacks keep": (
        {
            "scheduler": "plateau",
            "trainer": {"accumulate_grad_batches": 3, "val_check_interval": 0.5},
            **IN_WORKERS,
            "val_workers": 1,
            "val_persistent": True,
            "checkpoints": True,
            "callbacks": {"LearningRateMonitor": {}},
            "loggers": ["CSVLogger"],
        },
        ["batch:0:4", "start:1:0", "validation:1:8"],
    ),
    "what many scripts have, import lightning, a torchmetrics metric, half precision": (
        TRAININGS["what many scripts have"][0]
        | {
            "package": "lightning.pytorch",
            "torchmetric": True,
            "trainer": {"precision": "bf16-mixed", "gradient_clip_val": 0.5},
        },
        ["batch:0:3", "start:1:0", "validation:1:8"],
    ),
    "early stopping, plateau of a training loss, ModelCheckpoint that saves once, overfit_batches": (
        {
            "early_stopping": 1,
            "min_delta": 0.2,
            "scheduler": "plateau",
            "monitor": "train_loss_epoch",
            "checkpoints": True,
            "saving": {"mode": "max", "save_top_k": 1},
            "explicit": True,
            "validate_first": True,
            "trainer": {"max_epochs": 6, "overfit_batches": 4},
        },
        ["batch:0:3", "epoch_end:0", "validation:1:4"],
    ),
    "max_steps within an epoch, accumulation that grows, validation across epochs, weighted samples": (
        {
            "loader": "weighted",
            "accumulation": {"0": 1, "1": 3},
            "trainer": {
                "max_steps": 13,
                "max_epochs": -1,
                "check_val_every_n_epoch": None,
                "val_check_interval": 5,
            },
        },
        ["validation:0:5", "batch:1:5", "train_end"],
    ),
    "two loaders with a worker, the short one cycled and made anew, manual optimisation": (
        {
            "loader": "two",
            "workers": 1,
            "persistent": True,
            "manual": True,
            "scheduler": "epoch",
            "trainer": {"reload_dataloaders_every_n_epochs": 1},
        },
        ["batch:0:5", "start:1:0", "batch:2:3"],
    ),
    "loaders until the shortest ends, plateau by step, validation each second epoch": (
        {
            "loader": "min_size",
            "scheduler": "plateau",
            "interval": "step",
            "monitor": "train_loss_step",
            "trainer": {"max_epochs": 4, "check_val_every_n_epoch": 2},
        },
        ["batch:0:2", "start:2:1", "batch:3:2"],
    ),
    "loaders until the longest ends, two optimizers": (
        {"loader": "max_size", "manual": "two", "scheduler": "two optimizers"},
        ["batch:0:5", "start:1:0"],
    ),
    "an IterableDataset in workers, generators of its own, validation of a stream with a state, cut short": (
        {
            "loader": "stream",
            "own_generators": True,
            "scheduler": "epoch",
            **IN_WORKERS,
            "validation_stream": "stateful stream",
            "trainer": {"limit_val_batches": 3, "val_check_interval": 4},
        },
        ["batch:0:5", "start:1:0", "validation:1:8"],
    ),
    "an IterableDataset with a state, epochs cut short, validation of a stream in a persistent worker": (
        {
            "loader": "stateful stream",
            "scheduler": "epoch",
            "validation_stream": "stream",
            "val_workers": 1,
            "trainer": {"limit_train_batches": 5, "max_epochs": 4},
        },
        ["batch:0:3", "start:1:0", "start:3:1"],
    ),
    "torchdata's StatefulDataLoader, max_steps at an epoch's end": (
        {"torchdata": True, "trainer": {"max_steps": 16, "max_epochs": -1}},
        ["batch:0:3", "validation:0:8"],
    ),
    "torchdata's, of an IterableDataset with a state in a worker": (
        {"torchdata": True, "loader": "stateful stream", "scheduler": "epoch", "workers": 1},
        ["batch:0:3", "start:1:0"],
    ),
    "a sampler with a generator that the script keeps, in workers, should_stop set in mid-epoch": (
        {
            "loader": "own sampler",
            "own_generators": True,
            **IN_WORKERS,
            "stop_at": [1, 4],
            "trainer": {"max_epochs": 4},
        },
        ["batch:0:3", "batch:1:3", "train_end"],
    ),
    "a loader without batches, should_stop before min_epochs": (
        {
            "loader": "no batches",
            "own_generators": True,
            "stop_at": [0, 4],
            "trainer": {"max_epochs": 4, "min_epochs": 2},
        },
        ["batch:0:5", "batch:1:3"],
    ),
    "weights averaged by SWA, the loader's own generator": (
        {
            "loader": "generator",
            "samples": 43,
            "scheduler": "epoch",
            "callbacks": TRAININGS["weights averaged by SWA, linear, own schedule"][0]["callbacks"],
            "trainer": {"max_epochs": 4},
        },
        ["batch:1:5", "start:3:0", "train_end"],
    ),
    "weights averaged by EMA, a loader that is no DataLoader, limit_train_batches": (
        {
            "callbacks": {"EMAWeightAveraging": {"decay": 0.9}},
            "loader": "batches",
            "scheduler": "epoch",
            "trainer": {"limit_train_batches": 5},
        },
        ["batch:0:2", "start:1:0", "validation:1:5"],
    ),
    "loaders of the module's own, made again each epoch by what the script has found": (
        TRAININGS["loaders made again each epoch by what the script has found"][0],
        ["start:1:0", "batch:2:1", "start:2:5"],
    ),
    "two processes, the second of which has seen enough, and which shuffle a whole stream": (
        {
            "ranks": 2,
            "samples": 80,
            "trainer": {"devices": 2, "strategy": "ddp", "max_epochs": 7},
            "loader": "stream",
            "scheduler": "epoch",
            "variant": "ranks that see other values",
        },
        ["batch:0:3", "start:2:0"],
    ),
    "all loggers of files": (
        {
            "loggers": ["MLFlowLogger", "CSVLogger", "TensorBoardLogger"],
            "slow_events_s": 0.005,
            "trainer": {"val_check_interval": 0.5},
        },
        FEW,
    ),
    "all loggers of files, which are too large to be carried": (
        TRAININGS["loggers of files that are too large to be carried"][0],
        FEW[:2],
    ),
}
"""Each thing that a training of TRAININGS has is in one of these too. Those show which thing it is that differs."""
EACH = [*TOGETHER, *(pytest.param(name, marks=pytest.mark.nightly) for name in TRAININGS)]


@pytest.mark.pattern("exact", "Lightning", of="name", texts=dict.fromkeys([*TOGETHER, "what many scripts have"], ""))
@pytest.mark.parametrize("name", EACH)
def test_a_killed_training_ends_bit_identical(zygote, tmp_path, name):
    job, kills = (TRAININGS | TOGETHER)[name]
    if "MLFlowLogger" in job.get("loggers", ()):
        zygote.imports(*LOGGERS)
    if job.get("torchdata"):
        pytest.importorskip("torchdata.stateful_dataloader")
    agent, result = exact(zygote, tmp_path, job, kills)
    assert agent.attempts == len(kills) + 1
    if "accumulate_grad_batches" in job.get("trainer", {}):
        assert {snapshot.batch for snapshot in agent.told(SnapshotTaken)} <= {3, 6, 8}, "no gradient was pending"
    cut_short = {"limit_train_batches", "overfit_batches"} & job.get("trainer", {}).keys()
    if ("loader" not in job or "ranks" in job) and not cut_short:
        for epoch in range(result["epoch"]):
            ids = [n for line in trained(result) if line[1] == epoch for n in line[4]]
            whole = len(ids) == job.get("samples", 40)
            assert len(set(ids)) == len(ids)
            assert whole or epoch == result["epoch"] - 1, "only the last epoch may be cut short"


def test_training_survives_an_exception_and_keeps_the_users_own_checkpoint_of_it(zygote, tmp_path):
    job = {"exception_checkpoint": True, "patient": True}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "failed", every_steps=1)
    for place in ("error:0:4", "error:1:1"):
        assert agent.attempt(kill=place) == "failed"
        assert (tmp_path / "failed" / "on_exception.ckpt").exists()
    assert_same(straight, agent.run())


def test_logs_of_a_training_that_was_killed_before_its_first_snapshot_are_not_doubled(zygote, tmp_path):
    zygote.imports(*LOGGERS)
    job = {"loggers": ["MLFlowLogger", "CSVLogger", "TensorBoardLogger"]}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed")
    killed = agent.run(["batch:1:3", "start:2:0"])
    assert {message.final for message in agent.told(SnapshotTaken)} == {True}, "only the one at the end"
    assert_same(straight, killed)


@pytest.mark.parametrize(
    ("every_steps", "kills"),
    [(1, ["batch:1:3"]), (None, ["batch:1:3", "start:2:0"])],
    ids=["after its snapshots", "before its first snapshot"],
)
def test_an_mlflow_server_has_one_run_with_each_step_once(zygote, tmp_path, every_steps, kills):
    zygote.imports(*LOGGERS)
    job = {"loggers": ["MLFlowLogger"], "mlflow_by_client": True, "trainer": {"val_check_interval": 0.5}}
    straight = Agent(zygote, job, tmp_path / "straight").run()["logs"]
    killed = Agent(zygote, job, tmp_path / "killed", every_steps=every_steps).run(kills)["logs"]
    assert killed.keys() == straight.keys()
    for name, lines in straight.items():
        assert_once(lines, killed[name])
    stages = [path.read_text() for path in (tmp_path / "killed" / "logs" / "MLFlowLogger").glob("*/*/meta.yaml")]
    assert sorted("lifecycle_stage: active" in text for text in stages) == [False] * len(kills) + [True]


def assert_once(expected, found):
    """All of them in order, none more often. Lightning itself logs some twice, which once is enough for."""
    assert list(dict.fromkeys(map(tuple, found))) == list(dict.fromkeys(map(tuple, expected)))
    assert not Counter(map(tuple, found)) - Counter(map(tuple, expected))


def test_logs_go_along_to_a_machine_that_never_had_them(zygote, tmp_path):
    zygote.imports(*LOGGERS)
    job = {"loggers": ["MLFlowLogger", "CSVLogger", "TensorBoardLogger"], "patient": True}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    assert agent.attempt(kill="batch:1:3") == "killed"
    assert agent.told(SnapshotTaken)
    shutil.rmtree(tmp_path / "killed" / "logs")
    assert_same(straight, agent.run())
    (experiment,) = (path.parent.parent for path in (tmp_path / "killed" / "logs" / "MLFlowLogger").glob("*/*/metrics"))
    others = {path.name for path in experiment.parent.glob("[0-9]*")} - {experiment.name}
    assert others == {"0"}, "besides MLflow's default experiment there is one, with one run"


@pytest.mark.parametrize("kills", [FEW, pytest.param(EVERYWHERE, marks=pytest.mark.nightly)], ids=["few", "all"])
def test_snapshots_each_few_steps_lose_only_these(zygote, tmp_path, kills):
    agent, _ = exact(zygote, tmp_path, {"scheduler": "plateau"}, kills, every_steps=3)
    steps = sorted({snapshot.step for snapshot in agent.told(SnapshotTaken)})
    assert sorted({step // 3 for step in steps}) == list(range(1, 9))
    assert len(steps) <= 10, "a snapshot is late only while no arena is free"


def test_kills_at_any_moment(zygote, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    job = {"workers": 1, "trainer": {"val_check_interval": 0.5}, "slow_validation_s": 0.005}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    for _ in range(5):
        timer = threading.Timer(source.uniform(0.25, 0.6), agent.kill)
        timer.start()
        how = agent.attempt()
        timer.cancel()
        timer.join()
        assert how in ("killed", "finished")
        if how == "finished":
            break
    assert_same(straight, agent.run() if how == "killed" else agent.result())


@pytest.mark.nightly
def test_real_python_processes_with_the_transformer_demo(tmp_path):
    script = tmp_path / "transformer.py"
    (tmp_path / "wikitext-2.txt").write_text("the cat sat on the mat and the dog ran to the cat " * 120)
    script.write_text(TRANSFORMER)
    folders = [tmp_path / "straight", tmp_path / "killed"]
    jobs = [{"script": str(script), "args": [str(folder), str(tmp_path)]} for folder in folders]
    agents = [
        Agent(Spawner(tmp_path), job, folder, every_steps=2, arenas=8)
        for job, folder in zip(jobs, folders, strict=True)
    ]
    agents[1].on_message = kill_at_step(7)
    stop = folders[1] / "stop"
    stop.touch()
    threads = [threading.Thread(target=agents[0].attempt)]  # side by side: each start costs seconds of imports
    threads[0].start()
    assert agents[1].attempt() == "killed"
    stop.unlink()
    agents[1].on_message = None
    assert agents[1].attempt() == "finished", agents[1].log.read_text()[-3000:]
    threads[0].join()
    assert (folders[0] / "weights").read_text() == (folders[1] / "weights").read_text()
    assert agents[1].told(Hello)[0].framework.startswith("pytorch_lightning 2.")


TRANSFORMER = """
import hashlib, signal, sys
from pathlib import Path
import pytorch_lightning as pl
from pytorch_lightning.demos import Transformer, WikiText2
from torch import nn, optim
from torch.utils.data import DataLoader

class Language(pl.LightningModule):
    def __init__(self, vocab):
        super().__init__()
        self.model = Transformer(vocab_size=vocab, ninp=16, nhead=2, nhid=16, nlayers=1)
    def training_step(self, batch, batch_idx):
        source, target = batch
        return nn.functional.nll_loss(self.model(source, target), target.view(-1))
    def on_train_batch_end(self, *_):
        if self.global_step == 14 and Path(sys.argv[1], "stop").exists():
            signal.pause()
    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

pl.seed_everything(1)
data = WikiText2(data_dir=Path(sys.argv[2]), block_size=35, download=False)
model = Language(data.vocab_size)
pl.Trainer(max_epochs=2, limit_train_batches=10, accelerator="cpu", logger=False, enable_checkpointing=False,
           enable_progress_bar=False).fit(model, DataLoader(data, 2, shuffle=True))
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
Path(sys.argv[1], "weights").write_text(digest)
"""

BORING = """
import hashlib, signal, sys
from pathlib import Path
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel

class Stopping(BoringModel):
    def on_train_batch_end(self, *_):
        if self.global_step == 28 and Path(sys.argv[1], "stop").exists():
            signal.pause()

seed_everything(3)
model = Stopping()
Trainer(max_epochs=2, limit_train_batches=20, limit_val_batches=2, accelerator="cpu", default_root_dir=sys.argv[1],
        enable_progress_bar=False).fit(model)
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
Path(sys.argv[1], "weights").write_text(digest)
"""


def kill_at_step(step):
    """
    The script waits for it before its end: so few steps are over before a busy machine gets round to a kill. The agent
    has an arena for each snapshot until then.
    """

    def on_message(agent, message):
        if isinstance(message, SnapshotTaken) and message.step >= step:
            agent.kill()

    return on_message


def test_the_boring_model_unchanged(zygote, tmp_path):
    (tmp_path / "boring.py").write_text(BORING)
    weights = []
    for kill in (None, kill_at_step(13)):
        folder = tmp_path / ("killed" if kill else "straight")
        job = {"script": str(tmp_path / "boring.py"), "args": [str(folder)]}
        agent = Agent(zygote, job, folder, every_steps=4, on_message=kill, arenas=8)
        if kill:
            stop = folder / "stop"
            stop.touch()
            assert agent.attempt() == "killed"
            stop.unlink()
            agent.on_message = None
        assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
        weights.append((folder / "weights").read_text())
    assert weights[0] == weights[1]
    assert agent.told(Hello)[0].framework.startswith("lightning 2.")


# --- what is told, and when ------------------------------------------------------------------------------------------


def test_an_undisturbed_training_tells_its_story(zygote, tmp_path):
    agent = Agent(zygote, {}, tmp_path)
    result = agent.run()
    ends = agent.told(EpochEnded)
    assert [(e.epoch, e.step, e.batches, e.samples) for e in ends] == [(0, 8, 8, 40), (1, 16, 8, 40), (2, 24, 8, 40)]
    assert sorted(ends[-1].metrics) == sorted(result["metrics"])
    (final,) = agent.told(SnapshotTaken)
    assert (final.final, final.epoch_ended, final.epoch, final.batch, final.step) == (True, True, 2, 8, 24)
    assert agent.messages[-1] == Finished(step=24, epoch=2)
    assert agent.told(Progress)[0].phase == "train", "Lightning's sanity check is no step"
    progress = [p for p in agent.told(Progress) if p.phase == "train"]
    first = progress[0]
    assert (first.epoch, first.batch, first.batches, first.step, first.epochs) == (0, 1, 8, 1, 3)
    assert {(p.epoch, p.batch, p.step) for p in progress} >= {(0, 8, 8), (1, 8, 16), (2, 8, 24)}


def test_a_snapshot_of_an_ended_epoch_says_so(zygote, tmp_path):
    job = {"scheduler": "epoch", "trainer": {"limit_val_batches": 0}}
    agent, _ = exact(zygote, tmp_path, job, ["start:1:0", "batch:2:1"], every_steps=4)
    at = {(s.epoch, s.batch, s.step, s.epoch_ended, s.final) for s in agent.told(SnapshotTaken)}
    assert {(0, 8, 8, True, False), (1, 8, 16, True, False), (2, 8, 24, True, True)} <= at


def test_a_wanted_snapshot_waits_for_a_free_arena(zygote, tmp_path):
    agent = Agent(zygote, {}, tmp_path, arenas=1)
    agent.every_steps = 1
    held = []

    def hold(agent, message):
        if isinstance(message, SnapshotTaken):
            held.append(message.step)

    agent.on_message = hold
    agent.run()
    assert len(held) > 3
    assert held == sorted(held)


@pytest.mark.parametrize("phase", ["train", "validate"])
def test_a_drained_training_stands_still_after_its_final_snapshot(zygote, tmp_path, phase):
    job = {"slow_validation_s": 0.06, "trainer": {"max_epochs": 2}, "slow_s": 0.01}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    after = []

    def drain(agent, message):
        if isinstance(message, Progress) and message.phase == phase and message.step >= 8 and not after:
            agent.drain()
            after.append(message)
        elif after:
            after.append(message)
        if isinstance(message, SnapshotTaken) and message.final:
            threading.Timer(0.15, agent.kill).start()

    agent = Agent(zygote, job, tmp_path / "drained", on_message=drain)
    assert agent.attempt() == "killed"
    assert isinstance(after[-1], SnapshotTaken), "nothing happens after the final snapshot"
    assert after[-1].final
    if phase == "validate":
        last = after[-1]
        assert (last.batch, last.step, last.epoch_ended) == (8, 8, False), "the validation was not waited for"
    agent.on_message = None
    assert_same(straight, agent.run())


def test_two_drained_processes_stop_after_the_same_step(zygote, tmp_path):
    job = {"ranks": 2, "trainer": {"devices": 2, "strategy": "ddp", "max_epochs": 2}, "samples": 80, "slow_s": 0.02}
    straight = Agent(zygote, job, tmp_path / "straight").run()

    def drain(agent, message):
        if isinstance(message, Progress) and message.step == 1:
            agent.drain()
        if isinstance(message, SnapshotTaken) and message.final:
            threading.Timer(0.15, agent.kill).start()

    agent = Agent(zygote, job, tmp_path / "drained", on_message=drain)
    assert agent.attempt() == "killed"
    steps = [len(path.read_text().splitlines()) for path in sorted((tmp_path / "drained").glob("trace*"))]
    assert steps == [agent.snapshot.step + 1] * 2, "a line for each step, and one for the epoch"
    agent.on_message = None
    assert_same(straight, agent.run())


def test_a_finished_training_that_is_resumed_does_no_step(zygote, tmp_path):
    agent = Agent(zygote, {"early_stopping": 1, "min_delta": 9.0}, tmp_path)
    first = agent.run()
    del agent.messages[:]
    assert agent.run() == first, "and what follows fit() in the script is run again"
    assert not agent.told(Progress)
    assert agent.told(SnapshotTaken) == [], "the checkpoint that it resumed from is the final one"
    finished = agent.messages[-1]
    assert isinstance(finished, Finished)
    assert (finished.step, finished.resumed) == (first["step"], True)


def test_nan_is_noticed(zygote, tmp_path):
    agent = Agent(zygote, {"nan_at": 12}, tmp_path, every_steps=1)
    agent.run()
    finite = {s.step: s.finite for s in agent.told(SnapshotTaken)}
    assert finite == {step: step <= 12 for step in finite}
    assert min(finite) <= 12 < max(finite)


AT_THE_END_OF = {
    "an epoch": {},
    "the last batch of an epoch": {"monitor": "step", "mode": "max", "every_n_train_steps": 8},
}


@pytest.mark.parametrize("saved", AT_THE_END_OF)
def test_the_users_checkpoint_is_used_on_a_fresh_start_only(zygote, tmp_path, saved):
    job = {"checkpoints": True, "trainer": {"max_epochs": 5}, "scheduler": "epoch"}
    job["ckpt_path"] = str(user_checkpoint(zygote, tmp_path, AT_THE_END_OF[saved]))
    _, result = exact(zygote, tmp_path, job, ["batch:3:3", "validation:3:8"])
    assert trained(result)[0][1] == 3


def user_checkpoint(zygote, folder, saving):
    job = {"checkpoints": True, "scheduler": "epoch", "saving": saving}
    Agent(zygote, job, folder / "user").run()
    checkpoints = folder / "user" / "checkpoints"
    return max(checkpoints.glob("*step=*.ckpt"), key=lambda path: int(path.stem.partition("step=")[2]))


def test_the_users_seed_decides_about_the_data_too(zygote, tmp_path):
    seeds = {"a": 1, "b": 1, "c": 2}
    lines = [trained(Agent(zygote, {"seed": seed}, tmp_path / name).run()) for name, seed in seeds.items()]
    assert lines[0] == lines[1]
    assert [line[4] for line in lines[0]] != [line[4] for line in lines[2]]


def test_a_trainer_without_its_agent_ends_by_itself(zygote, tmp_path):
    agent = Agent(zygote, {"agent_gone_s": 0.3, "slow_s": 0.05, "trainer": {"max_epochs": 50}}, tmp_path)
    agent.on_message = lambda agent, message: isinstance(message, Progress) and message.step > 1 and agent.link.close()
    agent.attempt()
    assert agent.told(Progress)
    assert not (tmp_path / "result.json").exists()


def test_without_an_agent_the_callback_is_nothing(zygote, tmp_path):
    alone = zygote.alone({}, tmp_path / "a")
    assert zygote.alone({"explicit": True}, tmp_path / "b") == alone
    assert alone["step"] == 24


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "max_time": ({"trainer": {"max_time": "00:01:00:00"}}, "clock"),
    "validation by the clock": ({"trainer": {"val_check_interval": "00:00:00:05"}}, "clock"),
    "a tuner": ({"callbacks": {"LearningRateFinder": {}}}, "tuner"),
    "a stream among loaders that are cycled": (
        {"loader": "stream and list", "scheduler": "epoch"},
        "one of them has no length",
    ),
    "a sampler without a length": (
        {"loader": "endless", "scheduler": "epoch", "trainer": {"limit_train_batches": 4}},
        "no length",
    ),
    "a strategy that shards": ({"strategy": "ModelParallelStrategy"}, "spreads the state"),
    "both": (
        {"trainer": {"max_time": "00:01:00:00"}, "callbacks": {"LearningRateFinder": {}}},
        "max_time ends training by the clock; a tuner",
    ),
}


@pytest.mark.pattern("refused", "Lightning", of="name", texts={"both": ""})
@pytest.mark.parametrize("name", REFUSED)
def test_training_that_cannot_be_exact_is_refused_before_the_first_step(zygote, tmp_path, name):
    job, reason = REFUSED[name]
    agent = Agent(zygote, job, tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    refused = agent.told(Refused)[0]
    assert reason in refused.reason
    assert refused.hint
    assert not [progress for progress in agent.told(Progress) if progress.batch or progress.step]
    assert "spotrun cannot resume this training exactly" in agent.log.read_text()


def test_resume_on_another_machine_prints_one_line(zygote, tmp_path):
    agent = Agent(zygote, {}, tmp_path, every_steps=1)
    assert agent.attempt(kill="batch:2:4") == "killed"
    state, meta = read_image(bytearray(agent.image))
    assert meta["python"] == platform.python_version()
    agent.image = image_bytes(state, meta | {"cpu": "Z80", "threads": 64, "python": "3.11.0"})
    agent.run()
    lines = [line for line in agent.log.read_text().splitlines() if line.startswith("spotrun: ")]
    assert len(lines) == 1
    assert lines[0].startswith(
        "spotrun: from here on equivalent, but not bit-identical, because this differs: CPU (Z80, then "
    )
    assert "thread count (64, then 1); python (3.11.0, then " in lines[0]


def test_stream_without_a_state_is_reported_as_read_again(zygote, tmp_path):
    agent = Agent(zygote, {"loader": "stream", "scheduler": "epoch", "trainer": {"max_epochs": 1}}, tmp_path)
    agent.run()
    assert "spotrun: Stream has no state_dict, so a resume within an epoch rereads" in agent.log.read_text()


def test_another_number_of_processes_is_refused(zygote, tmp_path):
    agent = Agent(zygote, {"samples": 80}, tmp_path, every_steps=1)
    assert agent.attempt(kill="batch:2:4") == "killed"
    agent.job = agent.job | {"ranks": 2, "trainer": {"devices": 2, "strategy": "ddp"}}
    assert agent.attempt() == "refused"
    assert agent.told(Refused)[0].reason == "the number of processes is 1 in the checkpoint, and 2 in this training"


# --- the seams -------------------------------------------------------------------------------------------------------


def test_lightnings_private_names_are_where_they_were(zygote, tmp_path):
    zygote.end(zygote.start({"call": "moved_names", "result": str(tmp_path / "result")}, None, tmp_path / "log"))
    found = json.loads((tmp_path / "result").read_text())
    gone = ["fit_loop.epoch_loop._skip_next_val"]
    assert found == {
        "pytorch_lightning": [],
        "pytorch_lightning, one gone": gone,
        "lightning.pytorch": [],
        "lightning.pytorch, one gone": gone,
    }


def test_each_package_gets_a_callback_of_its_own(zygote, tmp_path):
    zygote.end(zygote.start({"call": "public_classes", "result": str(tmp_path / "result")}, None, tmp_path / "log"))
    assert json.loads((tmp_path / "result").read_text()) == [[True, True], [True, False], [False, True]]
